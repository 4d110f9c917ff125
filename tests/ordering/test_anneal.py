"""Annealing of orders: the compiled search against the Python that it follows, and both against all orders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_cascade.errors import UsageError
from tvm_cascade.ordering import peak_of
from tvm_cascade.ordering.anneal import Settings, anneal, settings
from tvm_cascade.ordering.cuts import regions
from tvm_cascade.ordering.model import Model, model
from tvm_cascade.ordering.region import Region
from tvm_cascade.testing.brute_force import least_peak_by_sets
from tvm_cascade.testing.random_graphs import mixed_graph, wired_graph
from tvm_cascade.testing.searches.order_anneal import anneal_in_python


def never() -> bool:
    return False


def whole(m: Model) -> Region:
    return Region(0, m.full, m.live(0))


def file_order(region: Region) -> list[int]:
    inside = region.after & ~region.before
    return [op for op in range(inside.bit_length()) if inside >> op & 1]


@pytest.mark.parametrize("seed", range(40))
def test_the_same_answer_from_the_same_moves(seed: int) -> None:
    graph = mixed_graph(seed, 4 + seed) if seed % 4 else wired_graph(seed, 40)
    m = model(graph, in_place=seed % 3 != 0)
    for region in (whole(m), *regions(m)[:3]):
        order = file_order(region)
        asked = replace(settings(m, region, 0, m.peak(order, region.before), 400, seed), reach=1 + seed % 9)
        found = anneal(m, region, order, asked, never)
        assert found == anneal_in_python(m, region, order, asked, never)
        assert m.peak(found, region.before) <= m.peak(order, region.before)


def test_small_graphs_reach_the_least_peak() -> None:
    reached = 0
    for seed in range(30):
        graph = mixed_graph(seed, 9)
        m = model(graph)
        found = anneal(
            m, whole(m), file_order(whole(m)), settings(m, whole(m), 0, m.peak(range(9)), 4_000, seed=7), never
        )
        peak, least = peak_of(graph, found), least_peak_by_sets(graph)
        assert peak == m.peak(found) >= least
        reached += peak == least
    assert reached >= 29


def test_it_ends_at_the_lowest_peak_asked_for_and_when_the_time_is_up() -> None:
    m = model(wired_graph(1, 80))
    order = file_order(whole(m))
    peak = m.peak(order)
    asked = Settings(peak, 1024, 20_000, 40_000)
    assert anneal(m, whole(m), order, asked, never) == order
    looks: list[int] = []
    for search in (anneal_in_python, anneal):
        looks.clear()
        found = search(m, whole(m), order, replace(asked, lowest=0), lambda: bool(looks.append(1)) or len(looks) == 2)
        assert len(looks) == 2 and m.peak(found) < peak


def test_what_interrupts_it_is_raised() -> None:
    def interrupted() -> bool:
        raise KeyboardInterrupt

    m = model(wired_graph(1, 30))
    with pytest.raises(KeyboardInterrupt):
        anneal(m, whole(m), file_order(whole(m)), Settings(0, 1, 10_000, 100), interrupted)


def test_sums_beyond_64_bits_are_refused() -> None:
    m = model(wired_graph(1, 30))
    huge = replace(m, demand=tuple(d << 40 for d in m.demand))
    with pytest.raises(UsageError, match="bytes in all are more than an order can be searched for"):
        anneal(huge, whole(m), file_order(whole(m)), Settings(0, 1, 10_000, 100), never)
