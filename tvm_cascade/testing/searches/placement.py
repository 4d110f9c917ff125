"""Placement of buffers in an order, and the local search over orders, of `native/placement.c`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.memory.fit import Fit, follows_between, overlapping, top
from tvm_cascade.memory.problem import Buffer, Problem
from tvm_cascade.native.xorshift import Xorshift


def surroundings(problem: Problem) -> list[list[tuple[int, int, int]]]:
    """List for each buffer i the conflicts (j, low, high): with j at offset o, i may not lie in `[o + low, o + high)`."""
    buffers, between = problem.buffers, follows_between(problem)
    around: list[list[tuple[int, int, int]]] = []
    for i, near in enumerate(overlapping(problem)):
        spans = [span for j in near for span in _spans(buffers, i, j, between.get((i, j), ()))]
        around.append([span for span in spans if span[1] < span[2]])
    return around


def _spans(buffers: Sequence[Buffer], i: int, j: int, pairs: Sequence[tuple[bool, int]]) -> list[tuple[int, int, int]]:
    """List the conflicts between buffers i and j, live together; `pairs` are the entries in `follows_between`."""
    low, high = 1 - buffers[i].size, buffers[j].size
    if not pairs:
        return [(j, low, high)]
    return [(j, max(low, 1 - d), high) if writes else (j, low, min(high, d)) for writes, d in pairs]


def place_in_order(
    problem: Problem,
    order: Sequence[int],
    fit: Fit,
    around: Sequence[Sequence[tuple[int, int, int]]],
    limit: int | None = None,
) -> list[int] | None:
    """Place the buffers in `order` and return offsets by position; pinned buffers keep theirs.

    `around` is the result of `surroundings`. Return None as soon as a buffer ends above `limit` bytes, if given.
    """
    buffers = problem.buffers
    offsets: list[int | None] = [b.offset for b in buffers]
    for i in order:
        if offsets[i] is None:
            taken = [(at + low, at + high) for j, low, high in around[i] if (at := offsets[j]) is not None]
            taken.sort()
            place = _gap(buffers[i].alignment, taken, fit)
            if limit is not None and place + buffers[i].size > limit:
                return None
            offsets[i] = place
    return [0 if o is None else o for o in offsets]


def _gap(unit: int, taken: Sequence[tuple[int, int]], fit: Fit) -> int:
    """Find the offset for a buffer, a multiple of `unit`, outside the ascending forbidden ranges `taken`."""
    at, best, slack = 0, None, None
    for low, high in taken:
        if at < low:
            if fit is Fit.FIRST:
                return at
            if slack is None or low - at < slack:
                best, slack = at, low - at
        if high > at:
            at = -(-high // unit) * unit
    return at if best is None else best


def improve_in_python(
    problem: Problem, order: Sequence[int], offsets: tuple[int, ...], goal: int, tries: int, random: Xorshift
) -> tuple[list[int], tuple[int, ...]]:
    """Run `tries` changes of `order`, and return the placement order and the layout."""
    order, around = list(order), surroundings(problem)
    for _ in range(tries):
        peak = top(problem, offsets)
        if peak <= goal:
            break
        if random.draw(2):
            later = random.draw(len(order))
        else:
            at = [k for k, i in enumerate(order) if offsets[i] + problem.buffers[i].size == peak]
            later = at[random.draw(len(at))]
        earlier = random.draw(later + 1)
        trial = order.copy()
        if random.draw(3):
            trial[earlier], trial[later] = trial[later], trial[earlier]
        else:
            trial.insert(earlier, trial.pop(later))
        placed = place_in_order(problem, trial, Fit.FIRST, around, peak)
        if placed is not None and top(problem, placed) <= peak:
            order, offsets = trial, tuple(placed)
    return order, offsets
