"""LowerBounds lie below every cost, and the searches that they steer find what trying everything finds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from random import Random

import numpy as np
import pytest

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.cuts import cuts_within, smallest_peak
from tvm_cascade.cascading.layout_search import Search
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.random_windows import random_graph


@pytest.mark.parametrize("seed", range(12))
def test_no_segment_costs_less_than_its_floor(seed: int) -> None:
    graph = random_graph(seed)
    rowwise = [t for t in graph.inputs if graph.tensors[t].row_axis is not None]
    options = rows_alone(pixels=True, accumulators=True, stripes=True, max_macs=2.0)
    for streamed in ((), rowwise):
        search = Search(AccessTables(graph, streamed, accumulators=True), range(len(graph.ops)), options)
        bounds = search.lower_bounds
        for i, j in combinations(range(search.size + 1), 2):
            assert bounds.coarsest[i, j] <= search.costs.exact_cost(i, j, next(search.interleavings(i, j)))
            for how in (*search.interleavings(i, j), *(s.interleaving for s in search.striped(i, j))):
                cost = search.costs.exact_cost(i, j, how)
                assert how.striped or bounds.plain(how.tile)[i, j] <= cost
                assert bounds.any_form[i, j] <= (bounds.stripes if how.striped else bounds.tiles)[i, j] <= cost
                if how.striped and search.costs.extra_macs(i, j, how) == 0:
                    assert bounds.halo_stripes[i, j] <= cost
                if len(search.costs.members(i, j)) > 1:
                    assert bounds.calls[i, j] <= search.costs.calls(i, j, how)


@pytest.mark.parametrize("seed", range(20))
def test_lazy_searches_find_the_best_cuts(seed: int) -> None:
    random = Random(seed)
    n = random.randrange(1, 8)
    floor = np.array([[random.randrange(4) for _ in range(n + 1)] for _ in range(n + 1)])
    cost = floor + np.array([[random.randrange(4) for _ in range(n + 1)] for _ in range(n + 1)])
    every = [(0, *inner, n) for k in range(n) for inner in combinations(range(1, n), k)]
    peak = {cuts: max(cost[i, j] for i, j in pairwise(cuts)) for cuts in every}
    assert smallest_peak(n, lambda i, j: int(cost[i, j]), floor) == min(peak.values())

    def weight(i: int, j: int) -> tuple[int, int] | None:
        return None if cost[i, j] > 5 else (int(cost[i, j]) % 3, int(cost[i, j]))

    def least(i: int) -> Iterator[tuple[int, tuple[int, int]]]:
        return ((j, (0, int(floor[i, j]))) for j in range(i + 1, n + 1) if floor[i, j] <= 5)

    found = cuts_within(n, weight, least)
    within = [cuts for cuts in every if peak[cuts] <= 5]
    total = {
        c: tuple(sum(w) for w in zip(*(weight(i, j) or (0, 0) for i, j in pairwise(c)), strict=True)) for c in within
    }
    assert (found is None) == (not within)
    if found is not None:
        assert total[found] == min(total.values())
