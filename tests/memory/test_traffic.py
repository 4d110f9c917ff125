"""Belady's replacement against brute force, and its limits."""

from __future__ import annotations

from functools import cache

import pytest

from tvm_cascade.graph import Graph
from tvm_cascade.memory.traffic import _trace, traffic
from tvm_cascade.ordering import file_order, order, peak_of
from tvm_cascade.testing.random_graphs import mixed_graph


def fewest_misses(trace: list[tuple[int, bool]], capacity: int) -> int:
    """Least fetches over all replacement decisions."""

    @cache
    def best(at: int, resident: frozenset[int], seen: frozenset[int]) -> int:
        if at == len(trace):
            return 0
        b, _ = trace[at]
        miss = int(b not in resident and b in seen)
        full = resident | {b}
        seen |= {b}
        choices = [full] if len(full) <= capacity else [full - {v} for v in full]
        return miss + min(best(at + 1, frozenset(c), seen) for c in choices)

    return best(0, frozenset(), frozenset())


@pytest.mark.parametrize("seed", range(60))
def test_fetches_are_the_fewest_possible(seed: int) -> None:
    graph = mixed_graph(seed, 3)
    _, trace = _trace(graph, file_order(graph), 1)
    if len(trace) > 24:
        pytest.skip("too long for brute force")
    for capacity in (1, 2, 4):
        assert traffic(graph, file_order(graph), capacity, 1).read == fewest_misses(trace, capacity)


def fetches(graph: Graph, on_chip: int) -> int:
    return traffic(graph, order(graph).order, on_chip, 1).bytes


@pytest.mark.parametrize("seed", range(20))
def test_more_memory_never_moves_more(seed: int) -> None:
    graph = mixed_graph(seed, 7)
    moved = [traffic(graph, file_order(graph), size, 1).read for size in range(0, 60, 4)]
    assert moved == sorted(moved, reverse=True)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_moves_once_the_peak_fits(seed: int) -> None:
    graph = mixed_graph(seed, 7)
    assert fetches(graph, peak_of(graph, order(graph).order, in_place=False)) == 0
