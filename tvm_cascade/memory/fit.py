"""First-fit and best-fit placement of buffers in a given order: fast, and the starting point of the exact search.

First fit by decreasing size is TFLite Micro's greedy planner; minimalloc and TelaMalloc start from first fit by
decreasing area or lifetime. No order is best for all problems, so `best_fit_of_orders` tries them all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from ctypes import c_int, c_int64, c_void_p
from enum import Enum
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tvm_cascade import native
from tvm_cascade.memory.problem import Buffer, Problem


class Fit(Enum):
    """The gap between placed buffers into which the next buffer goes."""

    FIRST = "first"  # the lowest that is large enough
    BEST = "best"  # the smallest that is large enough, the lowest of equals


def overlapping(problem: Problem) -> list[list[int]]:
    """List for each buffer the positions of buffers with overlapping lifetimes."""
    lower, upper = (np.array([getattr(b, end) for b in problem.buffers], np.int64) for end in ("lower", "upper"))
    meets = [np.flatnonzero((b.lower < upper) & (lower < b.upper)).tolist() for b in problem.buffers]
    return [[j for j in near if j != i] for i, near in enumerate(meets)]


def follows_between(problem: Problem) -> dict[tuple[int, int], list[tuple[bool, int]]]:
    """List offset constraints by the two buffers' positions, in both orders: `(i, j) -> [(i is the writer, distance)]`."""
    position = {b.id: i for i, b in enumerate(problem.buffers)}
    table: dict[tuple[int, int], list[tuple[bool, int]]] = {}
    for f in problem.offset_constraints:
        r, w = position[f.reader], position[f.writer]
        table.setdefault((w, r), []).append((True, f.distance))
        table.setdefault((r, w), []).append((False, f.distance))
    return table


class Placer:
    """Placer for a single problem in many orders."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @cached_property
    def tables(self) -> tuple[NDArray[np.int64], ...]:
        """Return the problem in the library's format: starts and entries of the conflicts, sizes, alignments, pinned
        offsets or -1.
        """
        buffers, follows = self.problem.buffers, self.problem.offset_constraints
        position = {b.id: i for i, b in enumerate(buffers)}
        start, spans = _conflicts(
            tuple((b.size, b.lower, b.upper) for b in buffers),
            tuple((position[f.reader], position[f.writer], f.distance) for f in follows),
        )
        figures = [(b.size, b.alignment, -1 if b.offset is None else b.offset) for b in buffers]
        size, alignment, pinned = np.array(figures, np.int64).reshape(-1, 3).T.copy()
        return start, spans, size, alignment, pinned

    @cached_property
    def pointers(self) -> list[c_void_p]:
        """Return the first four of `tables` as arguments to the library."""
        return [c_void_p(table.ctypes.data) for table in self.tables[:4]]

    def place(
        self, order: Sequence[int] | NDArray[np.int64], fit: Fit, limit: int | None = None
    ) -> NDArray[np.int64] | None:
        """Place the buffers in `order` and return offsets by position; pinned buffers keep theirs.

        Return None as soon as a buffer ends above `limit` bytes, if given.
        """
        offsets, positions = self.tables[4].copy(), np.ascontiguousarray(order, np.int64)
        answer = native.library().tvm_cascade_place_in_order(
            c_int64(len(positions)), c_void_p(positions.ctypes.data), c_int(fit is Fit.BEST), *self.pointers,
            c_int64(-1 if limit is None else limit), c_void_p(offsets.ctypes.data),
        )  # fmt: skip
        if answer < 0:
            raise MemoryError("placing buffers ran out of memory")
        return offsets if answer else None

    def ends(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the byte after each buffer."""
        return offsets + self.tables[2]

    def top(self, offsets: NDArray[np.int64]) -> int:
        """Return the highest byte in use, plus one."""
        return int(self.ends(offsets).max(initial=0))


@lru_cache(maxsize=2)
def _conflicts(
    buffers: tuple[tuple[int, int, int], ...], constraints: tuple[tuple[int, int, int], ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """List for each buffer i the conflicts (j, low, high): with j at offset o, i may not lie in `[o + low, o + high)`.

    Return where each buffer's entries start, and the entries. `buffers` are sizes and lives, `constraints` positions of readers
    and writers, and distances. Problems that differ in pinned offsets alone share the result.
    """
    size, lower, upper = np.array(buffers, np.int64).reshape(-1, 3).T.copy()
    r, w, d = np.array(constraints, np.int64).reshape(-1, 3).T
    both = (lower[r] < upper[w]) & (lower[w] < upper[r])
    r, w, d = r[both], w[both], d[both]
    i, j = _meetings(lower, upper)
    if len(r):
        apart = ~np.isin(i * len(size) + j, np.concatenate([r * len(size) + w, w * len(size) + r]))
        i, j = i[apart], j[apart]
    entries = (
        (w, r, np.maximum(1 - size[w], 1 - d), size[r]),
        (r, w, 1 - size[r], np.minimum(size[w], d)),
        (i, j, 1 - size[i], size[j]),
    )
    spans = np.concatenate(
        [np.stack(columns, axis=1) for columns in entries if len(columns[0])] or [np.zeros((0, 4), int)]
    )
    spans = spans[spans[:, 2] < spans[:, 3]]
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    start = np.searchsorted(spans[:, 0], np.arange(len(size) + 1)).astype(np.int64)
    return start, np.ascontiguousarray(spans[:, 1:], np.int64)


def _meetings(lower: NDArray[np.int64], upper: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """List the pairs of positions with overlapping lives `[lower, upper)`, in both orders, ascending."""
    by_start = np.argsort(lower, kind="stable")
    # that begin during its life
    count = np.searchsorted(lower[by_start], upper[by_start]) - np.arange(1, len(lower) + 1)
    first = np.repeat(np.arange(len(lower)), count)
    behind = np.arange(len(first)) - np.repeat(np.cumsum(count) - count, count) + 1
    one, other = by_start[first], by_start[first + behind]
    i, j = np.concatenate([one, other]), np.concatenate([other, one])
    ascending = np.lexsort((j, i))
    return i[ascending], j[ascending]


def orders(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """List placement orders to try, each a permutation of positions: by size, area, lifetime, start, end and
    contention.
    """
    b = problem.buffers
    size, lower, last = [-o.size for o in b], [o.lower for o in b], [-o.upper for o in b]
    life = [o.lower - o.upper for o in b]
    area = [-s * t for s, t in zip(size, life, strict=True)]
    live = [-most for most in _contention(b)]
    filed = range(len(b))
    by_size = sorted(filed, key=size.__getitem__)  # equals keep their order: ties go by size, then by position
    by_life = sorted(filed, key=life.__getitem__)
    ranked = (
        by_size,
        sorted(filed, key=area.__getitem__),
        *(sorted(by_size, key=key.__getitem__) for key in (life, lower, last, live)),
        sorted(by_life, key=live.__getitem__),
    )
    return tuple(dict.fromkeys(map(tuple, ranked)))


def _contention(buffers: Sequence[Buffer]) -> list[int]:
    """Compute for each buffer the largest sum of live bytes at a step in its lifetime."""
    steps = sorted({b.lower for b in buffers})
    places = [(bisect_left(steps, b.lower), bisect_left(steps, b.upper)) for b in buffers]
    change = [0] * (len(steps) + 1)
    for b, (first, end) in zip(buffers, places, strict=True):
        change[first] += b.size
        change[end] -= b.size
    load = list(accumulate(change))
    return [max(load[first:end], default=b.size) for b, (first, end) in zip(buffers, places, strict=True)]


def top(problem: Problem, offsets: Sequence[int]) -> int:
    """Return the highest byte in use, plus one."""
    return max((o + b.size for b, o in zip(problem.buffers, offsets, strict=True)), default=0)


def best_fit_of_orders(placer: Placer, bound: int) -> tuple[int, ...]:
    """Search the layout with the smallest peak by first fit and best fit over all `orders`; stop at a peak of `bound`
    bytes.
    """
    best: NDArray[np.int64] = np.zeros(0, np.int64)
    peak: int | None = None
    tried = [np.array(order, np.int64) for order in orders(placer.problem)]
    for fit in Fit:
        for order in tried:
            offsets = placer.place(order, fit, None if peak is None else peak - 1)
            if offsets is not None and (peak is None or placer.top(offsets) < peak):
                best, peak = offsets, placer.top(offsets)
            if peak is not None and peak <= bound:
                break
        if peak is not None and peak <= bound:
            break
    return tuple(best.tolist())
