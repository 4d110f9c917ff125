"""Exact sizes of the search space: closed forms, the paper's examples, the published block graphs."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from tvm_cascade.parallel.lattice import Pairs, TooManyStatesError, admitted, pairs, states
from tvm_cascade.parallel.problem import Block, members
from tvm_cascade.testing.stage_blocks import block_from_edges, components, count, schedules

EXACT = {
    "squeezenet_fire_bypass_conv": (6, 13, 60, 152),
    "inception_a": (9, None, 1080, 69_032),
    "inception_b": (6, None, 90, 264),
    "inception_c": (12, None, 3780, 5_243_136),
    "inception_d": (8, None, 270, 3776),
    "inception_e": (11, 181, 5040, 4_410_136),
    "nasnet_cell": (18, 2201, 335_331, 8_839_301_008_800),
    "randwire_3": (33, 5421, 3_560_808, None),
}
PUBLISHED = {
    "squeezenet_fire_bypass_conv": (51, 131),
    "inception_e": (4871, 3_757_392),
    "nasnet_cell": (307_841, 7_150_961_274_600),
}
# The fire module with a convolution in its bypass, as in the block files: 0 squeezes, 1 bypasses.
FIRE = block_from_edges(6, [(0, 2), (0, 3), (2, 4), (3, 4), (4, 5), (1, 5)])


def read_block(path) -> Block:
    numbers = [int(w) for w in path.read_text().split()]
    return block_from_edges(numbers[0], zip(numbers[2::2], numbers[3::2], strict=True))


def chains(d: int, c: int) -> Block:
    return block_from_edges(d * c, [(i * c + j, i * c + j + 1) for i in range(d) for j in range(c - 1)])


def published(block: Block) -> tuple[int, int]:
    """Pairs and schedules as the authors' code counts them: it skips endings with a group of two sources."""
    found = pairs(block)

    def one_source(mask: int) -> bool:
        return all(sum(not block.preds[v] & group for v in members(group)) == 1 for group in components(block, mask))

    keep = np.array([one_source(int(e)) for e in found.endings])[found.ending]
    running = np.concatenate(([0], np.cumsum(keep)))
    kept = Pairs(found.states, running[found.start], found.before[keep], found.ending[keep], found.endings)
    return kept.count, schedules(kept)


def test_figure_5():
    found = count(block_from_edges(3, [(0, 1)]))
    assert (found.states, found.pairs, found.schedules) == (6, 12, 8)


@pytest.mark.parametrize(("d", "c"), [(1, 5), (2, 3), (3, 3), (4, 2), (2, 6)])
def test_chains_have_the_closed_form(d, c):
    found = count(chains(d, c))
    assert found.states == (c + 1) ** d
    assert found.pairs == comb(c + 2, 2) ** d - (c + 1) ** d


def test_three_chains_of_three():
    found = count(chains(3, 3))
    assert (found.pairs, found.schedules) == (936, 64_324)


def test_fire_module():
    assert (count(FIRE).pairs, count(FIRE).schedules) == (60, 152)
    assert published(FIRE) == (51, 131)


@pytest.mark.parametrize("name", EXACT)
def test_block_files(test_data, name):
    nodes, some_states, some_pairs, some_schedules = EXACT[name]
    block = read_block(test_data / "cases" / "ios" / "blocks" / f"{name}.txt")
    found = count(block)
    assert block.size == nodes and found.pairs == some_pairs
    assert some_states in (None, found.states) and some_schedules in (None, found.schedules)


def test_randwire_schedules_to_five_digits(test_data):
    found = count(read_block(test_data / "cases" / "ios" / "blocks" / "randwire_3.txt"))
    assert f"{found.schedules:.4e}" == "1.1846e+23"


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_papers_own_counts(test_data, name):
    assert published(read_block(test_data / "cases" / "ios" / "blocks" / f"{name}.txt")) == PUBLISHED[name]


def test_randwire_edge_file_with_a_sink_is_the_block(test_data):
    """`randwire_ws-32-4-0.75-4.txt` and one sink behind nodes 21 and 31, renumbered topologically, give block 3."""
    words = (test_data / "cases" / "ios" / "randwire_ws-32-4-0.75-4.txt").read_text().split()
    numbers = [int(w) for w in words]
    edges = list(zip(numbers[2::2], numbers[3::2], strict=True))
    sinks = sorted(set(range(numbers[0])) - {u for u, _ in edges})
    assert sinks == [21, 31]
    block = block_from_edges(numbers[0] + 1, [*edges, *((s, numbers[0]) for s in sinks)])
    assert count(block).pairs == 3_560_808


def test_pruning_matches_a_plain_filter():
    rng = np.random.default_rng(3)
    for _ in range(20):
        n = int(rng.integers(4, 11))
        block = block_from_edges(n, [(u, v) for v in range(n) for u in range(v) if rng.random() < 0.25])
        everything = pairs(block)
        for r, s in ((1, 2), (2, 2), (3, 8), (2, None), (None, 2)):
            fine = [
                len(components(block, int(e))) <= (s or n)
                and all(g.bit_count() <= (r or n) for g in components(block, int(e)))
                for e in everything.endings
            ]
            assert admitted(block, everything.endings, r, s).tolist() == fine
            assert pairs(block, r, s).count == int(np.array(fine)[everything.ending].sum())


def test_too_many_states_is_noticed_early():
    with pytest.raises(TooManyStatesError):
        states(chains(20, 2), limit=5000)
