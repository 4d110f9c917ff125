"""The inter-operator scheduler: the cheapest schedule of one block (IOS, Algorithm 1).

`cost[S] = min over endings S' of S of cost[S - S'] + stage(S')`, over all states S from small to large. We deviate:

* States are solved bottom up over arrays of nested states (`lattice.pairs`), not by recursion.
* Branch and bound. Before a stage is priced, the pair has to pass `cost[S - S'] + bound(S') + bound(V - S) <= best
  known schedule`, and pairs are tried in the order of `cost[S - S'] + bound(S')` until that alone is no better than
  the best found for S. Bounds come from the cost model (`OpBound`); without them all stages are priced.
* Groups are connected components of the ending; the published code splits them wrongly and skips some endings.
* A merge stage obeys r and s like any other.

Ties go to the pair with the smaller bound, then to the state met first: the result is deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_cascade.parallel.bounds import Bounds
from tvm_cascade.parallel.lattice import Pairs, pairs
from tvm_cascade.parallel.problem import CONCURRENT, MERGE, Block, Options, Schedule, Stage, StageCost, members

_SLACK = 1e-9  # relative; sums of floats in another order must not prune the optimum


class Pricer:
    """Prices each set of nodes once, with the better of the strategies that the variant allows."""

    def __init__(self, block: Block, cost: StageCost, variant: str) -> None:
        self.block = block
        self.cost = cost
        self.variant = variant
        self.known: dict[int, tuple[float, str]] = {}

    def __call__(self, mask: int) -> tuple[float, str]:
        found = self.known.get(mask)
        if found is None:
            found = self.known[mask] = self._price(mask)
        return found

    def _price(self, mask: int) -> tuple[float, str]:
        best = float("inf"), CONCURRENT
        single = not mask & (mask - 1)
        if single or self.variant != "merge":
            best = self.cost.concurrent(self.block.groups(mask)), CONCURRENT
        if not single and self.variant in ("merge", "both") and self._may_merge(mask):
            merged = self.cost.merged(members(mask))
            if merged is not None and merged < best[0]:
                best = merged, MERGE
        return best

    def _may_merge(self, mask: int) -> bool:
        return any(mask & whole == mask for whole in self.block.mergeable)

    def stage(self, mask: int) -> Stage:
        """The stage that `mask` was priced as; a merged stage has one group."""
        if self(mask)[1] == MERGE:
            return Stage(MERGE, (members(mask),))
        return Stage(CONCURRENT, self.block.groups(mask))


def search(block: Block, cost: StageCost, options: Options, known: Sequence[Schedule] = ()) -> Schedule:
    """The cheapest schedule of `block` among those that `options` admit.

    `known` schedules give branch and bound its first upper bound; they must lie in the search space. Costs may be
    arbitrary as long as `cost.bounds()` are bounds of them. Raises `TooManyStatesError` (internal) above
    `options.max_states`.
    """
    if block.size == 0:
        return Schedule((), 0.0, optimal=True)
    space = pairs(block, options.r, options.s, options.max_states)
    pricer = Pricer(block, cost, options.variant)
    best = min((s.cost_ms for s in known), default=float("inf"))
    solved = _solve(block, space, pricer, best)
    stages, at = [], len(space.states) - 1
    while at:
        pair = int(solved[at])
        stages.append(pricer.stage(int(space.endings[space.ending[pair]])))
        at = int(space.before[pair])
    stages.reverse()
    total = sum(pricer(sum(1 << v for v in stage.members))[0] for stage in stages)
    return Schedule(tuple(stages), total, space.count, len(pricer.known), optimal=True)


def _solve(block: Block, space: Pairs, pricer: Pricer, upper: float) -> np.ndarray:
    """Index of the best pair of every state (-1 where no schedule through it can be the best)."""
    limits = Bounds.of(block, space, pricer.cost.bounds(), pricer.cost.fork_ms)
    allowed = _allowed(block, space.endings, pricer.variant)
    cost = np.full(len(space.states), np.inf)
    cost[0] = 0.0
    choice = np.full(len(space.states), -1, dtype=np.int64)
    upper *= 1.0 + _SLACK
    for k in range(1, len(space.states)):
        low, high = space.start[k], space.start[k + 1]
        before, ending = space.before[low:high], space.ending[low:high]
        least = limits.stage(k, before, ending) + cost[before]
        least[~allowed[ending]] = np.inf
        tried = np.flatnonzero((least * (1.0 - _SLACK) + limits.rest[k] <= upper) & (least < np.inf))
        best = float("inf")
        if len(tried):
            first = tried[np.argmin(least[tried])]
            best, choice[k] = cost[before[first]] + pricer(int(space.endings[ending[first]]))[0], low + first
            tried = tried[least[tried] * (1.0 - _SLACK) < best]  # few are left to sort
        for i in tried[np.argsort(least[tried], kind="stable")][1:]:
            if least[i] * (1.0 - _SLACK) >= best:
                break
            total = cost[before[i]] + pricer(int(space.endings[ending[i]]))[0]
            if total < best:
                best, choice[k] = total, low + i
        cost[k] = best if best * (1.0 - _SLACK) + limits.rest[k] <= upper else np.inf
    return choice


def _allowed(block: Block, endings: np.ndarray, variant: str) -> np.ndarray:
    """Endings that the variant can run at all: merging alone runs one operator or one merged set."""
    if variant != "merge":
        return np.ones(len(endings), dtype=bool)
    fine = np.bitwise_count(endings) == 1
    for whole in block.mergeable:
        fine |= endings & ~np.int64(whole) == 0
    return fine
