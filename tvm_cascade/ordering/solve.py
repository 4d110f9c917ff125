"""`order`: the operator order with the lowest peak, proven or bounded.

Adaptive soft budgeting (Serenity, Algorithm 2) corrected: the published loop never runs the scheduler, and the answer
to "no solution" averages the last two budgets, which may never reach the optimum. Here the budget lies in [low, high):
`low` is proven unavoidable, `high` is the best order known, lowered by annealing and windows (`_improve`) as soon as a
run is incomplete. The first budget is `low`, each further budget half way to `high`; a complete run without an order
raises `low` to the least step refused, a run with an order lowers `high`, and an incomplete run without an order proves
nothing: budgets stay above. A run only decides whether an order within the budget exists: operators that can only help
then run at once if the budget allows, which leaves a fraction of the states needed for finding the best order. Work is
bounded in steps, not in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from tvm_cascade.graph import Graph
from tvm_cascade.ordering.anneal import anneal_in_rounds
from tvm_cascade.ordering.baselines import file_order, greedy, kahn_fifo, reverse_post_order
from tvm_cascade.ordering.bounds import step_bounds
from tvm_cascade.ordering.cut_bounds import cut_bound
from tvm_cascade.ordering.cuts import regions
from tvm_cascade.ordering.dp import run
from tvm_cascade.ordering.model import Model, model
from tvm_cascade.ordering.region import Region
from tvm_cascade.ordering.windows import improve_windows
from tvm_cascade.search_monitor import cached, monitor


@dataclass(frozen=True, slots=True)
class OrderOptions:
    """The solver's switches. `in_place` changes an order's cost; the rest only the search's speed."""

    in_place: bool = True  # outputs may overwrite inputs that die, where the operator allows it
    divide: bool = True  # cut the graph into regions where that is exact
    budgeting: bool = True  # the first budget is the lower bound, instead of just below the best known peak
    dominance: bool = True  # run operators at once that cannot raise the peak (`ordering.dp`)
    moves: int = 6_000_000  # of annealing in total, where the first search ends without a proof; 0: none
    work: int = 20_000_000  # steps tried in total; millions a second


@dataclass(frozen=True, slots=True)
class Ordering:
    """An operator order, the peak and the proven lower bound; sizes in bytes."""

    order: tuple[int, ...]
    peak: int
    file_order_peak: int
    optimal: bool  # peak == bound
    bound: int  # no order has a lower peak
    partitions: int  # regions that were ordered independently
    states: int  # explored by the dynamic program
    seconds: float

    @property
    def gap(self) -> float:
        """Return the gap between peak and bound, as a fraction of the peak."""
        return (self.peak - self.bound) / self.peak if self.peak else 0.0


def order(graph: Graph, options: OrderOptions | None = None) -> Ordering:
    """Search the order of `graph` with the lowest peak memory.

    The order is optimal if the limits on work and on time (`search_monitor`) allow a proof; else it is the best order
    found, with `optimal` false. The result is never worse than file order, Kahn's, reverse post-order or greedy.
    """
    began = perf_counter()
    options = options or OrderOptions()
    m = model(graph, options.in_place)
    known = (file_order(graph), kahn_fifo(graph), reverse_post_order(graph), greedy(graph, m))
    sequence, bound, states, parts = _solve(m, tuple(map(tuple, known)), options)
    peak, file_peak = m.peak(sequence), m.peak(known[0])
    return Ordering(sequence, peak, file_peak, peak == bound, bound, parts, states, perf_counter() - began)


@cached(maxsize=8)  # equivalent networks that differ in kernels or names only have one model
def _solve(
    m: Model, known: tuple[tuple[int, ...], ...], options: OrderOptions
) -> tuple[tuple[int, ...], int, int, int]:
    """Search the order region by region, from the `known` orders.

    Return the order, the bound, and two counts: states explored and regions.
    """
    parts = regions(m) if options.divide else (Region(0, m.full, m.live(0)),)
    steps = step_bounds(m)
    bound = max((*steps, m.live(0)))
    floor, sequence, states, spent = bound, [], 0, 0
    for k, region in enumerate(parts):
        inside = region.after & ~region.before
        rows = [[i for i in row if inside >> i & 1] for row in known]
        peaks = [m.peak(row, region.before) for row in rows]
        peak = min(peaks)
        best = rows[peaks.index(peak)]
        left = sum(p.length for p in parts[k:])
        share = (options.work - spent) * region.length // max(1, left)
        monitor().report(
            "order", sum(p.length for p in parts[:k]), sum(p.length for p in parts), max(floor, peak), bound
        )
        if peak > floor and not monitor().over():
            best, peak, low, used = _region(m, region, best, peak, floor, share, options)
            bound, states, spent = max(bound, low), states + used[0], spent + used[1]
        floor = max(floor, peak)
        sequence.extend(best)
    return tuple(sequence), bound, states, len(parts)


def _region(
    m: Model, region: Region, best: list[int], peak: int, floor: int, work: int, options: OrderOptions
) -> tuple[list[int], int, int, tuple[int, int]]:
    """Search the best order of a region; return order, peak, proven bound, and the states and steps used.

    Bisection between bytes: every order is proven to need at least `low`. `failed` is the largest budget at which an
    incomplete search found no order, which proves nothing. A quarter of the work is kept for the last question, whether
    any order needs less than the best: fewer bytes admit fewer sets of operators.
    """
    reserve, work = work // 4, work - work // 4
    low = failed = floor
    moves = options.moves * region.length // len(m.predecessors)
    states = steps = 0
    budget = low if options.budgeting else peak - 1
    while low < peak and steps < work and budget < peak and not monitor().over():
        # it is easier to decide whether an order within the budget exists than to find the best: peaks up to it are equal
        alike = budget if options.dominance else floor
        result = run(m, region, budget, alike, (work - steps) // 2, options.dominance)
        states, steps = states + result.states, steps + max(1, result.steps)
        if result.order is not None:
            best = list(result.order)
            peak = max(floor, m.peak(best, region.before))
            low = peak if result.complete and not options.dominance else low
        elif result.complete:
            low = max(low, result.exceeded)
        else:
            failed = budget
        if moves and not result.complete:
            best, low, used = _improve(m, region, best, low, moves, (work - steps) // 4)
            peak, steps, moves = max(floor, m.peak(best, region.before)), steps + used, 0
        budget = (max(low, failed) + peak) // 2 if low < peak else peak
        if failed > low and (budget == failed or peak - failed < peak // 100):
            break
    if low < peak and not monitor().over():
        least = peak - 1
        result = run(m, region, least, least if options.dominance else floor, reserve, options.dominance)
        states, steps = states + result.states, steps + max(1, result.steps)
        if result.order is not None:
            best = list(result.order)
            peak = max(floor, m.peak(best, region.before))
        elif result.complete:
            low = peak
    return best, peak, min(low, peak), (states, steps)


def _improve(m: Model, region: Region, best: list[int], low: int, moves: int, work: int) -> tuple[list[int], int, int]:
    """Search a better order of a region too large for exact search; return order, proven bound, and the steps tried in
    windows.
    """
    best = anneal_in_rounds(m, region, best, low, moves // 4, rounds=1)
    best, first = improve_windows(m, region, best, low, work // 2)
    low = max(low, cut_bound(m, region, best, low))
    best = anneal_in_rounds(m, region, best, low, moves * 3 // 4, rounds=3)
    best, second = improve_windows(m, region, best, low, work - first)
    return best, low, first + second
