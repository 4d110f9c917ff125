"""The allocator: heuristics first, the exact search where they miss the bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from tvm_cascade.errors import InfeasibleError, UsageError, ValidationError
from tvm_cascade.memory import milp
from tvm_cascade.memory.bounds import max_live_step
from tvm_cascade.memory.fit import best_fit_of_orders, shuffle, top
from tvm_cascade.memory.problem import Allocation, Problem
from tvm_cascade.memory.search import Ints, SearchResult, Tables, rankings, search, tables
from tvm_cascade.memory.validate import validate


@dataclass(frozen=True, slots=True)
class AllocateOptions:
    """How far the allocator goes. The same options give the same layout on any machine."""

    nodes: int = 20_000  # search nodes in all, about 15,000 a second
    first_limit: int = 5_000  # nodes of the first run of each ranking
    growth: int = 4  # by which every further round of runs is longer
    shuffles: int = 200  # reorderings tried before the search on problems with `follows`


def allocate(
    problem: Problem,
    *,
    seconds: float | None = None,
    optimise: bool = True,
    options: AllocateOptions | None = None,
) -> Allocation:
    """Offsets for every buffer.

    Parameters
    ----------
    problem : Problem
        With a `capacity`, the first layout found within it is returned; without, the lowest.
    seconds : float, optional
        Gives up searching after that time. Results then depend on the machine; leave it out to be deterministic.
    optimise : bool
        False stops at the heuristics.

    Raises
    ------
    UsageError
        A buffer with a negative size, an empty life, a pinned place that its alignment forbids, or an unknown id.
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
    found = _Best(problem, tuple(best_fit_of_orders(problem, goal)), bound)
    if optimise and found.peak > goal and problem.offset_constraints:
        found.take(shuffle(problem, found.offsets, goal, options.shuffles))
        _integer_program(found, goal)
        if found.peak > goal and found.bound < found.peak:
            _search(found, goal, options, None if seconds is None else began + seconds)
        if found.peak > goal and found.bound < found.peak:
            _take_disjoint(found, options, None if seconds is None else began + seconds)
    elif optimise and found.peak > goal:
        _search(found, goal, options, None if seconds is None else began + seconds)
    if problem.capacity is not None and found.peak > problem.capacity:
        proven = found.bound > problem.capacity
        raise _infeasible(problem, found.bound if proven else found.peak, step, proven)
    return Allocation(found.offsets, found.peak, found.bound, found.peak == found.bound, perf_counter() - began)


class _Best:
    """The lowest layout and the highest bound found so far."""

    def __init__(self, problem: Problem, offsets: tuple[int, ...], bound: int) -> None:
        self.problem = problem
        self.offsets = offsets
        self.peak = top(problem, offsets)
        self.bound = bound

    def take(self, offsets: tuple[int, ...] | None) -> None:
        """Take over a layout if it is lower."""
        if offsets is not None and top(self.problem, offsets) < self.peak:
            self.offsets, self.peak = offsets, top(self.problem, offsets)


def _integer_program(found: _Best, goal: int) -> None:
    """Solve small problems with offset constraints exactly, as a mixed-integer program."""
    solved = milp.solve(found.problem, found.peak) if found.peak > goal else None
    offsets = _checked(found.problem, None if solved is None else solved.offsets)
    if solved is not None and offsets is not None:
        found.take(offsets)
        found.bound = max(found.bound, min(solved.bound, found.peak))


def _take_disjoint(found: _Best, options: AllocateOptions, deadline: float | None) -> None:
    """Take the best layout without offset constraints where it is lower: what may overlap need not.

    Without constraints the search is exact, so that constraints never cost anything.
    """
    problem = replace(found.problem, offset_constraints=())
    bound, _ = max_live_step(problem)
    if bound >= found.peak or any(b.offset is not None for b in problem.buffers):
        return  # buffers that follow may be pinned onto one another
    disjoint = _Best(problem, tuple(best_fit_of_orders(problem, bound)), bound)
    if disjoint.peak > bound:
        _search(disjoint, bound, options, deadline)
    found.take(disjoint.offsets)


def _checked(problem: Problem, offsets: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """`offsets` if they are a layout, else None: floating-point solvers round, and pinned buffers escape the search."""
    if offsets is None or not problem.offset_constraints:
        return offsets
    try:
        validate(replace(problem, capacity=None), Allocation(offsets, top(problem, offsets), 0, False))
    except ValidationError:
        return None
    return offsets


def _search(found: _Best, goal: int, options: AllocateOptions, deadline: float | None) -> None:
    """Lower `found` to `goal`, or bisect between bound and peak, until both meet or the limits are reached.

    `low` is where the next trial must lie above: the bound, or a capacity at which the search gave up.
    """
    t = tables(found.problem)
    pinned = [b.offset for b in found.problem.buffers]
    ranks = rankings(t)
    left, low, capacity = options.nodes, found.bound, goal
    while found.peak > goal and left > 0 and low < found.peak:
        share = left if found.problem.capacity is not None else max(options.first_limit, left // 3)
        result, spent = _rounds(t, capacity, ranks, min(left, share), pinned, options, deadline)
        left -= spent
        found.take(_checked(found.problem, result.offsets))
        if result.offsets is None and result.complete and not found.problem.offset_constraints:
            found.bound = max(found.bound, min(result.next_capacity, found.peak))
            if found.problem.capacity is not None:
                return
        if result.offsets is None:
            low = max(found.bound, capacity + 1)
        capacity = (low + found.peak - 1) // 2
        if deadline is not None and perf_counter() > deadline:
            return


def _rounds(
    t: Tables,
    capacity: int,
    ranks: Sequence[Ints],
    nodes: int,
    pinned: Sequence[int | None],
    options: AllocateOptions,
    deadline: float | None,
) -> tuple[SearchResult, int]:
    """Run every ranking in turn with growing limits until one succeeds or proves that none can."""
    spent, limit = 0, options.first_limit
    while True:
        for rank in ranks:
            result = search(t, capacity, rank, min(limit, nodes - spent), pinned, deadline)
            spent += result.nodes
            late = deadline is not None and perf_counter() > deadline
            if result.complete or spent >= nodes or late:
                return result, spent
        limit *= options.growth


def _infeasible(problem: Problem, needed: int, step: int, proven: bool) -> InfeasibleError:
    """The error that tells why nothing was found within the capacity."""
    at_peak = [b.name or f"buffer {b.id}" for b in problem.buffers if b.lower <= step < b.upper]
    remedy = (
        "these live together: shorten lifetimes or raise the capacity"
        if proven
        else "no layout found within the search's limits, one may exist: raise the limits or the capacity"
    )
    return InfeasibleError(needed, problem.capacity or 0, at_peak, remedy)


def _check(problem: Problem) -> None:
    """Raise `UsageError` for a problem that makes no sense."""
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
    """Raise where pinned buffers overlap or exceed the capacity."""
    excused: set[frozenset[int]] = {frozenset((f.reader, f.writer)) for f in problem.offset_constraints}
    pinned: Sequence[tuple[int, int, int, int, int]] = [
        (b.id, b.offset, b.size, b.lower, b.upper) for b in problem.buffers if b.offset is not None
    ]
    for k, (i, at, size, lower, upper) in enumerate(pinned):
        for j, other, length, first, last in pinned[k + 1 :]:
            meet = lower < last and first < upper and at < other + length and other < at + size
            if meet and frozenset((i, j)) not in excused:
                raise UsageError(f"buffers {i} and {j} are pinned onto each other: move one of them")
