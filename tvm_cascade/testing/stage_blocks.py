"""Blocks of the inter-operator scheduler from lists of edges, and exact counts of their search spaces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tvm_cascade.parallel.lattice import Pairs, pairs
from tvm_cascade.parallel.problem import Block

_LIMB = 1 << 40  # schedules are counted in limbs of 40 bits: sums of 2**22 of them fit 64 bits


def block_from_edges(nodes: int, edges: Iterable[tuple[int, int]], mergeable: Iterable[int] = ()) -> Block:
    """A block of `nodes` nodes. Raises `UsageError` as `Block` does."""
    preds = [0] * nodes
    for u, v in edges:
        preds[v] |= 1 << u
    return Block(tuple(preds), tuple(mergeable))


def components(block: Block, mask: int) -> tuple[int, ...]:
    """Connected components of a set of nodes, as masks, in the order of their lowest node."""
    return tuple(sum(1 << v for v in group) for group in block.groups(mask))


@dataclass(frozen=True, slots=True)
class Counts:
    """Sizes of a search space: states with the empty one, pairs (S, S'), schedules (ordered lists of endings)."""

    states: int
    pairs: int
    schedules: int


def count(block: Block, r: int | None = None, s: int | None = None) -> Counts:
    """Exact counts for concurrent execution, every non-empty ending that `r` and `s` admit."""
    space = pairs(block, r, s)
    return Counts(len(space.states), space.count, schedules(space))


def schedules(space: Pairs) -> int:
    """Number of schedules of the whole block: each state has as many as all states before its endings together.

    Python integers hold the totals; the sums run in limbs of 40 bits.
    """
    limbs = np.zeros((4, len(space.states)), dtype=np.int64)
    limbs[0, 0] = 1
    for k in range(1, len(space.states)):
        before = space.before[space.start[k] : space.start[k + 1]]
        carry = 0
        for row in limbs:
            carry += int(row[before].sum())
            row[k] = carry % _LIMB
            carry //= _LIMB
        if carry:
            raise OverflowError("more than 2**160 schedules")
    return sum(int(limbs[i, -1]) * _LIMB**i for i in range(4))
