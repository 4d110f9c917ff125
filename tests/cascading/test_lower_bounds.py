"""LowerBounds lie below every cost, and the searches that they steer find what trying everything finds."""

from __future__ import annotations

from itertools import combinations, pairwise
from random import Random
from unittest.mock import patch

import numpy as np
import pytest

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.assemble import Layout
from tvm_cascade.cascading.cuts import cuts_within, smallest_peak
from tvm_cascade.cascading.layout_search import _PRICES, Leaders, Search
from tvm_cascade.memory import Allocation
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
    assert smallest_peak(n, lambda i, j, peak: int(cost[i, j]) if cost[i, j] > peak else 0, floor) == min(peak.values())

    def weight(i: int, j: int) -> tuple[int, int] | None:
        return None if cost[i, j] > 5 else (int(cost[i, j]) % 3, int(cost[i, j]))

    ends = [np.array([j for j in range(i + 1, n + 1) if floor[i, j] <= 5], np.int64) for i in range(n)]
    least = [(after, floor[i, after]) for i, after in enumerate(ends)]
    within = [cuts for cuts in every if peak[cuts] <= 5]
    for price in (0, 1, 7):
        total = {
            c: tuple(
                sum(w)
                for w in zip(*(weight(i, j) or (0, 0) for i, j in pairwise(c)), (0, price * (len(c) - 1)), strict=False)
            )
            for c in within
        }
        longest_last = min(within, key=lambda c: (total[c], c[::-1]), default=None)
        assert cuts_within(n, weight, least, price) == longest_last


def test_lazy_searches_compute_few_costs() -> None:
    """Segments that no floor tells from others are computed where the best cuts may run, not all over the network."""
    n, longest = 60, 12
    asked: list[tuple[int, int]] = []
    floor = np.full((n + 1, n + 1), 10)
    floor[:41, 41:] = 99  # operator 40; all others need less
    for i in range(n):
        floor[i, min(i + longest, n) + 1 :] = 1 << 62

    def cost(i: int, j: int, _peak: int) -> int:
        asked.append((i, j))
        return int(floor[i, j])

    assert smallest_peak(n, cost, floor) == 99
    assert len(asked) <= n

    def weight(i: int, j: int) -> tuple[int, int]:
        asked.append((i, j))
        return 0, j - i

    ends = [np.arange(i + 1, min(i + longest, n) + 1) for i in range(n)]
    least = [(after, after - i) for i, after in enumerate(ends)]
    for price in (1, 3):
        asked.clear()
        cuts = cuts_within(n, weight, least, price)
        assert cuts is not None and len(cuts) == 1 + n // longest
        assert len(asked) <= n


@pytest.mark.parametrize("seed", range(6))
def test_layouts_of_all_prices_come_of_few_searches(seed: int) -> None:
    graph = random_graph(seed)
    options = rows_alone(pixels=True, accumulators=True, stripes=True)
    search = Search(AccessTables(graph, (), accumulators=True), range(len(graph.ops)), options)
    for limit in (search.smallest - 1, search.smallest, search.smallest * 5 // 4):
        every = {price: search._layout(limit, price) for price in _PRICES}
        with patch.object(search, "_layout", wraps=search._layout) as asked:
            assert {*search._of_prices(limit, _PRICES)} == {*every.values()} - {None}
        assert asked.call_count <= (2 if len({*every.values()}) == 1 else len(_PRICES))


def test_layouts_that_cannot_lead_are_not_searched() -> None:
    graph = random_graph(3)
    search = Search(AccessTables(graph, ()), range(len(graph.ops)), rows_alone())
    leaders = Leaders(2)
    assert leaders.worth(0) > 1 << 60
    for peak in (30, 20):
        leaders.add(Allocation((), peak, peak, False), search, Layout.one_by_one(1))
    assert (leaders.worth(19), leaders.worth(20)) == (29, 0)
    least, limits = search.smallest, set[int]()
    with patch.object(search, "_layout", lambda limit, _: limits.add(limit)):
        assert not [*search.layouts(least, least, lambda: least + 1)]
    assert limits == {least, least + 1}
