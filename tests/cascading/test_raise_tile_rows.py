"""Steps of several rows: their rings are exact, their plans no larger, and weights are read less often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tvm_cascade.cascading import Plan, cascade, plan_graph, validate
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.assemble import Figures, Layout, assemble
from tvm_cascade.cascading.interleaving import Interleaving
from tvm_cascade.cascading.raise_tile_rows import raise_tile_rows
from tvm_cascade.cascading.segments import SegmentCosts, Settings
from tvm_cascade.cores import get_core
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Graph, Tile
from tvm_cascade.report.estimate import estimate
from tvm_cascade.report.steps import step_rows
from tvm_cascade.report.timeline import timeline
from tvm_cascade.testing.graphs import ds_cnn, mobilenet_v1, resnet8
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.random_windows import random_graph

ROWS = rows_alone(granularity="row", accumulators=True, steps=get_core("cortex-m4").steps)


def weighted(graph: Graph, tall: bool) -> Graph:
    """The graph with weights, and with kernels of several rows for every convolution that is not depthwise."""
    outs = [graph.tensors[op.outputs[0]] for op in graph.ops]
    weights = [op.macs // (out.rows * out.columns) for op, out in zip(graph.ops, outs, strict=True)]
    can = [tall and op.kind == "conv2d" for op in graph.ops]
    kernels = [replace(op.kernels, multi_row=able) for op, able in zip(graph.ops, can, strict=True)]
    ops = [replace(op, weight_bytes=w, kernels=k) for op, w, k in zip(graph.ops, weights, kernels, strict=True)]
    return replace(graph, ops=tuple(ops))


GRAPHS = {"mobilenet": mobilenet_v1(32, 32, 3, alpha=0.25, classes=10), "ds_cnn": ds_cnn()}


def as_one_cascade(graph: Graph, rows: int, streamed: bool) -> Plan:
    tables = AccessTables(graph, graph.inputs if streamed else (), accumulators=True)
    costs = SegmentCosts(tables, range(len(graph.ops)), Settings(overlap=True, in_place=True))
    return assemble(costs, Layout((0, len(graph.ops)), (Interleaving(Tile(rows)),)), Figures(0, 0))


def shorter_rings(plan: Plan, rows: int) -> Iterator[Plan]:
    """The plan with one step's rows less in one ring, for every ring that has them."""
    for storage in plan.storages:
        tensor = plan.graph.tensors[storage.tensor]
        height = storage.height - min(rows, tensor.rows)
        if storage.root is None and storage.is_ring(tensor.rows) and height > 0:
            changed = tuple(
                replace(s, height=height, size=height * tensor.row_bytes) if storage.tensor in (s.tensor, s.root) else s
                for s in plan.storages
            )
            yield replace(plan, storages=changed)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("rows", [2, 3])
def test_random_cascades(rows: int, streamed: bool) -> None:
    refused = tried = 0
    for seed in range(60):
        graph = random_graph(seed, operators=3 + seed % 6, largest=12)
        if streamed and any(graph.tensors[t].row_axis is None for t in graph.inputs):
            continue
        plan = as_one_cascade(graph, rows, streamed)
        assert validate(plan).macs == graph.macs and all(s.tile.rows == rows for s in plan.segments)
        assert timeline(plan).cuts[-1] == sum(len(s.trace) for s in plan.segments)
        for shorter in shorter_rings(plan, rows):
            tried += 1
            try:
                validate(shorter)
            except ValidationError:
                refused += 1
    assert tried == refused > 25


def test_a_chain_of_windows_holds_a_step_more() -> None:
    """3 x 3 over 3 x 3 in steps of n rows: n + 2 rows between them, whole steps of them."""
    graph = resnet8()
    first = graph.ops[0].outputs[0]
    held = [as_one_cascade(graph, n, False).storages[first].height for n in (1, 2, 4)]
    assert held[0] >= 3 and held[1] % 2 == held[2] % 4 == 0 and held[0] < held[1] < held[2]


@pytest.mark.parametrize("name", GRAPHS)
def test_no_larger_and_fewer_weights(name: str) -> None:
    graph = GRAPHS[name]
    for options in (replace(ROWS, layerwise=True), ROWS):
        plain, plan = (plan_graph(weighted(graph, able), options) for able in (False, True))
        assert validate(plan).macs == plain.macs and plan.peak <= plain.peak
        before, after = estimate(plain), estimate(plan)
        assert after.weight_bytes <= before.weight_bytes and after.calls <= before.calls
        if options.layerwise:
            assert any(s.tile.rows > 1 for s in plan.segments) and after.weight_bytes < before.weight_bytes
            assert any(r["by"] == "all" and r["kind"] == "conv2d" for r in step_rows(plan))


def test_a_cap_with_room_buys_taller_steps() -> None:
    """resnet8 in 20,000 bytes still cascades, now in steps of several rows; the cap holds."""
    options = replace(ROWS, sram=20_000)
    plain = cascade(weighted(resnet8(), True), options)
    plan = raise_tile_rows(plain, options)
    validate(plan)
    assert plan.peak <= 20_000 and any(s.tile.rows > 1 for s in plan.segments)
    assert estimate(plan).weight_bytes < estimate(plain).weight_bytes


def test_steps_must_lie_together_in_their_ring() -> None:
    plan = as_one_cascade(resnet8(), 2, False)
    t = next(s.tensor for s in plan.storages if s.root is None and s.height < plan.graph.tensors[s.tensor].rows)
    storage = plan.storages[t]
    odd = replace(storage, height=storage.height + 1, size=storage.size + plan.graph.tensors[t].row_bytes)
    with pytest.raises(ValidationError, match="do not lie together"):
        validate(replace(plan, storages=(*plan.storages[:t], odd, *plan.storages[t + 1 :])))


def test_nothing_changes_where_instructions_are_not_known() -> None:
    plan = plan_graph(weighted(ds_cnn(), True), replace(ROWS, layerwise=True, steps=None))
    assert all(s.tile.rows == 1 for s in plan.segments)
