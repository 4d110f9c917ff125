"""Exact arena search: is there a layout within a capacity?

Branch and bound over canonical layouts, in the line of minimalloc (Moffitt, ASPLOS 2024), with stronger inference. Push
every buffer of a layout down as far as it goes: each then rests at 0, on a pinned buffer or on another buffer live with
it. Sort by (offset, rank): a layout is built from the lowest buffer up, each placed at `support`, the lowest offset
allowed by the buffers below. At a node, with `support[i]` for each unplaced buffer i:

- *skipped*: if a buffer later in the order was placed before i, i will not be placed at `support[i]`, so it
  must rest on an unplaced buffer: `low[i] = min(low[j] + size[j])` over the unplaced j live with i; none: fail.
- *canonical*: a candidate at or above `support[i] + size[i]` of any unplaced i leaves a hole that i would fall into.
- *section bound*: buffers live at one step stack up. Sorted by `low`, the stack of the k-th and all after it ends no
  lower than `low[k] + sum(size[k:])` (Jackson's rule for one machine with heads), for every k and every step.
- *decomposition*: once the unplaced buffers fall apart in time, the parts are solved one by one; a part that fails
  sends the search back to the decision that created it, past its solved siblings.
- *symmetry and memory*: equal buffers are placed in the order of their index; failed states are remembered.

With `OffsetConstraint` constraints a layout pushed down need not rest on anything, so nothing is proven then; the
search still finds layouts, with a placed reader or writer forbidding offsets to the partner instead of lifting it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import gcd

import numpy as np
from numpy.typing import NDArray

from tvm_cascade import native
from tvm_cascade.memory import arena_search_compiled
from tvm_cascade.memory.bounds import shareable
from tvm_cascade.memory.problem import Problem

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


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


@dataclass(frozen=True, slots=True)
class _Part:
    """Unplaced buffers connected in time, and the decision behind their separation."""

    members: Ints  # positions, by start of life
    support: Ints  # bytes, by position
    skipped: Mask  # by position
    parent: int  # depth of the frame, -1 for the root
    rest: _Part | None  # parts still to solve


@dataclass(slots=True)
class _Frame:
    part: _Part
    candidates: Iterator[int]  # places in `part.members`
    key: tuple[bytes, bytes, bytes]


@dataclass(slots=True)
class _Search:
    t: Tables
    capacity: int
    rank: Ints
    nodes: int = 0
    exceeded: int = 1 << 62  # bytes: the smallest lower bound above the capacity that pruned a node
    offsets: Ints = field(init=False)
    failed: set[tuple[bytes, bytes, bytes]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.offsets = self.t.fixed.copy()

    def parts(self, members: Ints, support: Ints, skipped: Mask, parent: int, rest: _Part | None) -> _Part | None:
        """Split `members` (by start of lifetime) at steps no lifetime crosses; link the parts in front of `rest`."""
        if not len(members):
            return rest
        end = np.maximum.accumulate(self.t.upper[members])
        cuts = np.flatnonzero(self.t.lower[members[1:]] >= end[:-1]) + 1
        if not len(cuts):
            return _Part(members, support, skipped, parent, rest)
        for piece in reversed(np.split(members, cuts)):
            rest = _Part(piece, support, skipped, parent, rest)
        return rest

    def expand(self, part: _Part) -> _Frame | None:
        """Expand a part to a frame (candidates to place next); None if a bound or a remembered failure prunes it."""
        self.nodes += 1
        t, who = self.t, part.members
        support, skipped = part.support[who], part.skipped[who]
        low = self._low(who, support, skipped)
        if low is None or self._exceeds(who, low):
            return None
        key = (who.tobytes(), support.tobytes(), skipped.tobytes())
        if key in self.failed:
            return None
        lowest_top = (support + t.size[who]).min()
        open_ = np.flatnonzero(~skipped & (support < lowest_top))
        open_ = open_[np.lexsort((self.rank[who[open_]], support[open_]))]
        inside = set(who.tolist())
        return _Frame(part, (int(c) for c in open_ if t.twin[who[c]] not in inside), key)

    def _low(self, who: Ints, support: Ints, skipped: Mask) -> Ints | None:
        if not skipped.any():
            return support
        t, low = self.t, support.copy()
        at = np.flatnonzero(skipped)
        meets = t.meets[np.ix_(who[at], who)]
        if not meets.any(1).all():
            return None
        lift = t.size[who] if t.lift is None else t.lift[np.ix_(who[at], who)]
        for _ in range(2):
            raised = np.maximum(low[at], np.where(meets, low + lift, 1 << 62).min(1))
            if (raised == low[at]).all():
                break
            low[at] = raised
        return low

    def _exceeds(self, who: Ints, low: Ints) -> bool:
        t = self.t
        order = np.argsort(low, kind="stable")
        first, last = t.span[0][who].min(), t.span[1][who].max()
        live = t.sections[first:last, who[order]]
        stack = np.cumsum(np.where(live, t.stacked[who[order]], 0)[:, ::-1], 1)[:, ::-1]
        top = int(np.where(live, low[order] + stack, 0).max()) - t.slack
        top = max(top, int((low + t.size[who]).max()))
        if top > self.capacity:
            self.exceeded = min(self.exceeded, top)
        return top > self.capacity

    def place(self, frame: _Frame, depth: int, c: int) -> _Part | None:
        """Place member `c` of the frame's part at its support and return the remaining parts."""
        t, part = self.t, frame.part
        who = part.members
        i = int(who[c])
        at = int(part.support[i])
        self.offsets[i] = at
        top = at + int(t.size[i])
        support, skipped = part.support.copy(), part.skipped.copy()
        meets = t.meets[i, who]
        passed = (support[who] < at) | ((support[who] == at) & (self.rank[who] < self.rank[i]))
        skipped[who[passed & ~meets]] = True
        near = who[meets]
        near = near[support[near] <= top]
        skipped[near] = False
        beside = set(near.tolist()) if t.partners[i] else set()
        joined = [j for j, _, _ in t.partners[i] if j in beside]
        kept = [max(at, int(support[j])) for j in joined]
        support[near] = top
        support[joined] = kept
        support[near] = -(-support[near] // t.alignment[near]) * t.alignment[near]
        self._clear_of_pinned(near, support)
        if t.lift is not None:
            self._clear_of_partners(near, set(who.tolist()) - {i}, support)
        return self.parts(np.delete(who, c), support, skipped, depth, part.rest)

    def _clear_of_pinned(self, who: Ints, support: Ints) -> None:
        if len(self.t.free) == len(self.t.size):
            return  # nothing is pinned
        for i in who:
            for low, high in self.t.pinned[i]:
                if support[i] < high and low < support[i] + self.t.size[i]:
                    support[i] = -(-high // self.t.alignment[i]) * self.t.alignment[i]

    def _clear_of_partners(self, who: Ints, unplaced: set[int], support: Ints) -> None:
        """Raise supports above the offsets forbidden by offset constraints with placed buffers."""
        t = self.t
        for i in (i for i in who.tolist() if t.partners[i]):
            taken = []
            for j, writes, distance in t.partners[i]:
                if j not in unplaced and t.meets[i, j]:
                    at = int(self.offsets[j])
                    low, high = at - int(t.size[i]) + 1, at + int(t.size[j])
                    taken.append((max(low, at - distance + 1), high) if writes else (low, min(high, at + distance)))
            for low, high in sorted(taken):
                if low <= support[i] < high:
                    support[i] = -(-high // t.alignment[i]) * t.alignment[i]
            if taken and t.pinned[i]:
                self._clear_of_pinned(np.array([i]), support)

    def run(self, nodes: int, expired: Callable[[], bool]) -> bool | None:
        """Search until a layout exists (then in `offsets`) or is excluded; None if a limit ended the search."""
        n = len(self.t.size)
        support = np.zeros(n, np.int64)
        self._clear_of_pinned(self.t.free, support)
        part = self.parts(self.t.free, support, np.zeros(n, bool), -1, None)
        stack: list[_Frame] = []
        while part is not None:
            if self.nodes >= nodes or (self.nodes % 256 == 255 and expired()):
                return None
            frame = self.expand(part)
            depth = part.parent
            if frame is not None:
                depth = len(stack)
                stack.append(frame)
            choice = None
            while choice is None:
                if depth < 0:
                    return False
                frame = stack[depth]
                choice = next(frame.candidates, None)
                if choice is None:
                    self.failed.add(frame.key)
                    depth = frame.part.parent
            del stack[depth + 1 :]
            part = self.place(stack[depth], depth, choice)
        return True


def search(t: Tables, capacity: int, rank: Ints, nodes: int, expired: Callable[[], bool]) -> SearchResult:
    """Search for a layout within `capacity` bytes, expanding at most `nodes` nodes, until `expired()` returns True.

    The compiled library searches if installed (`tvm_cascade.native`), else `search_in_python`: the same nodes, the same
    result.
    """
    library = native.library()
    if library is None:
        return search_in_python(t, capacity, rank, nodes, expired)
    return SearchResult(*arena_search_compiled.run(library, t, capacity, rank, nodes, expired))


def search_in_python(t: Tables, capacity: int, rank: Ints, nodes: int, expired: Callable[[], bool]) -> SearchResult:
    """Search in Python: the reference for the compiled library, and the fallback without it."""
    state = _Search(t, capacity, rank)
    exists = state.run(nodes, expired)
    offsets = tuple(state.offsets.tolist()) if exists else None
    return SearchResult(offsets, exists is not None, state.exceeded, state.nodes)
