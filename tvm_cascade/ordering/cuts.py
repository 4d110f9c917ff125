"""Divide and conquer for ordering: cuts, sets of operators that some optimal order runs first, and the proofs.

Serenity (section 3.2) cuts between cells and assumes a single live tensor there. Two exact rules replace this:

1. An operator that is before or after every other one is a cut, whatever other tensors are live.
2. A downset P is a cut if stepping aside to it never costs memory. `mu` is submodular over downsets (for a storage,
   "it exists" is submodular and "all its readers ran" supermodular): `mu(T & P) + mu(T | P) <= mu(T) + mu(P)`. Reorder
   any order to run P first: each set T it passed becomes T & P and later T | P. Where `mu(T | P) >= mu(P)` the former
   is no dearer than T, where `mu(T & P) >= mu(P)` the latter. Only T with `P - T` and `T - P` both non-empty matter: T
   lacks a maximal operator z of P, thus all that follows z, and holds a minimal operator x outside P, thus all
   before x.
   Demands of steps move along, except that an overwritten input must die at the same step and a joined storage must
   exist at it: P may not contain an operator that overwrites a storage with readers outside P, nor split the
   writers of a storage.

Rule 2 covers cells that hand on two tensors (DARTS, NASNet), unlike the paper's condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tvm_cascade.ordering.bounds import ancestors, descendants
from tvm_cascade.ordering.masks import members
from tvm_cascade.ordering.model import Model
from tvm_cascade.ordering.region import Region
from tvm_cascade.search_monitor import monitor

_MOST_SETS = 500  # downsets enumerated for one condition of rule 2


def regions(m: Model, several_live: bool = True) -> tuple[Region, ...]:
    """Split the graph into regions between successive cuts by rule 1 and, with `several_live`, by rule 2."""
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
    """Add the cuts by rule 2 inside every region, in size order; stop early at a limit."""
    cuts = [chain[0]]
    joined = [s.writers for s in m.storages if s.writers & (s.writers - 1)]
    for low, high in pairwise(chain):
        candidates = {low | above[v] | 1 << v: v for v in members(high & ~low)}
        for p in sorted(candidates, key=lambda mask: (mask.bit_count(), mask)):
            if monitor().over():
                break
            if p in (high, cuts[-1]) or cuts[-1] & ~p or not _keeps_demands(m, p, cuts[-1], joined):
                continue
            if _is_cut(m, p, candidates[p], cuts[-1], high, above, below):
                cuts.append(p)
        cuts.append(high)
    return cuts


def _keeps_demands(m: Model, p: int, low: int, joined: Sequence[int]) -> bool:
    """Test that no storage overwritten by `p` has readers outside `p`, and that `p` splits none of the writer sets
    `joined`.
    """
    overwritten = (s for u in members(p & ~low) for s, _ in m.overwrites[u])
    return not any(m.storages[s].readers & ~p for s in overwritten) and not any(w & p and w & ~p for w in joined)


def _is_cut(m: Model, p: int, v: int, low: int, high: int, above: Sequence[int], below: Sequence[int]) -> bool:
    """Test whether rule 2 proves that some optimal order passes through the set `p` between the cuts `low` and `high`.

    `p` is `low`, the operator `v` and all its predecessors: `v` is the only maximal operator beyond `low`.
    """
    aside = high & ~p & ~below[v]
    first = _ready(m, p, aside)
    if not _none_lower(m, p, aside, first, 0):
        return False
    here = m.live(p) if first else 0
    for x in first:
        base = low | above[x] & p
        extra = p & ~base & ~(1 << v)
        if not _none_lower(m, base, extra, _ready(m, base, extra), m.live(base) - here):
            return False
    return True


def _ready(m: Model, done: int, among: int) -> list[int]:
    """Return the operators in `among` that may run right after `done`; none is in `done`."""
    missing = ~done
    return [i for i in members(among) if not m.predecessors[i] & missing]


def _none_lower(m: Model, base: int, extra: int, ready: list[int], spare: int) -> bool:
    """Test that no downset between `base` and `base | extra` has over `spare` live bytes less than `base`.

    `ready` are the operators in `extra` that may run first. Return False if there are too many downsets to tell.
    """
    if spare < 0:
        return False
    stack, seen = [(base, ready, spare)], {base}
    while stack:
        done, ready, spare = stack.pop()
        for k, i in enumerate(ready):
            following = done | 1 << i
            if following in seen:
                continue
            seen.add(following)
            left = spare + m.step(done, i)[1]
            if left < 0 or len(seen) > _MOST_SETS:
                return False
            freed = [s for s in m.successors[i] if extra >> s & 1 and not m.predecessors[s] & ~following]
            stack.append((following, ready[:k] + ready[k + 1 :] + freed, left))
    return True
