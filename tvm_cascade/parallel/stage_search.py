"""The inter-operator scheduler: the cheapest schedule of a block (IOS, Algorithm 1).

`cost[S] = min over endings S' of S of cost[S - S'] + stage(S')`, over all states S from small to large. We deviate:

* States are solved bottom up over arrays of nested states (`lattice.pairs`), not by recursion.
* Branch and bound. Before a stage is priced, the pair has to pass `cost[S - S'] + bound(S') + bound(V - S) <= best
  known schedule`, and pairs are tried in the order of `cost[S - S'] + bound(S')` until that alone is no better than the
  best found for S. A priced stage's cost replaces its bound, so each stage is priced once, and all pairs whose stages
  are priced are compared as arrays. Stages whose groups run equal kernels are one class (`classes`). Bounds come from
  the cost model (`OpBound`); without them all stages are priced. A large block is first searched with few small groups:
  the cost of that schedule is the upper bound of the full search.
* Groups are connected components of the ending; the published code splits them wrongly and skips some endings.
* A merge stage obeys r and s like any other.

Ties go to stages priced before, then to the smaller bound, then to the state met first: the result is deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np

from tvm_cascade.parallel.bounds import Bounds
from tvm_cascade.parallel.classes import stage_classes
from tvm_cascade.parallel.lattice import Pairs, admitted, mergeable, pairs
from tvm_cascade.parallel.problem import CONCURRENT, MERGE, Block, Options, Schedule, Stage, StageCost, members
from tvm_cascade.search_monitor import SearchStopped, monitor

_LARGE = 12  # nodes; a larger block is first searched with groups of _QUICK[0] nodes, _QUICK[1] groups
_QUICK = (2, 4)
_SLACK = 1e-9  # relative; sums of floats in another order must not prune the optimum


class Pricer:
    """Prices each node set once, with the better of the variant's allowed strategies."""

    def __init__(self, block: Block, cost: StageCost, variant: str) -> None:
        self.block = block
        self.cost = cost
        self.variant = variant
        self.known: dict[int, tuple[float, str]] = {}

    def __call__(self, mask: int) -> tuple[float, str]:
        price = self.known.get(mask)
        if price is None:
            price = self.known[mask] = self._price(mask)
        return price

    def _price(self, mask: int) -> tuple[float, str]:
        best = float("inf"), CONCURRENT
        single = not mask & (mask - 1)
        if single or self.variant != "merge":
            best = self.cost.concurrent(self.block.groups(mask)), CONCURRENT
        may_merge = any(mask & whole == mask for whole in self.block.mergeable)
        if not single and self.variant in ("merge", "both") and may_merge:
            merged = self.cost.merged(members(mask))
            if merged is not None and merged < best[0]:
                best = merged, MERGE
        return best

    def stage(self, mask: int) -> Stage:
        """Return the stage priced for `mask`; a merged stage has a single group."""
        if self(mask)[1] == MERGE:
            return Stage(MERGE, (members(mask),))
        return Stage(CONCURRENT, self.block.groups(mask))


def search(block: Block, cost: StageCost, options: Options, known: Sequence[Schedule] = ()) -> Schedule:
    """Search the cheapest schedule of `block` admitted by `options`.

    `known` schedules give branch and bound its first upper bound; they must lie in the search space. Costs may be
    arbitrary as long as `cost.bounds()` are valid bounds. Raises `TooManyStatesError` (internal) above
    `options.max_states`, and `SearchStopped` if a limit strikes before anything better than `known` is found.
    """
    if block.size == 0:
        return Schedule((), 0.0, optimal=True)
    space = pairs(block, options.r, options.s, options.max_states)
    pricer = Pricer(block, cost, options.variant)
    solver = _Solver(space, pricer, Bounds.of(block, space, cost.bounds(), cost.fork_ms))
    allowed = _allowed(block, space.endings, options.variant)
    best = min((s.cost_ms for s in known), default=float("inf"))
    solved: np.ndarray | None = None
    optimal = False
    if block.size > _LARGE:
        quick, choice = solver.solve(best, allowed & admitted(block, space.endings, *_QUICK))
        best, solved = (quick, choice) if quick < best else (best, None)
    with suppress(SearchStopped):
        solved, optimal = solver.solve(best, allowed)[1], True
    if solved is None:
        raise SearchStopped
    stages, at = [], len(space.states) - 1
    while at:
        pair = int(solved[at])
        stages.append(pricer.stage(int(space.endings[space.ending[pair]])))
        at = int(space.before[pair])
    stages.reverse()
    total = sum(pricer(sum(1 << v for v in stage.members))[0] for stage in stages)
    return Schedule(tuple(stages), total, space.count, len(pricer.known), optimal)


class _Solver:
    """Solves the recurrence over a search space; stage costs are cached from one call of `solve` to the next."""

    def __init__(self, space: Pairs, pricer: Pricer, limits: Bounds) -> None:
        self._space, self._pricer, self._limits = space, pricer, limits
        self._class = stage_classes(pricer.block, space.endings)
        self._prices = np.full(len(space.endings), np.nan)  # by class

    def solve(self, upper: float, allowed: np.ndarray) -> tuple[float, np.ndarray]:
        """Compute the best schedule's cost over allowed endings, and every state's best pair.

        The cost is infinite if no schedule is as good as `upper`; a pair is -1 if no schedule through the state can be
        the best.
        """
        space = self._space
        cost = np.full(len(space.states), np.inf)
        cost[0] = 0.0
        choice = np.full(len(space.states), -1, dtype=np.int64)
        upper *= 1.0 + _SLACK
        levels = np.searchsorted(np.bitwise_count(space.states), np.arange(1, len(self._pricer.block.preds) + 2))
        for first, last in pairwise(levels.tolist()):
            monitor().report("stages", first, len(space.states), upper, None, "ms")
            best = self._level(first, last, upper, allowed, cost, choice)
            cost[first:last] = np.where(best * (1.0 - _SLACK) + self._limits.rest[first:last] <= upper, best, np.inf)
        return float(cost[-1]), choice

    def _level(
        self, first: int, last: int, upper: float, allowed: np.ndarray, cost: np.ndarray, choice: np.ndarray
    ) -> np.ndarray:
        """Compute the least costs of the states [first, last), which have equally many nodes; fill in `choice`."""
        space, limits, prices = self._space, self._limits, self._prices
        low, high = int(space.start[first]), int(space.start[last])
        allowed_pairs = np.flatnonzero(allowed[space.ending[low:high]] & (cost[space.before[low:high]] < np.inf))
        row = np.repeat(np.arange(last - first), np.diff(space.start[first : last + 1]))[allowed_pairs]
        pair = allowed_pairs + low
        before, ending = space.before[pair], space.ending[pair]
        price = prices[self._class[ending]]
        fresh = np.isnan(price)
        price[fresh] = limits.stage(row[fresh] + first, before[fresh], ending[fresh])
        least = price + cost[before]
        good = least * (1.0 - _SLACK) + limits.rest[row + first] <= upper
        best = np.full(last - first, np.inf)
        known = np.flatnonzero(good & ~fresh)
        np.minimum.at(best, row[known], least[known])
        known = known[least[known] == best[row[known]]]
        known = known[np.diff(row[known], prepend=-1) > 0]  # of every state the first; rows ascend
        choice[row[known] + first] = pair[known]
        tried = np.flatnonzero(good & fresh & (least * (1.0 - _SLACK) < best[row]))
        tried = tried[np.lexsort((least[tried], row[tried]))]
        columns = (row[tried], least[tried], self._class[ending[tried]], cost[before[tried]], tried)
        limit = monitor()
        costs, priced = best.tolist(), dict[int, float]()  # plain numbers: the loop sees every pair that bounds leave
        for r, bound, c, led, i in zip(*(column.tolist() for column in columns), strict=True):
            if bound * (1.0 - _SLACK) >= costs[r]:
                continue
            price = priced.get(c)
            if price is None:
                limit.check()
                price = priced[c] = self._pricer(int(space.endings[ending[i]]))[0]
            if led + price < costs[r]:
                costs[r], choice[r + first] = led + price, pair[i]
        prices[list(priced)] = list(priced.values())
        return np.array(costs)


def _allowed(block: Block, endings: np.ndarray, variant: str) -> np.ndarray:
    """Find the endings allowed as stages by the variant: `merge` allows single operators and mergeable sets."""
    if variant != "merge":
        return np.ones(len(endings), dtype=bool)
    return (np.bitwise_count(endings) == 1) | mergeable(block, endings)
