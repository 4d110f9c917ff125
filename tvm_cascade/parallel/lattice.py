"""The search space of a block: states and endings.

A *state* S (IOS, section 4.1) is a set of nodes closed under predecessors, run by some first stages of a schedule. S'
is an *ending* of S, a possible last stage, if S - S' is closed under predecessors too. So the pairs (S, S') are the
pairs of nested states, found by a single subset test on bit masks instead of a recursive enumeration.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tvm_cascade.parallel.problem import Block, members
from tvm_cascade.search_monitor import monitor

_TABLE = 24  # up to so many nodes `distinct` uses a table of all sets, above it sorts


class TooManyStatesError(Exception):
    """Internal: the block has more states than the limit and must be cut."""


def states(block: Block, limit: int | None = None) -> np.ndarray:
    """List all states as int64 masks, ordered by size, then by value; the first is empty, the last is the whole block.

    Raises `TooManyStatesError` above `limit`.
    """
    level = np.zeros(1, dtype=np.int64)
    levels = [level]
    total = 1
    for _ in range(block.size):
        grown = []
        for v, need in enumerate(block.preds):
            ready = level & (need | 1 << v) == need  # the state holds all predecessors of v, but not v
            grown.append(level[ready] | 1 << v)
        level = np.unique(np.concatenate(grown))
        total += len(level)
        if limit is not None and total > limit:
            raise TooManyStatesError(total)
        levels.append(level)
    return np.concatenate(levels)


@dataclass(frozen=True)
class Pairs:
    """All pairs (S, S') of a state and an ending in a block. State k has the indices `[start[k], start[k + 1])`."""

    states: np.ndarray  # int64 masks
    start: np.ndarray  # int64, one more than states
    before: np.ndarray  # int32, index of the state S - S'
    ending: np.ndarray  # int32, index into `endings`
    endings: np.ndarray  # int64 masks, unique, ascending

    @property
    def count(self) -> int:
        return len(self.before)


def pairs(block: Block, r: int | None = None, s: int | None = None, limit: int | None = None) -> Pairs:
    """Find every state with every non-empty ending of at most `s` groups with at most `r` nodes each (None: no limit).

    Raises `TooManyStatesError` above `limit` states, and `SearchStopped` if a time limit strikes first.

    The results for the last two structures are cached, since networks repeat cells with different tensor sizes.
    """
    return _pairs(block.preds, r, s, limit)


@lru_cache(maxsize=2)
def _pairs(preds: tuple[int, ...], r: int | None, s: int | None, limit: int | None) -> Pairs:
    block = Block(preds)
    sets = states(block, limit)
    size = np.bitwise_count(sets).astype(np.int64)
    first_of_size = np.searchsorted(size, np.arange(block.size + 2))
    last = _last_nodes(block, sets, r)
    most = np.bitwise_count(last).astype(np.int64)
    if r is not None and s is not None:
        most = np.minimum(most, r * s)
    before, masks, start = [], [], np.zeros(len(sets) + 1, dtype=np.int64)
    for k, state in enumerate(sets):
        monitor().check()
        low, high = first_of_size[size[k] - most[k]], first_of_size[size[k]]
        ending = sets[low:high] ^ state
        inside = ((ending & ~last[k]) == 0).nonzero()[0]
        before.append((inside + low).astype(np.int32))
        masks.append(ending[inside])
        start[k + 1] = start[k] + len(inside)
    all_before = np.concatenate(before)
    endings, index = distinct(np.concatenate(masks), block.size)
    if r is not None or s is not None:
        return _prune(block, sets, start, all_before, endings, index, r, s)
    return Pairs(sets, start, all_before, index, endings)


def _last_nodes(block: Block, sets: np.ndarray, r: int | None) -> np.ndarray:
    """Return for each state the nodes of its endings with groups of at most `r`: nodes with fewer than `r` successors inside.

    A node of an ending has its successors inside the state in the same group.
    """
    if r is None:
        return sets
    behind = [0] * block.size
    for v in range(block.size - 1, -1, -1):
        for u in members(block.preds[v]):
            behind[u] |= behind[v] | 1 << v
    last = np.zeros_like(sets)
    for v, successors in enumerate(behind):
        few = np.bitwise_count(sets & np.int64(successors)) < r
        last |= np.where(few, sets & np.int64(1 << v), 0)
    return last


def distinct(masks: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct sets among `masks` over `size` nodes, ascending, and each mask's index among them."""
    if size > _TABLE:
        values, index = np.unique(masks, return_inverse=True)
        return values, index.astype(np.int32)
    seen = np.zeros(1 << size, dtype=bool)
    seen[masks] = True
    values = np.flatnonzero(seen)
    position = np.empty(1 << size, dtype=np.int32)  # only entries at `values` are ever touched
    position[values] = np.arange(len(values), dtype=np.int32)
    return values, position[masks]


def _prune(block, sets, start, before, endings, index, r, s) -> Pairs:
    allowed = admitted(block, endings, r, s)
    keep = allowed[index]
    running = np.concatenate(([0], np.cumsum(keep)))
    number = np.cumsum(allowed) - 1
    return Pairs(sets, running[start], before[keep], number[index[keep]].astype(np.int32), endings[allowed])


def admitted(block: Block, endings: np.ndarray, r: int | None, s: int | None) -> np.ndarray:
    """Test each set for at most `s` connected components with at most `r` nodes each."""
    r = block.size if r is None else r
    s = block.size if s is None else s
    fine = np.zeros(len(endings), dtype=bool)
    alive = np.arange(len(endings))
    whole = rest = endings
    near = Neighbours(block)
    for _ in range(s):
        group = rest & np.negative(rest)
        for _ in range(min(r, block.size)):  # a group of r nodes is reached in r - 1 steps, one more shows excess
            grown = (near(group) & whole) | group
            if np.array_equal(grown, group):
                break
            group = grown
        small = np.bitwise_count(group) <= r
        rest = (rest & ~group)[small]
        alive, whole = alive[small], whole[small]
        fine[alive[rest == 0]] = True
        more = rest != 0
        alive, whole, rest = alive[more], whole[more], rest[more]
        if not len(alive):
            break
    return fine


def mergeable(block: Block, sets: np.ndarray) -> np.ndarray:
    """Test each set for being a subset of mergeable nodes in the block."""
    fine = np.zeros(len(sets), dtype=bool)
    for whole in block.mergeable:
        fine |= sets & ~np.int64(whole) == 0
    return fine


class Neighbours:
    """For each set in an array the union of its nodes' neighbours, from tables over 16 bits."""

    def __init__(self, block: Block) -> None:
        self._tables = []
        for base in range(0, max(block.size, 1), 16):
            table = np.zeros(1, dtype=np.int64)
            for mask in block.neighbours[base : base + 16]:
                table = np.concatenate((table, table | np.int64(mask)))
            self._tables.append(table)

    def __call__(self, sets: np.ndarray) -> np.ndarray:
        parts = np.ascontiguousarray(sets).view(np.uint16).reshape(-1, 4)
        union = self._tables[0][parts[:, 0]]
        for k, table in enumerate(self._tables[1:], 1):
            union |= table[parts[:, k]]
        return union
