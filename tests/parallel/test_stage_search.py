"""The search against brute force over all schedules, with arbitrary stage costs."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from tvm_cascade.cost.interface import OpBound
from tvm_cascade.errors import UsageError
from tvm_cascade.parallel.baselines import greedy, sequential
from tvm_cascade.parallel.problem import MERGE, Block, Options
from tvm_cascade.parallel.stage_search import search
from tvm_cascade.testing.stage_blocks import block_from_edges


class ArbitraryCost:
    """A random cost for every stage and, for merges, every set; optionally with true lower bounds."""

    def __init__(self, seed: int, size: int, bounded: bool) -> None:
        self.seed = seed
        rng = Random(seed)
        self.fork_ms = 0.3 if bounded else 0.0
        self.work = [rng.uniform(0.1, 1.0) for _ in range(size)]
        self.bounded = bounded

    def _random(self, *key: object) -> float:
        return Random(repr((self.seed, key))).uniform(0.0, 2.0)

    def concurrent(self, groups):
        longest = max(sum(self.work[v] for v in g) for g in groups)
        if not self.bounded:
            return self._random("c", groups)
        if len(groups) == 1:
            return longest + self._random("c", groups)
        return max(longest, 0.5 * sum(self.work[v] for g in groups for v in g)) + 0.3 + self._random("c", groups)

    def merged(self, members):
        if self._random("may", members) < 0.4:
            return None
        return self._random("m", members) + (0.5 * sum(self.work[v] for v in members) if self.bounded else 0.0)

    def bounds(self):
        if not self.bounded:
            return None
        return [OpBound((0.5 * w,), 0.5 * w, w) for w in self.work]


def random_block(seed: int) -> Block:
    rng = Random(seed)
    n = rng.randint(1, 7)
    edges = [(u, v) for v in range(n) for u in range(v) if rng.random() < 0.35]
    block = block_from_edges(n, edges)
    twins = [v for v in range(n) if block.preds[v] == block.preds[n - 1]]
    mask = sum(1 << v for v in twins)
    return Block(block.preds, (mask,) if len(twins) > 1 else ())


def brute_force(block: Block, cost: ArbitraryCost, variant: str, r: int | None, s: int | None) -> float:
    """Cheapest over every ordered list of non-empty endings, by plain recursion from the front."""
    n = block.size
    edges = [(u, v) for v in range(n) for u in range(n) if block.preds[v] >> u & 1]

    def groups_of(chosen: frozenset[int]) -> tuple[tuple[int, ...], ...]:
        colour = {v: v for v in chosen}
        for _ in chosen:
            for u, v in edges:
                if u in chosen and v in chosen:
                    colour[u] = colour[v] = min(colour[u], colour[v])
        return tuple(tuple(sorted(v for v in chosen if colour[v] == c)) for c in sorted(set(colour.values())))

    def price(chosen: frozenset[int]) -> float:
        groups = groups_of(chosen)
        if len(groups) > (s or n) or any(len(g) > (r or n) for g in groups):
            return float("inf")
        best = float("inf")
        if variant != "merge" or len(chosen) == 1:
            best = cost.concurrent(groups)
        inside = any(all(m >> v & 1 for v in chosen) for m in block.mergeable)
        if variant != "parallel" and len(chosen) > 1 and inside:
            merged = cost.merged(tuple(sorted(chosen)))
            best = min(best, merged) if merged is not None else best
        return best

    def from_here(done: frozenset[int]) -> float:
        left = [v for v in range(n) if v not in done]
        if not left:
            return 0.0
        best = float("inf")
        for picks in product((0, 1), repeat=len(left)):
            chosen = frozenset(v for v, p in zip(left, picks, strict=True) if p)
            closed = all(u in done or u in chosen for u, v in edges if v in chosen)
            if chosen and closed:
                best = min(best, price(chosen) + from_here(done | chosen))
        return best

    return from_here(frozenset())


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("variant", ["merge", "parallel", "both"])
@pytest.mark.parametrize(("r", "s"), [(None, None), (1, 2), (2, 3), (3, 8)])
def test_equals_brute_force(bounded, variant, r, s):
    for seed in range(12):
        block = random_block(seed)
        cost = ArbitraryCost(seed, block.size, bounded)
        found = search(block, cost, Options(variant=variant, r=r, s=s))
        assert found.cost_ms == pytest.approx(brute_force(block, cost, variant, r, s), rel=1e-9, abs=1e-12)
        assert found.optimal


@pytest.mark.parametrize("seed", range(10))
def test_known_schedules_do_not_change_the_result(seed):
    block = random_block(seed + 100)
    cost = ArbitraryCost(seed, block.size, bounded=True)
    options = Options(variant="both", r=None, s=None)
    plain = search(block, cost, options)
    helped = search(block, cost, options, [sequential(block, cost), greedy(block, cost), plain])
    assert helped.stages == plain.stages and helped.cost_ms == plain.cost_ms
    assert helped.priced <= plain.priced


def test_stages_cover_the_block_in_order():
    block = random_block(5)
    found = search(block, ArbitraryCost(5, block.size, False), Options(r=None, s=None))
    done = 0
    for stage in found.stages:
        mask = sum(1 << v for v in stage.members)
        assert not mask & done and all(block.preds[v] & ~(done | mask) == 0 for v in stage.members)
        if stage.strategy != MERGE:
            assert stage.groups == block.groups(mask)
        done |= mask
    assert done == block.full


def test_deterministic():
    block = random_block(7)
    one, two = (search(block, ArbitraryCost(7, block.size, False), Options()) for _ in range(2))
    assert one.stages == two.stages


def test_greedy_and_sequential_of_a_diamond():
    block = block_from_edges(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    cost = ArbitraryCost(0, 4, True)
    assert [s.groups for s in greedy(block, cost).stages] == [((0,),), ((1,), (2,)), ((3,),)]
    assert [s.groups for s in sequential(block, cost).stages] == [((0,),), ((1,),), ((2,),), ((3,),)]


@pytest.mark.parametrize(
    ("wrong", "text"), [({"variant": "best"}, "unknown variant"), ({"unit": "x"}, "unknown unit"), ({"r": 0}, "r must")]
)
def test_wrong_options_are_refused(wrong, text):
    with pytest.raises(UsageError, match=text):
        Options(**wrong)


def test_blocks_refuse_backward_edges_and_too_many_nodes():
    with pytest.raises(UsageError, match="predecessor"):
        block_from_edges(2, [(1, 0)])
    with pytest.raises(UsageError, match="63 nodes"):
        block_from_edges(63, [])
