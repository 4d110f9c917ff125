"""Stages that a search prices together: by comparison with their definition, and that prices stay those of each stage."""

from __future__ import annotations

import random

from tvm_cascade.parallel import Block, Options
from tvm_cascade.parallel.classes import stage_classes
from tvm_cascade.parallel.lattice import pairs
from tvm_cascade.parallel.stage_search import search
from tvm_cascade.testing.stage_blocks import block_from_edges


def drawn(seed: int, size: int = 9, kinds: int = 3) -> Block:
    rng = random.Random(seed)
    edges = [(u, v) for v in range(size) for u in range(v) if rng.random() < 0.25]
    block = block_from_edges(size, edges, [0b111 << rng.randrange(size - 2)])
    return Block(block.preds, block.mergeable, tuple(rng.randrange(kinds) for _ in range(size)))


def key(block: Block, mask: int):
    if any(mask & whole == mask for whole in block.mergeable):
        return mask
    return tuple(sorted(tuple(block.kinds[v] for v in group) for group in block.groups(mask)))


def test_a_class_is_what_its_definition_says():
    for seed in range(20):
        block = drawn(seed)
        endings = pairs(block).endings
        found = stage_classes(block, endings)
        wanted: dict[object, int] = {}
        for mask, number in zip(endings.tolist(), found.tolist(), strict=True):
            assert wanted.setdefault(key(block, mask), number) == number
        assert len(wanted) == len(set(wanted.values())) == found.max() + 1


def test_many_groups_of_many_kinds_stay_apart():
    """More numbers than one packed integer holds."""
    block = Block((0,) * 14, (), tuple(v // 2 for v in range(14)))
    endings = pairs(block).endings
    assert len(endings) == 2**14 - 1 and stage_classes(block, endings).max() + 1 == 3**7 - 1


def test_nothing_is_one_class_without_kinds():
    block = Block((0,) * 5)
    assert len(set(stage_classes(block, pairs(block).endings).tolist())) == 31


class Symmetric:
    """Arbitrary costs that depend on the kinds of each group alone; merged stages have costs of their own."""

    fork_ms = 0.0

    def __init__(self, block: Block, seed: int) -> None:
        self.block, self.seed, self.asked = block, seed, 0

    def concurrent(self, groups):
        self.asked += 1
        drawn = random.Random(repr((self.seed, sorted(tuple(self.block.kinds[v] for v in g) for g in groups))))
        return drawn.uniform(0.5, 1.0) + 0.1 * sum(map(len, groups))

    def merged(self, members):
        return random.Random(repr((self.seed, members))).uniform(0.3, 2.0)

    def bounds(self):
        return None


def test_classes_change_no_result_and_ask_less():
    fewer = 0
    for seed in range(15):
        block = drawn(seed)
        plain = Block(block.preds, block.mergeable)
        for options in (Options(r=None, s=None), Options(r=2, s=3), Options(variant="parallel")):
            costs = Symmetric(block, seed), Symmetric(block, seed)
            a, b = search(block, costs[0], options), search(plain, costs[1], options)
            assert abs(a.cost_ms - b.cost_ms) < 1e-12
            fewer += costs[0].asked < costs[1].asked
    assert fewer > 30
