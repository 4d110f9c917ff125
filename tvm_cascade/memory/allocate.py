"""The allocator: heuristics first, the exact search where they miss the bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.memory.bounds import max_live_step
from tvm_cascade.memory.fit import best_fit_of_orders, top
from tvm_cascade.memory.problem import Allocation, Problem


@dataclass(frozen=True, slots=True)
class AllocateOptions:
    """How far the allocator goes."""

    nodes: int = 20_000  # search nodes in all; deterministic, unlike `seconds`


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
    _check(problem)
    bound, step = max_live_step(problem)
    if problem.capacity is not None and bound > problem.capacity:
        raise _infeasible(problem, bound, step, proven=True)
    goal = bound if problem.capacity is None else problem.capacity
    offsets = best_fit_of_orders(problem, goal)
    peak = top(problem, offsets)
    if problem.capacity is not None and peak > problem.capacity:
        raise _infeasible(problem, peak, step, proven=False)
    return Allocation(tuple(offsets), peak, bound, peak == bound, perf_counter() - began)


def _infeasible(problem: Problem, needed: int, step: int, proven: bool) -> InfeasibleError:
    at_peak = [b.name or f"buffer {b.id}" for b in problem.buffers if b.lower <= step < b.upper]
    remedy = (
        "these live together: shorten lifetimes or raise the capacity"
        if proven
        else "no layout found within the search's limits, one may exist: raise the limits or the capacity"
    )
    return InfeasibleError(needed, problem.capacity or 0, at_peak, remedy)


def _check(problem: Problem) -> None:
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
    for f in problem.follows:
        if f.reader not in ids or f.writer not in ids or f.reader == f.writer:
            raise UsageError(f"buffer {f.writer} follows {f.reader}: both must be buffers of the problem")
    _check_pinned(problem)


def _check_pinned(problem: Problem) -> None:
    excused: set[frozenset[int]] = {frozenset((f.reader, f.writer)) for f in problem.follows}
    pinned: Sequence[tuple[int, int, int, int, int]] = [
        (b.id, b.offset, b.size, b.lower, b.upper) for b in problem.buffers if b.offset is not None
    ]
    for k, (i, at, size, lower, upper) in enumerate(pinned):
        for j, other, length, first, last in pinned[k + 1 :]:
            meet = lower < last and first < upper and at < other + length and other < at + size
            if meet and frozenset((i, j)) not in excused:
                raise UsageError(f"buffers {i} and {j} are pinned onto each other: move one of them")
