"""The graph split: cuts, sides that are never empty, stitching, the searches around cuts and the last sweep."""

from __future__ import annotations

from dataclasses import replace as changed
from itertools import combinations

import numpy as np
import pytest

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.substitution.costs import CUDNN, Figure, Latency
from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref
from tvm_cascade.substitution.evaluate import run
from tvm_cascade.substitution.metaflow import SearchOptions, search
from tvm_cascade.substitution.pattern import Matcher
from tvm_cascade.substitution.rules import ALL_RULES, PAPER_RULES, rules
from tvm_cascade.substitution.split import bisect, capacities, first_side, optimize, subgraphs
from tvm_cascade.testing.looks import after_looks


def random_dag(seed: int, count: int = 14) -> Dag:
    """Element-wise operators, the last ones all outputs."""
    random = np.random.default_rng(seed)
    pool = Pool()
    values = [pool.input(f"x{i}", (1, 4)) for i in range(3)]
    for _ in range(count):
        a, b = (values[int(random.integers(max(0, len(values) - 5), len(values)))] for _ in range(2))
        kind = str(random.choice(["add", "mul", "sub", "tanh", "relu"]))
        values.append(pool.make(kind, a) if kind in ("tanh", "relu") else pool.make(kind, a, b))
    used = {r for v in values for r in v.node.inputs}
    return Dag(pool, tuple(values[:3]), tuple(dict.fromkeys(v for v in values[3:] if v not in used)))


def chain_of_modules(count: int) -> Dag:
    """Fire-like modules: a squeeze, two expands, a concatenation."""
    pool = Pool()
    attrs = {"strides": (1, 1), "dilation": (1, 1), "groups": 1, "layout": "NCHW", "act": ""}

    def conv(x: Ref, out: int, k: int, name: str) -> Ref:
        w = pool.weight(name, (out, x.shape[1], k, k))
        return pool.make("relu", pool.make("conv2d", x, w, padding=(k // 2,) * 4, **attrs))

    x = y = pool.input("x", (1, 64, 14, 14))
    for i in range(count):
        y = conv(y, 16, 1, f"s{i}")
        y = pool.make("concat", conv(y, 32, 1, f"a{i}"), conv(y, 32, 3, f"b{i}"), axis=1)
    return Dag(pool, (x,), (y,))


def v100() -> Latency:
    return Latency("latency", CUDNN, model=AnalyticCost(find_device("v100")))


def closed(side: set[Node], dag: Dag) -> bool:
    inside = set(dag.nodes)
    return all(r.node in side for n in side for r in n.inputs if r.node in inside)


def cut_cost(side: set[Node], dag: Dag, capacity: dict[Node, int]) -> int:
    """Capacities of the first side's operators that the second side reads."""
    return sum(capacity[n] for n in side if any(r.node is n for m in dag.nodes if m not in side for r in m.inputs))


@pytest.mark.parametrize("seed", range(25))
def test_cut_is_minimum_by_brute_force(seed: int) -> None:
    dag = random_dag(seed, 11)
    nodes = dag.nodes
    if len(nodes) < 4:
        pytest.skip("too small a graph")
    random = np.random.default_rng(seed)
    capacity = {n: int(random.integers(1, 9)) for n in nodes}
    margin = max(1, len(nodes) // 4)
    side = first_side(dag.nodes, capacity)
    assert closed(side, dag) and set(nodes[:margin]) <= side and not side & set(nodes[-margin:])
    middle = nodes[margin:-margin]
    every = (set(nodes[:margin]) | set(c) for k in range(len(middle) + 1) for c in combinations(middle, k))
    best = min(cut_cost(s, dag, capacity) for s in every if closed(s, dag))
    assert cut_cost(side, dag, capacity) == best


@pytest.mark.parametrize("seed", range(10))
def test_pieces_partition_the_graph_in_an_order_that_can_run(seed: int) -> None:
    dag = random_dag(seed, 60)
    parts = subgraphs(dag, ALL_RULES, 7)
    assert all(0 < len(p) <= 7 for p in parts)
    flat = [n for p in parts for n in p]
    assert sorted(n.index for n in flat) == sorted(n.index for n in dag.nodes)
    done: set[Node] = set()
    inside = set(dag.nodes)
    for part in parts:
        for node in part:
            assert all(r.node in done or r.node in part for r in node.inputs if r.node in inside)
        done |= set(part)


def test_two_operators_split_in_two() -> None:
    pool = Pool()
    x = pool.input("x", (1, 4))
    dag = Dag(pool, (x,), (pool.make("tanh", pool.make("relu", x)),))
    first, second = bisect(dag.nodes, {n: 1 for n in dag.nodes})
    assert [n.kind for n in first] == ["relu"] and [n.kind for n in second] == ["tanh"]


def test_cut_avoids_operators_that_substitutions_span() -> None:
    """In a chain of modules the cheapest cut is behind a concatenation, not inside of a module."""
    dag = chain_of_modules(4)
    capacity = capacities(dag, Matcher(rules("fuse_convs_enlarged", "fuse_activation")).sites(dag))
    first, _ = bisect(dag.nodes, capacity)
    assert first[-1].kind in ("concat", "relu") and capacity[first[-1]] == 1


@pytest.mark.parametrize("threshold", [3, 6, 12, 30])
@pytest.mark.parametrize("window", [0, 12])
def test_split_stays_within_one_per_cent_of_the_whole(threshold: int, window: int) -> None:
    dag = chain_of_modules(4)
    whole = search(dag, v100(), ALL_RULES, SearchOptions(max_graphs=20_000, patience=0))
    assert whole.complete
    found = optimize(dag, v100(), ALL_RULES, SearchOptions(threshold=threshold, window=window))
    assert found.cost_after <= whole.cost_after * 1.01


def test_equal_pieces_are_searched_once() -> None:
    few, many = (optimize(chain_of_modules(n), v100(), PAPER_RULES, SearchOptions(threshold=8)) for n in (8, 32))
    assert many.graphs < 3 * few.graphs
    assert len(many.steps) > 3 * len(few.steps)


def test_reported_steps_add_up_to_the_result() -> None:
    found = optimize(chain_of_modules(6), v100(), ALL_RULES, SearchOptions(threshold=8))
    assert found.steps[-1].cost == pytest.approx(found.cost_after, rel=1e-9)


def test_split_result_computes_the_same() -> None:
    dag = chain_of_modules(5)
    for options in (SearchOptions(threshold=6), SearchOptions(threshold=6, window=0)):
        found = optimize(dag, v100(), ALL_RULES, options)
        random = np.random.default_rng(0)
        names = {"x": (1, 64, 14, 14)}
        for node in {r.node for n in dag.nodes for r in n.inputs if r.node.kind == "weight"}:
            names[str(node["name"])] = node.shape
        values = {k: random.standard_normal(names[k]) for k in sorted(names)}
        np.testing.assert_allclose(run(dag, values)[0], run(found.dag, values)[0], rtol=1e-8, atol=1e-8)


def test_a_substitution_across_a_cut_is_found_afterwards() -> None:
    """A chain of additions that only `fuse_elementwise` shortens, one operator at a time, across any cut."""
    pool = Pool()
    x = y = pool.input("x", (1, 8))
    for i in range(16):
        y = pool.make("tanh" if i % 2 else "relu", y)
    dag = Dag(pool, (x,), (y,))
    options = SearchOptions(threshold=4, window=0)
    apart = optimize(dag, Figure("launches"), rules("fuse_elementwise"), options)
    swept = optimize(dag, Figure("launches"), rules("fuse_elementwise"), changed(options, window=8))
    assert swept.cost_after == 1 and apart.cost_after <= 4


def test_products_far_apart_are_merged_before_the_split() -> None:
    """Sixteen time steps share a weight; no piece of four operators holds two of them."""
    pool = Pool()
    w = pool.weight("w", (64, 64))
    state = pool.input("state", (1, 64))
    words = [pool.input(f"x{t}", (1, 64)) for t in range(16)]
    for x in words:
        y = pool.make("matmul", x, w, act="")
        state = pool.make("tanh", pool.make("add", pool.make("sigmoid", y), pool.make("mul", state, y)))
    dag = Dag(pool, (pool.input("state", (1, 64)), *words), (state,))
    options = SearchOptions(threshold=4, window=0)
    found = optimize(dag, Figure("traffic"), rules("merge_all_rows"), options)
    assert [s.rule for s in found.steps] == ["merge_all_rows"]
    assert [n.shape for n in found.dag.nodes if n.kind == "matmul"] == [(16, 64)]
    assert found.steps[-1].cost == pytest.approx(found.cost_after)


@pytest.mark.parametrize("threshold", [6, 30])  # with a split, and without
def test_a_search_that_a_limit_ended_is_not_complete(threshold: int) -> None:
    """Whatever it was doing when the limit struck: simplifying a graph, searching around a cut, or sweeping."""
    dag, options = chain_of_modules(2), SearchOptions(threshold=threshold)
    told: list[tuple[bool, bool]] = []
    while not told or told[-1][0]:
        found, limited = after_looks(len(told) + 1, lambda: optimize(dag, v100(), ALL_RULES, options))
        told.append((limited, found.complete))
    assert set(told) == {(True, False), (False, True)}
