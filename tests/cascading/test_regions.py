"""Regions: largest, acyclic, and where the planner's segments lie."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tvm_cascade.cascading import cascade, validate
from tvm_cascade.cascading.regions import Partition, partition, region_order, windowed
from tvm_cascade.graph import Graph
from tvm_cascade.testing.graphs import Builder, mobilenet_v2
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.random_windows import random_graph


def with_opaque(graph: Graph, seed: int, share: float) -> Graph:
    """Some operators of several rows without windows."""
    rng = Random(seed)
    ops = [
        op
        if op.view or rng.random() > share
        else replace(op, windows=(None,) * len(op.inputs), columns=(None,) * len(op.inputs), opaque="rows are flipped")
        for op in graph.ops
    ]
    return replace(graph, ops=tuple(ops))


def acyclic(graph: Graph, group: list[int]) -> bool:
    """Whether no two groups wait for each other."""
    waits = {g: {group[p] for o, h in enumerate(group) if h == g for p in graph.predecessors[o]} - {g} for g in group}
    while waits:
        ready = [g for g, w in waits.items() if not w & waits.keys()]
        if not ready:
            return False
        for g in ready:
            del waits[g]
    return True


def groups(regions: Partition) -> list[int]:
    return [-1 - o if r is None else r for o, r in enumerate(regions.region_of)]


@pytest.mark.parametrize("seed", range(40))
def test_no_two_regions_wait_for_each_other_and_none_can_be_merged(seed: int) -> None:
    graph = with_opaque(random_graph(seed, operators=12), seed, 0.25)
    regions = partition(graph)
    group = groups(regions)
    assert acyclic(graph, group)
    assert graph.is_order(region_order(graph, regions))
    assert {x.op for x in regions.left_out} == {o.index for o in graph.ops if not windowed(graph, o)}
    for t in graph.tensors:
        touching = [o for o in (graph.producer[t.index], *graph.consumers[t.index]) if o is not None]
        near = {group[o] for o in touching if windowed(graph, graph.ops[o]) and group[o] >= 0}
        for a in near:
            for b in near - {a}:
                assert not acyclic(graph, [a if g == b else g for g in group])


@pytest.mark.parametrize("seed", range(40, 60))
def test_segments_lie_within_regions(seed: int) -> None:
    graph = with_opaque(random_graph(seed, operators=10, largest=9), seed, 0.3)
    regions = partition(graph)
    plan = cascade(graph, rows_alone(pixels=True, accumulators=True, stripes=True, max_macs=2.0))
    validate(plan)
    for segment in plan.segments:
        working = [o for o in segment.ops if not graph.ops[o].view]
        assert len(working) < 2 or len({regions.region_of[o] for o in working} - {None}) == 1


def test_a_network_of_windows_is_one_region() -> None:
    graph = mobilenet_v2(160, 160, 3, alpha=0.35)
    regions = partition(graph)
    assert regions.whole
    assert regions.regions == (tuple(range(len(graph.ops))),)


def test_reasons_and_remedies() -> None:
    b = Builder()
    x = b.conv(b.input(8, 8, 2), 4, 3)
    mid = b.relu(x)
    y = b.conv(mid, 4, 3)
    graph = b.finish(b.add(y, x))
    maker = graph.producer[mid]
    assert maker is not None
    ops = list(graph.ops)
    ops[maker] = replace(ops[maker], windows=(None,), columns=(None,), opaque="x: rows are not read in ascending order")
    regions = partition(replace(graph, ops=tuple(ops)))
    assert regions.regions == ((0,), (2, 3))  # the add cannot join the first: it waits for the operator left out
    (left,) = regions.left_out
    assert (left.op, left.reason) == (maker, "x: rows are not read in ascending order")
    assert "ascending" in left.remedy
