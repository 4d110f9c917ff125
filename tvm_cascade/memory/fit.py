"""First-fit and best-fit placement of buffers in a given order: fast, and the starting point of the exact search.

First fit by decreasing size is TFLite Micro's greedy planner; first fit by decreasing area or lifetime is what
minimalloc and TelaMalloc start from. No order is best for all problems, so `best_fit_of_orders` tries them all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from ctypes import c_int, c_int64, c_void_p
from enum import Enum
from functools import cached_property
from itertools import accumulate
from random import Random

import numpy as np
from numpy.typing import NDArray

from tvm_cascade import native
from tvm_cascade.memory.problem import Buffer, Problem
from tvm_cascade.search_monitor import monitor


class Fit(Enum):
    """The gap between placed buffers into which the next buffer goes."""

    FIRST = "first"  # the lowest that is large enough
    BEST = "best"  # the smallest that is large enough, the lowest of equals


def overlapping(problem: Problem) -> list[list[int]]:
    """For each buffer the positions of the buffers whose lifetimes overlap with its own."""
    lower, upper = (np.array([getattr(b, end) for b in problem.buffers], np.int64) for end in ("lower", "upper"))
    meets = [np.flatnonzero((b.lower < upper) & (lower < b.upper)).tolist() for b in problem.buffers]
    return [[j for j in near if j != i] for i, near in enumerate(meets)]


def follows_between(problem: Problem) -> dict[tuple[int, int], list[tuple[bool, int]]]:
    """Offset constraints by positions of the two buffers, in both orders: `(i, j) -> [(i is the writer, distance)]`."""
    position = {b.id: i for i, b in enumerate(problem.buffers)}
    table: dict[tuple[int, int], list[tuple[bool, int]]] = {}
    for f in problem.offset_constraints:
        r, w = position[f.reader], position[f.writer]
        table.setdefault((w, r), []).append((True, f.distance))
        table.setdefault((r, w), []).append((False, f.distance))
    return table


def surroundings(problem: Problem) -> list[list[tuple[int, int, int]]]:
    """For each buffer i its conflicts (j, low, high): with j at offset o, i may not lie at an offset in `[o + low, o + high)`."""
    buffers, between = problem.buffers, follows_between(problem)
    around: list[list[tuple[int, int, int]]] = []
    for i, near in enumerate(overlapping(problem)):
        spans: list[tuple[int, int, int]] = []
        for j in near:
            low, high = 1 - buffers[i].size, buffers[j].size
            pairs = between.get((i, j), ())
            spans += [] if pairs else [(j, low, high)]
            for writes, distance in pairs:
                spans.append((j, max(low, 1 - distance), high) if writes else (j, low, min(high, distance)))
        around.append([span for span in spans if span[1] < span[2]])
    return around


def place_in_order(
    problem: Problem,
    order: Sequence[int],
    fit: Fit,
    around: Sequence[Sequence[tuple[int, int, int]]],
    limit: int | None = None,
) -> list[int] | None:
    """Offsets by position: pinned buffers keep theirs, all others are placed one after the other in `order`.

    `around` is the result of `surroundings`. None as soon as a buffer ends above `limit` bytes, if that is given.
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


class Placer:
    """Places the buffers of one problem in many orders, in the compiled library where it is installed."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.around = surroundings(problem)
        self.library = native.library()

    @cached_property
    def _tables(self) -> tuple[NDArray[np.int64], ...]:
        """The problem as the library reads it: starts and entries of `around`, sizes, alignments, pinned offsets or -1."""
        buffers = self.problem.buffers
        start = np.cumsum([0, *map(len, self.around)], dtype=np.int64)
        spans = np.array([span for spans in self.around for span in spans], np.int64).reshape(-1, 3)
        figures = [(b.size, b.alignment, -1 if b.offset is None else b.offset) for b in buffers]
        return start, spans, *np.array(figures, np.int64).reshape(-1, 3).T.copy()

    def place(self, order: Sequence[int], fit: Fit, limit: int | None = None) -> list[int] | None:
        """The offsets of `place_in_order`."""
        if self.library is None:
            return place_in_order(self.problem, order, fit, self.around, limit)
        start, spans, size, alignment, pinned = self._tables
        offsets, positions = pinned.copy(), np.array(order, np.int64)
        pointers = [c_void_p(a.ctypes.data) for a in (positions, start, spans, size, alignment, offsets)]
        answer = self.library.tvm_cascade_place_in_order(
            c_int64(len(order)), pointers[0], c_int(fit is Fit.BEST), *pointers[1:5], c_int64(-1 if limit is None else limit),
            pointers[5],
        )  # fmt: skip
        if answer < 0:
            raise MemoryError("placing buffers ran out of memory")
        return offsets.tolist() if answer else None


def _gap(unit: int, taken: Sequence[tuple[int, int]], fit: Fit) -> int:
    """The offset for a buffer, a multiple of `unit`, outside of the ascending ranges `taken` of forbidden offsets."""
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


def orders(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Placement orders to try, each a permutation of positions: by size, area, lifetime, start, end and contention."""
    b = problem.buffers
    n = range(len(b))

    def life(i: int) -> int:
        return b[i].upper - b[i].lower

    live = _contention(b)
    keys = (
        lambda i: (-b[i].size, i),
        lambda i: (-b[i].size * life(i), i),
        lambda i: (-life(i), -b[i].size, i),
        lambda i: (b[i].lower, -b[i].size, i),
        lambda i: (-b[i].upper, -b[i].size, i),
        lambda i: (-live[i], -b[i].size, i),
        lambda i: (-live[i], -life(i), i),
    )
    return tuple(dict.fromkeys(tuple(sorted(n, key=key)) for key in keys))


def _contention(buffers: Sequence[Buffer]) -> list[int]:
    """For each buffer the largest sum of live bytes at a step of its lifetime."""
    steps = sorted({b.lower for b in buffers})
    places = [(bisect_left(steps, b.lower), bisect_left(steps, b.upper)) for b in buffers]
    change = [0] * (len(steps) + 1)
    for b, (first, end) in zip(buffers, places, strict=True):
        change[first] += b.size
        change[end] -= b.size
    load = list(accumulate(change))
    return [max(load[first:end], default=b.size) for b, (first, end) in zip(buffers, places, strict=True)]


def top(problem: Problem, offsets: Sequence[int]) -> int:
    """The highest byte in use, plus one."""
    return max((o + b.size for b, o in zip(problem.buffers, offsets, strict=True)), default=0)


def best_fit_of_orders(problem: Problem, bound: int) -> list[int]:
    """The layout of smallest peak by first fit and best fit over all `orders`; stops at a peak of `bound` bytes."""
    placer = Placer(problem)
    best: list[int] = []
    peak: int | None = None
    for fit in Fit:
        for order in orders(problem):
            offsets = placer.place(order, fit, None if peak is None else peak - 1)
            if offsets is not None and (peak is None or top(problem, offsets) < peak):
                best, peak = offsets, top(problem, offsets)
            if peak is not None and peak <= bound:
                return best
    return best


def shuffle(problem: Problem, offsets: Sequence[int], goal: int, tries: int) -> tuple[int, ...]:
    """Improve a layout by local search over first-fit orders, mostly moving buffers at the peak forward; never worse.

    A limit ends it early.
    """
    placer = Placer(problem)
    best, peak = list(offsets), top(problem, offsets)
    order = sorted(range(len(offsets)), key=lambda i: (offsets[i], i))
    random = Random(0)
    for _ in range(tries):
        if peak <= goal or monitor().over():
            break
        at = [k for k, i in enumerate(order) if best[i] + problem.buffers[i].size == peak]
        k = random.choice(at) if random.random() < 0.7 else random.randrange(len(order))
        trial = [*order[:k], *order[k + 1 :]]
        trial.insert(random.randrange(k + 1), order[k])
        placed = placer.place(trial, Fit.FIRST, peak)
        if placed is not None and top(problem, placed) <= peak:
            order, best, peak = trial, placed, top(problem, placed)
    return tuple(best) if peak < top(problem, offsets) else tuple(offsets)
