"""Windows of an order that are ordered anew: never worse, exact where the window holds everything."""

from __future__ import annotations

import pytest

from tvm_cascade.ordering import order, peak_of
from tvm_cascade.ordering.model import model
from tvm_cascade.ordering.region import Region
from tvm_cascade.ordering.windows import improve_windows
from tvm_cascade.testing.brute_force import least_peak_by_sets
from tvm_cascade.testing.random_graphs import cell_graph, mixed_graph, wired_graph


@pytest.mark.parametrize("seed", range(20))
def test_one_window_around_everything_is_exact(seed: int) -> None:
    graph = mixed_graph(seed, 9)
    m = model(graph)
    found, _ = improve_windows(m, Region(0, m.full, m.live(0)), range(9), 0, 100_000)
    assert peak_of(graph, found) == m.peak(found) == least_peak_by_sets(graph)


@pytest.mark.parametrize("seed", range(3))
def test_a_part_of_a_large_graph_is_improved_in_the_work_it_may_take(seed: int) -> None:
    graph = wired_graph(seed, 200)
    m = model(graph)
    before = (1 << 30) - 1
    region = Region(before, (1 << 170) - 1, m.live(before))
    rows = list(range(30, 170))
    found, steps = improve_windows(m, region, rows, 0, 40_000)
    assert sorted(found) == rows and graph.is_order([*range(30), *found, *range(170, 200)])
    assert m.peak(found, before) < m.peak(rows, before) and 0 < steps < 45_000
    peak = m.peak(rows, before)
    assert improve_windows(m, region, rows, peak, 40_000) == (rows, 0)


def test_cells_are_proven() -> None:
    found = order(cell_graph(2, 16))
    assert found.optimal and found.peak == 147_456 < found.file_order_peak
