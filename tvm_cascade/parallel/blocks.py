"""Cuts a network into independently scheduled blocks.

A node ends a block if every other node precedes or follows it. A stage across such a node has a single group, as the
node connects all of them, so the cut loses no schedule. IOS (MLSys 2021, section 4.2) cuts where a single tensor is
live; here tensors may also bypass the node. A block too large for the search is cut again at the fewest live tensors,
which may lose the optimum: such a schedule is not reported as optimal. (NASNet's cells pass two tensors on.) Networks of
more than about 800 units are then cut finer, as the time of the search grows faster than the states of a block.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.parallel.lattice import TooManyStatesError, states
from tvm_cascade.parallel.problem import Block, Options

_MOST_STATES = 5_000_000  # of a part of a cut block, times the network's nodes


def cut_points(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """Find the nodes comparable with every other node, ascending."""
    size = len(predecessors)
    above = [0] * size
    below = [0] * size
    for v, before in enumerate(predecessors):
        for u in before:
            above[v] |= above[u] | 1 << u
    readers: list[list[int]] = [[] for _ in range(size)]
    for v, before in enumerate(predecessors):
        for u in before:
            readers[u].append(v)
    for v in range(size - 1, -1, -1):
        for w in readers[v]:
            below[v] |= below[w] | 1 << w
    return [v for v in range(size) if (above[v] | below[v]).bit_count() == size - 1]


def split(predecessors: Sequence[Sequence[int]], options: Options) -> tuple[list[range], bool]:
    """Split the nodes into blocks, as ranges in topological order; tell whether the cuts lose no schedule."""
    blocks: list[range] = []
    first = 0
    for v in cut_points(predecessors):
        blocks.append(range(first, v + 1))
        first = v + 1
    if first < len(predecessors):
        blocks.append(range(first, len(predecessors)))
    small: list[range] = []
    for nodes in blocks:
        small += _narrow(predecessors, nodes, options, options.max_states)
    return small, len(small) == len(blocks)


def _narrow(predecessors: Sequence[Sequence[int]], nodes: range, options: Options, most: int) -> list[range]:
    """Cut a block until every part has at most `most` states."""
    if len(nodes) <= options.max_nodes:
        try:
            states(block_of(predecessors, nodes), most)
            return [nodes]
        except TooManyStatesError:
            pass
    at = _narrowest(predecessors, nodes)
    left, right = range(nodes.start, at), range(at, nodes.stop)
    few = min(most, _MOST_STATES // len(predecessors))
    return [part for side in (left, right) for part in _narrow(predecessors, side, options, few)]


def _narrowest(predecessors: Sequence[Sequence[int]], nodes: range) -> int:
    """Find the cut crossed by the fewest nodes, in a tie the nearest to the middle: the first node after it."""
    last_read = {v: v for v in nodes}
    for v in nodes:
        for u in predecessors[v]:
            if u in last_read:
                last_read[u] = v
    quarter = len(nodes) // 4
    positions = range(nodes.start + max(1, quarter), nodes.stop - quarter + (quarter == 0))
    middle = nodes.start + len(nodes) / 2
    return min(
        positions, key=lambda c: (sum(1 for v in range(nodes.start, c) if last_read[v] >= c), abs(c - middle), c)
    )


def block_of(
    predecessors: Sequence[Sequence[int]],
    nodes: Sequence[int],
    classes: Sequence[Sequence[int]] = (),
    kinds: Sequence[int] = (),
) -> Block:
    """Build the block of `nodes`, ascending, renumbered from 0; merge `classes` are limited to it. `kinds[k]` belongs
    to `nodes[k]`.
    """
    preds, place = [], {v: k for k, v in enumerate(nodes)}
    for v in nodes:
        mask = 0
        for u in predecessors[v]:
            if u in place:
                mask |= 1 << place[u]
        preds.append(mask)
    merge = []
    for members in classes:
        mask = sum(1 << place[m] for m in members if m in place)
        if mask & (mask - 1):
            merge.append(mask)
    return Block(tuple(preds), tuple(merge), tuple(kinds))
