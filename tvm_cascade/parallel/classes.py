"""Equivalence classes of stages: two stages with groups that run equal kernels in the same order have the same cost.

A block has few kinds of operators, so most stages are permutations of others. The search (IOS, MLSys 2021, Algorithm 1)
prices a single stage per class.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.parallel.lattice import Neighbours, distinct, mergeable
from tvm_cascade.parallel.problem import Block, members

_BITS = 62  # most bits of a class number while it is packed


def stage_classes(block: Block, endings: np.ndarray) -> np.ndarray:
    """Compute the class number of each set of nodes, from 0; a set that may be merged is a separate class.

    Without kinds, or if all nodes differ in kind, every set is a separate class.
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
    """Find the sets' connected components: an array of each set's first component, an array of the second, and so on; 0
    for none.
    """
    near, rest, groups = Neighbours(block), endings, []
    while rest.any():
        group = rest & np.negative(rest)
        while True:
            grown = (near(group) & endings) | group
            if np.array_equal(grown, group):
                break
            group = grown
        groups.append(group)
        rest = rest & ~group
    return groups


def _numbered(rows: np.ndarray, values: int) -> np.ndarray:
    """Return a number for each column of `rows` (entries below `values`): equal columns, and only these, share a
    number.
    """
    width = max(1, (values - 1).bit_length())
    numbers = np.zeros(rows.shape[1], dtype=np.int64)
    used = 0
    for row in rows:
        if used + width > _BITS:
            numbers = np.unique(numbers, return_inverse=True)[1].astype(np.int64)
            used = int(numbers.max()).bit_length()
        numbers = numbers << width | row
        used += width
    return numbers
