"""Orders become arenas: the allocator loses little or nothing of what the order saves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvm_cascade.memory import allocate, max_live, validate
from tvm_cascade.ordering import OrderOptions, file_order, order, peak_of
from tvm_cascade.testing.order_arena import arena_problem
from tvm_cascade.testing.random_graphs import mixed_graph, wired_graph
from tvm_cascade.testing.tflite_graph import graph_of


@pytest.mark.parametrize("seed", range(60))
def test_what_is_live_is_what_the_order_needs(seed: int) -> None:
    graph = mixed_graph(seed, 8)
    if any(op.attrs.get("beside") for op in graph.ops):
        pytest.skip("what is computed beside an accumulator has no tensor of its own")
    problem = arena_problem(graph, file_order(graph), in_place=False)
    assert max_live(problem) == peak_of(graph, file_order(graph), in_place=False)
    validate(problem, allocate(problem))


@pytest.mark.parametrize("seed", range(60))
def test_overwriting_saves_no_more_than_the_order_says(seed: int) -> None:
    graph = mixed_graph(seed, 8)
    if any(op.attrs.get("beside") for op in graph.ops):
        pytest.skip("what is computed beside an accumulator has no tensor of its own")
    shared = arena_problem(graph, file_order(graph))
    apart = arena_problem(graph, file_order(graph), in_place=False)
    assert peak_of(graph, file_order(graph)) <= max_live(shared) <= max_live(apart)
    validate(shared, allocate(shared))


@pytest.mark.parametrize("seed", range(3))
def test_random_networks_lose_little(seed: int) -> None:
    graph = wired_graph(seed, 60)
    found = order(graph, OrderOptions(in_place=False))
    problem = arena_problem(graph, found.order)
    laid = allocate(problem)
    validate(problem, laid)
    assert laid.peak <= found.peak * 1.1


def test_swiftnet_loses_nothing(models: Path) -> None:
    graph = graph_of(models / "swiftnet_vww_uint8.tflite")
    found = order(graph)
    assert allocate(arena_problem(graph, found.order)).peak == found.peak == 275_968
