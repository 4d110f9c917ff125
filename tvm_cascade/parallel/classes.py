"""Stages that any cost model prices the same: their groups run equal kernels in the same order.

A cell has few kinds of operators, so most stages of a block are permutations of others. The search (IOS, MLSys 2021,
Algorithm 1) prices one stage of every class.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.parallel.lattice import Neighbours, distinct, mergeable
from tvm_cascade.parallel.problem import Block, members

_BITS = 62  # of numbers that are packed into one


def stage_classes(block: Block, endings: np.ndarray) -> np.ndarray:
    """Per set of nodes the number of its class, from 0; sets that a merge stage may run are classes of their own.

    Without kinds, or where every node is of a kind of its own, so is every set.
    """
    if len(set(block.kinds)) in (0, block.size) or not len(endings):
        return np.arange(len(endings))
    masks, index = distinct(np.concatenate(_groups(block, endings)), block.size)
    names: dict[tuple[int, ...], int] = {(): 0}
    number = [names.setdefault(tuple(block.kinds[v] for v in members(m)), len(names)) for m in masks.tolist()]
    groups = np.sort(np.array(number, dtype=np.int64)[index.reshape(-1, len(endings))], axis=0)
    classes = _numbered(groups, len(names))
    alone = mergeable(block, endings)
    classes[alone] = classes.max() + 1 + np.arange(np.count_nonzero(alone))
    return np.unique(classes, return_inverse=True)[1]


def _groups(block: Block, endings: np.ndarray) -> list[np.ndarray]:
    """Connected components: the first of every set, the second, and so on; empty where a set has no more."""
    near, rest, found = Neighbours(block), endings, []
    while rest.any():
        group = rest & np.negative(rest)
        while True:
            grown = (near(group) & endings) | group
            if np.array_equal(grown, group):
                break
            group = grown
        found.append(group)
        rest = rest & ~group
    return found


def _numbered(rows: np.ndarray, values: int) -> np.ndarray:
    """One number for each column of `rows`, whose entries are below `values`; equal for equal columns alone."""
    width = max(1, (values - 1).bit_length())
    found = np.zeros(rows.shape[1], dtype=np.int64)
    used = 0
    for row in rows:
        if used + width > _BITS:
            found = np.unique(found, return_inverse=True)[1].astype(np.int64)
            used = int(found.max()).bit_length()
        found = found << width | row
        used += width
    return found
