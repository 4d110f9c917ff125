"""The frontier of a network, with estimates and lower bounds.

The frontier holds the plans no other plan beats in peak, work and instructions at once. Smaller steps take more
instructions for the same work, and recompute more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import isqrt

from tvm_cascade.cascading import Bounds, Plan, PlanOptions, bounds, frontier, plan_graph
from tvm_cascade.cascading.channel_search import frontier_in_groups
from tvm_cascade.cascading.planner import in_time
from tvm_cascade.cascading.timing import WITHIN_CAP, instructions
from tvm_cascade.cores.work import Work
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph
from tvm_cascade.report.estimate import Estimate, estimate_operators, total
from tvm_cascade.search_monitor import SearchStopped, monitor

FRONTIER_MACS = 2.0  # largest work on a frontier, as a factor of the network's multiply-accumulates
_CAPS = 4  # caps at most that are planned for a frontier
_GAP = 1.05  # factor of bytes between two plans, in which another is looked for


@dataclass(frozen=True, slots=True)
class FrontierReport:
    """The frontier of a network with bounds."""

    points: tuple[tuple[int, float], ...]  # peak bytes and factor of work of plans that no other beats, ascending bytes
    estimates: tuple[Estimate, ...]  # of these plans
    bounds: Bounds | None  # of the search space at 1.00x; None where a limit struck before
    in_groups: tuple[bool, ...]  # whether these plans use channel tiling
    operators: tuple[Estimate, ...]  # of the chosen plan, by operator


def frontier_report(
    graph: Graph,
    options: PlanOptions,
    chosen: Plan,
    whole: bool = False,
    progress: Callable[[str], None] = lambda _line: None,
    work: Callable[[Plan], Sequence[Work] | None] = lambda _plan: None,
    others: Sequence[Graph] = (),
) -> FrontierReport:
    """Build the frontier with each plan's estimated traffic and instructions, and the bounds at 1.00x.

    If a limit (`search_monitor`) strikes, it has the plans found so far, and always `chosen`.

    Parameters
    ----------
    graph : Graph
        Without channel tiling; plans that use it are searched where the options allow more work.
    chosen : Plan
        A plan of `graph`, or of `graph` with channel tiling.
    whole : bool
        Search the whole frontier, up to `FRONTIER_MACS` or `options.max_macs` times the work, whichever is more; else the
        report has the chosen plan only.
    progress : callable
        Gets a line for every point found.
    work : callable
        Estimates the instructions and cycles of a plan by operator, from its kernels; None where they are not known.
    others : sequence of Graph
        Equivalent networks, whose plans at 1.00x another cap or limit may choose.
    """

    def tell(plan: Plan) -> None:
        progress(f"frontier: {plan.peak} bytes at {plan.macs / max(plan.baseline_macs, 1):.3f}x work")

    plans = [chosen]  # first, as what is as good gives way to it
    known: Bounds | None = None
    with suppress(SearchStopped):
        if whole and not options.layerwise:
            more_work = replace(options, sram=None, max_macs=max(options.max_macs, FRONTIER_MACS))
            plans += frontier(graph, more_work, tell)
            plans += frontier_in_groups(graph, options, tell)
            if options.steps is not None:
                for other in others:
                    plans += frontier(other, replace(options, max_macs=1.0))
                for own in (graph, *others):
                    plans += in_time(own, options).tried
                plans += _under_caps((graph, *others), options, plans)
        known = bounds(graph, options)
    best = unbeaten(plans, [(p.peak, p.macs, instructions(p, options) or 0.0) for p in plans])
    counted = {key: work(p) for key, p in {id(p): p for p in (*best, chosen)}.items()}
    told = [total(estimate_operators(p, options.steps, counted[id(p)])).instructions for p in best]
    best = unbeaten(best, [(p.peak, p.macs, float(n)) for p, n in zip(best, told, strict=True)])
    points = tuple((p.peak, p.macs / p.baseline_macs if p.baseline_macs else 1.0) for p in best)
    marks = tuple(any(op.kernels.channel_tiling is not None for op in p.graph.ops) for p in best)
    estimates = tuple(total(estimate_operators(p, options.steps, counted[id(p)])) for p in best)
    operators = estimate_operators(chosen, options.steps, counted[id(chosen)])
    return FrontierReport(points, estimates, known, marks, operators)


def _under_caps(graphs: Sequence[Graph], options: PlanOptions, plans: Sequence[Plan]) -> list[Plan]:
    """Return plans under caps between the plans known, in turn in the widest gap.

    In a gap with hardly more instructions for the smaller plan than for the larger, any cap gets the smaller plan.
    """
    found, closed = list[Plan](), set[int]()
    while len(found) < _CAPS * len(graphs) and not monitor().over():
        gap = _widest_gap([p for p in (*plans, *found) if p.macs <= p.baseline_macs], options, closed)
        if gap is None:
            break
        below, above = gap
        new: list[Plan] = []
        for graph in graphs:
            with suppress(InfeasibleError):
                new.append(plan_graph(graph, replace(options, sram=isqrt(below * above), max_macs=1.0)))
        found += new
        if all(p.peak <= below for p in new):
            closed.add(above)
    return found


def _widest_gap(plans: Sequence[Plan], options: PlanOptions, closed: set[int]) -> tuple[int, int] | None:
    """Return the peaks of two neighbours of the frontier between which a plan under a cap may lie; None if there are none."""
    taken = [instructions(p, options) or 0.0 for p in plans]
    known = sorted(set(zip((p.peak for p in plans), taken, strict=True)))
    fewest = accumulate((n for _, n in known), min)
    known = [point for point, least in zip(known, fewest, strict=True) if point[1] <= least]
    gaps = [
        (above / below, below, above)
        for (below, more), (above, less) in pairwise(known)
        if above > _GAP * below and above not in closed and more > WITHIN_CAP * less
    ]
    return max(gaps)[1:] if gaps else None


def unbeaten(plans: Sequence[Plan], figures: Sequence[tuple[int, int, float]]) -> list[Plan]:
    """Select the plans no other plan matches or beats in all figures, ascending by the first; in a tie the first."""
    found: list[tuple[tuple[int, int, float], int]] = []
    for k, own in enumerate(figures):
        worse = (
            all(b <= a for a, b in zip(own, other, strict=True))
            for n, other in enumerate(figures)
            if n != k and (other != own or n < k)
        )
        if not any(worse):
            found.append((own, k))
    return [plans[k] for _, k in sorted(found)]
