"""Exact arena search: is there a layout within a capacity?

Branch and bound over canonical layouts, in the line of minimalloc (Moffitt, ASPLOS 2024), with stronger inference. Push
every buffer of a layout down as far as it goes: each then rests at 0, on a pinned buffer or on another buffer live with
it. Sort by (offset, rank): a layout is built from the lowest buffer up, each placed at `support`, the lowest offset
allowed by the buffers below. At a node, with `support[i]` for each unplaced buffer i:

- *skipped*: if a buffer later in the order was placed before i, i will not be placed at `support[i]`, so it
  must rest on an unplaced buffer: `low[i] = min(low[j] + size[j])` over the unplaced j live with i; none: fail.
- *canonical*: a candidate at or above `support[i] + size[i]` of any unplaced i leaves a hole that i would fall into.
- *section bound*: buffers live at one step stack up. Sorted by `low`, the stack of the k-th and all after it ends no
  lower than `low[k] + sum(size[k:])` (Jackson's rule for a single machine with heads), for every k and every step.
- *decomposition*: once the unplaced buffers fall apart in time, the parts are solved one by one; a part that fails
  sends the search back to the decision that created it, past its solved siblings.
- *symmetry and memory*: equal buffers are placed in the order of their index; failed states are remembered.

With `OffsetConstraint` constraints a layout pushed down need not rest on anything, so nothing is proven then; the
search still finds layouts, with a placed reader or writer forbidding offsets to the partner instead of lifting it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_int64, c_void_p
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from tvm_cascade import native
from tvm_cascade.memory.bounds import shareable
from tvm_cascade.memory.problem import Problem

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
_FOUND, _NONE, _LIMIT = 1, 0, -1  # return values of the library: layout found, none exists, limit reached
_ARRAYS = (
    "size", "alignment", "lower", "upper", "meets", "span_first", "span_last", "twin",
    "pinned_start", "pinned", "free", "partner_start", "partners", "stacked", "lift",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a `search` run."""

    offsets: tuple[int, ...] | None  # bytes, by position; None where no layout was found
    complete: bool  # no limit ended the search: without offsets the capacity is proven too small
    next_capacity: int  # bytes; where so proven: no layout has a smaller peak
    nodes: int  # expanded


@dataclass(frozen=True, slots=True)
class Tables:
    """A problem as arrays, indexed by position in `Problem.buffers`."""

    size: Ints  # bytes
    padded: Ints  # bytes, `size` rounded up to the common unit of all alignments
    alignment: Ints  # bytes
    lower: Ints  # first step of each lifetime
    upper: Ints  # first step after it
    meets: Mask  # (n, n): live together at some step
    sections: Mask  # (steps, n): buffers live at each step whose live set is not part of another step's
    span: tuple[Ints, Ints]  # first section of each lifetime, and the one after its last
    twin: tuple[int, ...]  # the previous buffer of equal size, lifetime and alignment, or -1
    fixed: Ints  # offsets of pinned buffers; 0 for the others
    pinned: tuple[tuple[tuple[int, int], ...], ...]  # for each buffer, [low, high) of the pinned ones live with it
    free: Ints  # positions that are not pinned, by start of lifetime
    partners: tuple[tuple[tuple[int, bool, int], ...], ...]  # offset constraints: (other, this one writes, distance)
    stacked: Ints  # bytes a buffer adds to a stack of buffers live at one step: `padded` less what it may share
    lift: Ints | None  # (n, n): bytes by which resting on j lifts i; None (no offset constraints): the size of j

    @property
    def slack(self) -> int:
        return int((self.padded - self.size).max(initial=0))


def tables(problem: Problem) -> Tables:
    """Build the tables of a problem."""
    b = problem.buffers
    unit = gcd(*(x.alignment for x in b)) if b else 1
    size = np.array([x.size for x in b], np.int64)
    lower, upper = np.array([x.lower for x in b], np.int64), np.array([x.upper for x in b], np.int64)
    meets = (lower[:, None] < upper[None]) & (lower[None] < upper[:, None])
    np.fill_diagonal(meets, False)
    places = [(j, x.offset, x.offset + x.size) for j, x in enumerate(b) if x.offset is not None]
    pinned = tuple(tuple(sorted((start, end) for j, start, end in places if meets[i, j])) for i in range(len(b)))
    free = np.array([i for i in np.argsort(lower, kind="stable") if b[i].offset is None], np.int64)
    sections = _sections(lower, upper)
    span = (sections.argmax(0), len(sections) - sections[::-1].argmax(0)) if len(b) else (lower, upper)
    padded = -(-size // unit) * unit
    alignment, fixed = (
        np.array(numbers, np.int64) for numbers in ([x.alignment for x in b], [x.offset or 0 for x in b])
    )
    partners = _sharing(problem, padded)
    return Tables(
        size, padded, alignment, lower, upper, meets, sections, span, _twins(problem), fixed, pinned, free, *partners
    )


def _sharing(problem: Problem, padded: Ints) -> tuple[tuple[tuple[tuple[int, bool, int], ...], ...], Ints, Ints | None]:
    """Build `partners`, `stacked` and `lift`."""
    position = {b.id: i for i, b in enumerate(problem.buffers)}
    partners: list[list[tuple[int, bool, int]]] = [[] for _ in position]
    stacked = padded.copy()
    if not problem.offset_constraints:
        return tuple(() for _ in position), stacked, None
    lift = np.broadcast_to(padded, (len(padded), len(padded))).copy()
    for f in problem.offset_constraints:
        r, w = position[f.reader], position[f.writer]
        partners[w].append((r, True, f.distance))
        partners[r].append((w, False, f.distance))
        stacked[w] = max(0, stacked[w] - shareable(f, problem.buffers[r], problem.buffers[w]))
        lift[w, r] = lift[r, w] = 0
    return tuple(tuple(p) for p in partners), stacked, lift


def _sections(lower: Ints, upper: Ints) -> Mask:
    """List the live sets at the starts of lifetimes, without sets contained in another."""
    live = np.array([(lower <= t) & (t < upper) for t in sorted(set(lower.tolist()))]).reshape(-1, len(lower))
    count = live.sum(1)
    members = live.astype(np.float32)  # exact up to 2 ** 24, and multiplied by a library, as integers are not
    inside = (members @ members.T) == count[:, None]  # [a, b]: a is part of b
    smaller = (count[:, None] < count[None]) | (np.arange(len(live))[:, None] > np.arange(len(live))[None])
    return live[~(inside & smaller).any(1)]


def _twins(problem: Problem) -> tuple[int, ...]:
    last: dict[tuple[int, int, int, int], int] = {}
    twin = []
    special = {i for f in problem.offset_constraints for i in (f.reader, f.writer)}
    for i, x in enumerate(problem.buffers):
        key = (x.size, x.lower, x.upper, x.alignment)
        alike = x.offset is None and x.id not in special
        twin.append(last.get(key, -1) if alike else -1)
        if alike:
            last[key] = i
    return tuple(twin)


def rankings(t: Tables) -> tuple[Ints, ...]:
    """Rank the buffers, to decide between candidates at equal offset; no single ranking suits all problems.

    Each array holds ranks by position. Keys, largest first: contention (bytes live at the worst step in a lifetime),
    area (size x lifetime) and lifetime length, in four orders.
    """
    life = t.upper - t.lower
    area = life * t.size
    load = (t.sections * t.padded).sum(1)
    contention = np.where(t.sections, load[:, None], 0).max(0, initial=0)
    ranks = []
    for keys in (
        (area, life, contention),
        (contention, life, area),
        (contention, area, life),
        (life, area, contention),
    ):
        rank = np.empty(len(life), np.int64)
        rank[np.lexsort([-k for k in reversed(keys)])] = np.arange(len(life))
        ranks.append(rank)
    return tuple(ranks)


class _CTables(ctypes.Structure):
    """`Tables` as a C structure; keeps references to the arrays pointed to."""

    _fields_ = [("n", c_int64), ("free_count", c_int64), ("slack", c_int64), *((name, c_void_p) for name in _ARRAYS)]

    def __init__(self, t: Tables) -> None:
        pinned_start, pinned = _ragged(t.pinned, 2)
        partner_start, partners = _ragged(t.partners, 3)
        numbers = {
            "size": t.size, "alignment": t.alignment, "lower": t.lower, "upper": t.upper, "twin": t.twin, "free": t.free,
            "span_first": t.span[0], "span_last": t.span[1], "stacked": t.stacked, "lift": t.lift,
            "pinned_start": pinned_start, "pinned": pinned, "partner_start": partner_start, "partners": partners,
        }  # fmt: skip
        flags = {"meets": np.ascontiguousarray(t.meets, np.uint8)}
        self.arrays = flags | {k: np.ascontiguousarray(v, np.int64) for k, v in numbers.items() if v is not None}
        super().__init__(len(t.size), len(t.free), t.slack, **{k: v.ctypes.data for k, v in self.arrays.items()})


def _ragged(rows: Sequence[Sequence[tuple[int, ...]]], width: int) -> tuple[Ints, Ints]:
    """Flatten rows with different lengths: the index of each row's first entry, and all entries, `width` numbers each."""
    start = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    return start, np.array([entry for row in rows for entry in row], np.int64).reshape(-1, width)


def search(t: Tables, capacity: int, rank: Ints, nodes: int, expired: Callable[[], bool]) -> SearchResult:
    """Search for a layout within `capacity` bytes, expanding at most `nodes` nodes, until `expired()` returns True.

    An exception in `expired`, or Ctrl-C, ends the search and is raised again here.
    """
    offsets, rank = t.fixed.copy(), np.ascontiguousarray(rank, np.int64)
    exceeded, expanded = c_int64(), c_int64()
    with native.Stop(expired) as stop:
        answer = native.library().tvm_cascade_search_arena(
            ctypes.byref(_CTables(t)), c_int64(capacity), c_void_p(rank.ctypes.data), c_int64(nodes), stop.function,
            c_void_p(offsets.ctypes.data), ctypes.byref(exceeded), ctypes.byref(expanded),
        )  # fmt: skip
    if answer not in (_FOUND, _NONE, _LIMIT):
        raise MemoryError("the arena search ran out of memory: give it fewer nodes")
    found = tuple(offsets.tolist()) if answer == _FOUND else None
    return SearchResult(found, answer != _LIMIT, exceeded.value, expanded.value)
