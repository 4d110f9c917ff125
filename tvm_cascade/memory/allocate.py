"""The arena allocator: heuristics, and if their result exceeds the lower bound, local search and an exact search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from time import perf_counter

from tvm_cascade.errors import InfeasibleError, UsageError, ValidationError
from tvm_cascade.memory import milp
from tvm_cascade.memory.arena_search import SearchResult, Tables, rankings, search, tables
from tvm_cascade.memory.bounds import max_live_step
from tvm_cascade.memory.fit import Placer, best_fit_of_orders, top
from tvm_cascade.memory.local_search import improve
from tvm_cascade.memory.problem import Allocation, Problem
from tvm_cascade.memory.validate import validate
from tvm_cascade.search_monitor import monitor

NO_LAYOUT = "no layout found"  # in the remedy of an error that is no proof


@dataclass(frozen=True, slots=True)
class AllocateOptions:
    """Limits on the work of the allocator. The same options give the same layout on any machine."""

    nodes: int = 20_000  # search nodes in total, about 15,000 a second in Python
    first_limit: int = 5_000  # nodes of the first run of the search with each ranking of buffers
    growth: int = 4  # factor by which the limit grows from one round of runs to the next
    placements: int = 1_600_000  # buffers that the local search before it places, on problems with offset constraints
    integer_program: bool = True  # whether small ones of these are also solved exactly


def allocate(problem: Problem, *, optimise: bool = True, options: AllocateOptions | None = None) -> Allocation:
    """Compute an offset for every buffer, so the arena is small or fits the capacity.

    If a limit (`search_monitor`) strikes, the result is the best layout so far.

    Parameters
    ----------
    problem : Problem
        With a `capacity`, return the first layout that fits; without, the layout with the smallest peak found.
    optimise : bool
        False runs the heuristics only.

    Raises
    ------
    UsageError
        An id that is used twice, a negative size, an empty lifetime, a pinned offset that the alignment forbids, pinned
        buffers that overlap, or an offset constraint on an unknown buffer.
    InfeasibleError
        No layout within the capacity was found; the message says whether none exists.
    """
    began = perf_counter()
    options = options or AllocateOptions()
    _check(problem)
    bound, step = max_live_step(problem)
    if problem.capacity is not None and bound > problem.capacity:
        raise _infeasible(problem, bound, step, proven=True)
    goal = bound if problem.capacity is None else problem.capacity
    free = replace(problem, capacity=None)
    best = _Best(problem, _placed(free, goal), bound)
    if optimise and best.peak > goal and problem.offset_constraints:
        best.take(improve(Placer(free), best.offsets, goal, options.placements // len(problem.buffers)))
        if options.integer_program:
            _integer_program(best, goal)
        if best.peak > goal and best.bound < best.peak:
            _search(best, goal, options)
        if best.peak > goal and best.bound < best.peak:
            _take_disjoint(best, options)
    elif optimise and best.peak > goal:
        _search(best, goal, options)
    if problem.capacity is not None and best.peak > problem.capacity:
        proven = best.bound > problem.capacity
        raise _infeasible(problem, best.bound if proven else best.peak, step, proven)
    return Allocation(best.offsets, best.peak, best.bound, best.peak == best.bound, perf_counter() - began)


@lru_cache(maxsize=32)
def _placed(problem: Problem, goal: int) -> tuple[int, ...]:
    """Place the buffers by every heuristic, and return the best placement. The exact search starts from it."""
    return best_fit_of_orders(Placer(problem), goal)


class _Best:
    """The layout of smallest peak and the highest lower bound that are known so far."""

    def __init__(self, problem: Problem, offsets: tuple[int, ...], bound: int) -> None:
        self.problem = problem
        self.offsets = offsets
        self.peak = top(problem, offsets)
        self.bound = bound

    def take(self, offsets: tuple[int, ...]) -> bool:
        """Keep a layout if it is valid and has a smaller peak; return whether the layout is valid.

        Layouts may be invalid: floating-point solvers round, and the search with offset constraints ignores pinned buffers.
        """
        peak = top(self.problem, offsets)
        try:
            validate(replace(self.problem, capacity=None), Allocation(offsets, peak, 0, False))
        except ValidationError:
            return False
        if peak < self.peak:
            self.offsets, self.peak = offsets, peak
        return True


def _integer_program(best: _Best, goal: int) -> None:
    """Optimize small problems with offset constraints exactly, as a mixed-integer program."""
    solved = milp.solve(best.problem, best.peak) if best.peak > goal and not monitor().over() else None
    if solved is not None and best.take(solved.offsets):
        best.bound = max(best.bound, min(solved.bound, best.peak))


def _take_disjoint(best: _Best, options: AllocateOptions) -> None:
    """Search for a layout in which no live buffers share bytes, and keep this if the peak is smaller.

    Offset constraints only allow sharing, so such a layout is always valid. The search with constraints is incomplete
    and may miss it.
    """
    problem = replace(best.problem, offset_constraints=())
    bound, _ = max_live_step(problem)
    if bound >= best.peak or any(b.offset is not None for b in problem.buffers):
        return  # two buffers with an offset constraint may be pinned onto one another
    disjoint = _Best(problem, best_fit_of_orders(Placer(problem), bound), bound)
    if disjoint.peak > bound:
        _search(disjoint, bound, options)
    best.take(disjoint.offsets)


def _search(best: _Best, goal: int, options: AllocateOptions) -> None:
    """Search for a layout within `goal` bytes, then bisect between bound and peak, until they meet or a limit is reached.

    `low` is the smallest capacity still worth a trial: the bound, or one more than a capacity at which the search gave up.
    """
    t, limit = tables(best.problem), monitor()
    left, low, capacity = options.nodes, best.bound, goal
    while best.peak > goal and left > 0 and low < best.peak and not limit.over():
        limit.report("arena", options.nodes - left, options.nodes, best.peak, best.bound)
        share = left if best.problem.capacity is not None else max(options.first_limit, left // 3)
        result, spent = _rounds(t, capacity, min(left, share), options)
        left -= spent
        if result.offsets is not None:
            best.take(result.offsets)
        elif result.complete and not best.problem.offset_constraints:
            best.bound = max(best.bound, min(result.next_capacity, best.peak))
            if best.problem.capacity is not None:
                return
        if result.offsets is None:
            low = max(best.bound, capacity + 1)
        capacity = (low + best.peak - 1) // 2


def _rounds(t: Tables, capacity: int, nodes: int, options: AllocateOptions) -> tuple[SearchResult, int]:
    """Search with each ranking of the buffers in turn, with growing limits, until a run is complete or nodes are used up."""
    ranks, spent, limit, over = rankings(t), 0, options.first_limit, monitor().over
    while True:
        for rank in ranks:
            result = search(t, capacity, rank, min(limit, nodes - spent), over)
            spent += result.nodes
            if result.complete or spent >= nodes or over():
                return result, spent
        limit *= options.growth


def _infeasible(problem: Problem, needed: int, step: int, proven: bool) -> InfeasibleError:
    """Build the error for a capacity without a known layout; it names the buffers live at `step`."""
    at_peak = [b.name or f"buffer {b.id}" for b in problem.buffers if b.lower <= step < b.upper]
    remedy = (
        "these live together: shorten lifetimes or raise the capacity"
        if proven
        else f"{NO_LAYOUT} within the search's limits, one may exist: raise the limits or the capacity"
    )
    return InfeasibleError(needed, problem.capacity or 0, at_peak, remedy)


def _check(problem: Problem) -> None:
    """Raise `UsageError` for an ill-formed problem."""
    ids: set[int] = set()
    for b in problem.buffers:
        if b.id in ids:
            raise UsageError(f"buffer {b.id} is listed twice: give every buffer an id of its own")
        ids.add(b.id)
        if b.size < 0 or b.upper <= b.lower or b.alignment < 1:
            raise UsageError(
                f"buffer {b.id}: size {b.size}, life [{b.lower}, {b.upper}), alignment {b.alignment}; "
                "sizes are at least 0, lives not empty, alignments at least 1"
            )
        if b.offset is not None and (b.offset < 0 or b.offset % b.alignment):
            raise UsageError(f"buffer {b.id} is pinned at {b.offset}, which its alignment {b.alignment} forbids")
    for f in problem.offset_constraints:
        if f.reader not in ids or f.writer not in ids or f.reader == f.writer:
            raise UsageError(f"buffer {f.writer} follows {f.reader}: both must be buffers of the problem")
    _check_pinned(problem)


def _check_pinned(problem: Problem) -> None:
    """Raise `UsageError` for overlapping pinned buffers live together without an offset constraint."""
    excused: set[frozenset[int]] = {frozenset((f.reader, f.writer)) for f in problem.offset_constraints}
    pinned: Sequence[tuple[int, int, int, int, int]] = [
        (b.id, b.offset, b.size, b.lower, b.upper) for b in problem.buffers if b.offset is not None
    ]
    for k, (i, at, size, lower, upper) in enumerate(pinned):
        for j, other, length, first, last in pinned[k + 1 :]:
            meet = lower < last and first < upper and at < other + length and other < at + size
            if meet and frozenset((i, j)) not in excused:
                raise UsageError(f"buffers {i} and {j} are pinned onto each other: move one of them")
