"""Graphs that differ in what no arena depends on share one search; each plan keeps its own graph."""

from __future__ import annotations

import gc
from dataclasses import replace
from weakref import ref

import pytest

from tvm_cascade.cascading import PlanOptions, forget_searches, plan_graph, planner
from tvm_cascade.cascading.search_cache import searches
from tvm_cascade.cascading.structure import structure
from tvm_cascade.cascading.validate import validate
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph
from tvm_cascade.testing.random_windows import random_graph


def renamed(graph: Graph) -> Graph:
    """The graph with other names, kinds and weights."""
    tensors = tuple(replace(t, name=f"other_{t.name}") for t in graph.tensors)
    ops = tuple(
        replace(op, name=f"other_{op.name}", kind="other", weight_bytes=op.weight_bytes + 7) for op in graph.ops
    )
    return replace(graph, tensors=tensors, ops=ops, name="other")


@pytest.mark.parametrize("seed", range(3))
def test_renamed_graphs_are_searched_once(seed: int) -> None:
    graph = random_graph(seed)
    other = renamed(graph)
    first = plan_graph(graph)
    searched = planner._smallest.cache_info().misses  # type: ignore[attr-defined]
    second = plan_graph(other)
    assert planner._smallest.cache_info().misses == searched  # type: ignore[attr-defined]
    assert first.graph is graph and second.graph is other
    assert replace(second, graph=graph) == first
    validate(second)
    with pytest.raises(InfeasibleError) as refused:
        plan_graph(other, PlanOptions(sram=1))
    assert all(name.startswith("other_") for name in refused.value.culprits)


def test_what_arenas_depend_on_is_kept() -> None:
    graph = random_graph(0)
    op = graph.ops[-1]
    for changed in (
        replace(op, scratch_bytes=op.scratch_bytes + 64),
        replace(op, macs=op.macs + 1),
        replace(op, windows=()),
    ):
        other = replace(graph, ops=(*graph.ops[:-1], changed))
        assert structure(other) != structure(graph)
    assert structure(structure(graph)) == structure(graph) == structure(renamed(graph))


def test_forgotten_searches_are_freed_at_once() -> None:
    forget_searches()  # what an earlier test had of this graph may be part of its cycles
    graph = random_graph(1)
    plan = plan_graph(graph)
    found = searches(graph, PlanOptions())
    held = [ref(o) for o in (*found, *(s.costs for s in found), found[0].costs.rings, found[0].costs.tables)]
    del found
    gc.disable()
    try:
        forget_searches()
        assert [r() for r in held] == [None] * len(held)
    finally:
        gc.enable()
    assert searches(graph, PlanOptions())[0].bound == plan.bound
