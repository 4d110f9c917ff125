"""Lower bounds on the peak for any order: for each operator the bytes live during the operator in any case.

While v runs these are live in any order: v's outputs and scratch, and every storage written by an ancestor of v (or a
graph input) and read by v or a descendant (or a graph output). Computed with transitive closures.
"""

from __future__ import annotations

from tvm_cascade.ordering.masks import members
from tvm_cascade.ordering.model import Model


def ancestors(m: Model) -> tuple[int, ...]:
    """Compute each operator's mask of operators that must run before."""
    above: list[int] = []
    for direct in m.predecessors:
        mask = direct
        for p in members(direct):
            mask |= above[p]
        above.append(mask)
    return tuple(above)


def descendants(m: Model, above: tuple[int, ...]) -> tuple[int, ...]:
    """Compute each operator's mask of operators that must run after."""
    below = [0] * len(above)
    for i in reversed(range(len(above))):
        mask = 0
        for s in m.successors[i]:
            mask |= below[s] | 1 << s
        below[i] = mask
    return tuple(below)


def step_bounds(m: Model) -> tuple[int, ...]:
    """Compute the least bytes needed while each operator runs, in any order."""
    above = ancestors(m)
    below = descendants(m, above)
    bounds = [need - max((saved for _, saved in m.overwrites[v]), default=0) for v, need in enumerate(m.demand)]
    for s in m.storages:
        exists, needed = (0, m.full)[not s.writers], s.readers  # masks of operators, while which this is certain
        for writer in members(s.writers):
            exists |= below[writer]
        for reader in members(s.readers):
            needed |= above[reader]
        for v in members(exists & ~s.writers & (m.full if s.live_to_end else needed)):
            bounds[v] += s.size
    return tuple(bounds)
