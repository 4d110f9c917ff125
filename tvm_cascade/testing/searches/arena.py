"""The exact arena search of `native/arena_search.c`; `memory.arena_search` says how it works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tvm_cascade.memory.arena_search import Ints, Mask, SearchResult, Tables


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


def search_in_python(t: Tables, capacity: int, rank: Ints, nodes: int, expired: Callable[[], bool]) -> SearchResult:
    """Search as `memory.arena_search.search` does."""
    state = _Search(t, capacity, rank)
    exists = state.run(nodes, expired)
    offsets = tuple(state.offsets.tolist()) if exists else None
    return SearchResult(offsets, exists is not None, state.exceeded, state.nodes)
