"""The optimal order against brute force over every combination of switches."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Graph
from tvm_cascade.ordering import BASELINES, OrderOptions, footprint, list_scheduler, order, peak_of, solve, validate
from tvm_cascade.ordering.dp import run
from tvm_cascade.testing.brute_force import least_peak_by_sets
from tvm_cascade.testing.random_graphs import mixed_graph, wired_graph

SWITCHES = list(product((False, True), repeat=3))


def least_peak(graph: Graph, in_place: bool) -> int:
    """The lowest peak over all topological orders, each measured by the validator."""
    best = 1 << 60
    n = len(graph.ops)
    stack: list[tuple[int, ...]] = [()]
    while stack:
        prefix = stack.pop()
        if len(prefix) == n:
            best = min(best, peak_of(graph, prefix, in_place))
            continue
        done = set(prefix)
        stack += [(*prefix, i) for i in range(n) if i not in done and done.issuperset(graph.predecessors[i])]
    return best


@pytest.mark.parametrize("block", range(8))
def test_equals_brute_force_whatever_the_switches(block: int) -> None:
    for seed in range(block * 150, block * 150 + 150):
        graph = mixed_graph(seed, 2 + seed % 6)
        in_place = seed % 3 != 0
        best = least_peak(graph, in_place)
        divide, budgeting, dominance = SWITCHES[seed % 8]
        options = OrderOptions(in_place=in_place, divide=divide, budgeting=budgeting, dominance=dominance)
        for chosen in (options, OrderOptions(in_place=in_place)):
            found = order(graph, chosen)
            validate(graph, found.order, found.peak, found.bound, found.optimal, in_place)
            assert (found.peak, found.optimal) == (best, True), seed


@pytest.mark.parametrize("block", range(2))
def test_equals_brute_force_on_larger_graphs(block: int) -> None:
    for seed in range(5_000 + block * 10, 5_010 + block * 10):
        graph = mixed_graph(seed, 10 + seed % 3)
        found = order(graph)
        assert (found.peak, found.optimal) == (least_peak_by_sets(graph), True), seed


@pytest.mark.parametrize("seed", range(4))
def test_bounded_work_ends_with_a_valid_order_and_its_gap(seed: int) -> None:
    graph = wired_graph(seed, 120, 30)
    found = order(graph, OrderOptions(work=5_000, moves=20_000))
    validate(graph, found.order, found.peak, found.bound, found.optimal)
    assert found.gap == (found.peak - found.bound) / found.peak
    assert found.peak <= min(peak_of(graph, f(graph)) for f in BASELINES)


def test_a_thousand_operators() -> None:
    graph = wired_graph(0, 1_000)
    found = order(graph, OrderOptions(work=400_000, moves=100_000))
    validate(graph, found.order, found.peak, found.bound, found.optimal)
    assert found.peak < min(peak_of(graph, f(graph)) for f in BASELINES)


def test_the_same_graph_gives_the_same_order() -> None:
    graph = wired_graph(3, 60)
    assert order(graph).order == order(graph).order


@pytest.mark.parametrize("seed", range(30))
def test_baselines_are_orders(seed: int) -> None:
    graph = mixed_graph(seed, 9)
    for f in (*BASELINES, list_scheduler):
        assert graph.is_order(f(graph))


def test_the_validator_refuses_wrong_claims() -> None:
    graph = wired_graph(0, 10)
    found = order(graph)
    with pytest.raises(ValidationError, match="do not stand in a topological order"):
        footprint(graph, tuple(reversed(found.order)))
    with pytest.raises(ValidationError, match=f"needs {found.peak} bytes"):
        validate(graph, found.order, found.peak + 1, 0, False)
    with pytest.raises(ValidationError, match="does not go with"):
        validate(graph, found.order, found.peak, found.peak - 1, True)


def test_networks_of_one_model_are_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and multiply-accumulates do not matter to an order; bytes of scratch do."""
    runs: list[int] = []

    def counted(*args: object) -> object:
        runs.append(1)
        return run(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(solve, "run", counted)
    graph = wired_graph(11, 25)
    first = order(graph)
    count = len(runs)
    renamed = replace(graph, ops=tuple(replace(op, name=f"other_{op.name}", macs=7) for op in graph.ops), name="other")
    assert replace(order(renamed), seconds=0.0) == replace(first, seconds=0.0)
    assert len(runs) == count > 0
    larger = replace(graph, ops=tuple(replace(op, scratch_bytes=op.scratch_bytes + 512) for op in graph.ops))
    assert order(larger).peak == first.peak + 512
    assert len(runs) > count


def test_equal_graphs_hash_alike() -> None:
    graph, same = wired_graph(11, 25), wired_graph(11, 25)
    assert hash(graph) == hash(same) and graph == same
    assert hash(replace(graph, name="other")) != hash(graph)
