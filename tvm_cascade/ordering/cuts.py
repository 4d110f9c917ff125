"""Divide and conquer for ordering: cuts, sets of operators that some optimal order runs first, and their proofs.

Serenity (section 3.2) cuts where cells meet and assumes that a single tensor is live there. Two exact rules replace this:

1. An operator that is before or after every other one is a cut, whatever other tensors are live.
2. A downset P is a cut if stepping aside to it never costs memory. `mu` is submodular over downsets (for a storage,
   "it exists" is submodular and "all its readers ran" supermodular): `mu(T & P) + mu(T | P) <= mu(T) + mu(P)`. Reorder
   any order to run P first: each set T it passed becomes T & P and later T | P. Where `mu(T | P) >= mu(P)` the former
   is no dearer than T, where `mu(T & P) >= mu(P)` the latter. Only T with `P - T` and `T - P` both non-empty matter: T
   lacks a maximal operator z of P, thus all that follows z, and holds a minimal operator x outside of P, thus all
   before x.
   Demands of steps move along, except that an overwritten input must die at the same step and a joined storage must
   exist at it: P may not contain an operator that overwrites a storage with readers outside of P, nor split the
   writers of a storage.

Rule 2 covers cells that hand on two tensors (DARTS, NASNet), which the paper's condition does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tvm_cascade.ordering.bounds import ancestors, descendants
from tvm_cascade.ordering.dp import Region
from tvm_cascade.ordering.masks import members
from tvm_cascade.ordering.model import Model
from tvm_cascade.search_monitor import monitor

_MOST_SETS = 500  # downsets enumerated for one condition of rule 2


def regions(m: Model, several_live: bool = True) -> tuple[Region, ...]:
    """The regions between successive cuts of rule 1 and, with `several_live`, of rule 2."""
    above = ancestors(m)
    below = descendants(m, above)
    n = len(above)
    masks = {0, m.full}
    for v in range(n):
        if (above[v] | below[v] | 1 << v) == m.full:
            masks |= {above[v], above[v] | 1 << v}
    chain = sorted(masks, key=int.bit_count)
    if several_live:
        chain = _refine(m, chain, above, below)
    return tuple(Region(a, b, m.live(a)) for a, b in pairwise(chain))


def _refine(m: Model, chain: Sequence[int], above: Sequence[int], below: Sequence[int]) -> list[int]:
    """Add the cuts of rule 2 inside every region, in order of size; where a limit strikes, those found so far."""
    cuts = [chain[0]]
    for low, high in pairwise(chain):
        candidates = {low | above[v] & high | 1 << v for v in members(high & ~low)}
        for p in sorted(candidates, key=lambda mask: (mask.bit_count(), mask)):
            if monitor().over():
                break
            if p != high and not cuts[-1] & ~p and p != cuts[-1] and _is_cut(m, p, cuts[-1], high, above, below):
                cuts.append(p)
        cuts.append(high)
    return cuts


def _is_cut(m: Model, p: int, low: int, high: int, above: Sequence[int], below: Sequence[int]) -> bool:
    """Whether rule 2 proves that some optimal order passes through the set `p`, between the cuts `low` and `high`."""
    for u in members(p & ~low):
        if any(m.storages[s].readers & ~p and m.storages[s].readers & p for s, _ in m.overwrites[u]):
            return False
    if any(s.writers & p and s.writers & ~p for s in m.storages):
        return False
    here = m.live(p)
    inner, outer = p & ~low, high & ~p
    first = [x for x in members(outer) if not above[x] & outer]
    last = [z for z in members(inner) if not below[z] & inner]
    for z in last:
        lacking = 1 << z
        if any(1 << x & below[z] == 0 for x in first):
            aside = outer & ~below[z]
            if not _none_lower(m, p, aside, here, above):
                return False
            for x in first:
                held = above[x] & p
                if held >> z & 1:
                    continue
                if not _none_lower(m, low | held, inner & ~held & ~lacking, here, above):
                    return False
    return True


def _none_lower(m: Model, base: int, extra: int, limit: int, above: Sequence[int]) -> bool:
    """Whether no downset between `base` and `base | extra` has fewer than `limit` live bytes; False where unknown."""
    stack, seen = [(base, m.live(base))], {base}
    while stack:
        done, live = stack.pop()
        if live < limit:
            return False
        for i in members(extra & ~done):
            if not above[i] & ~done:
                following = done | 1 << i
                if following not in seen:
                    seen.add(following)
                    stack.append((following, live + m.step(done, i)[1]))
        if len(seen) > _MOST_SETS:
            return False
    return True
