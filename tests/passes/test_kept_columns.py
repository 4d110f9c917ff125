"""Stripes whose overlap is kept for some tensors and made again for others: every form, emitted and run."""

# TVM's expressions get their fields at run time, where no type checker sees them.
# pyright: reportCallIssue=false, reportArgumentType=false
from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax as _relax

from tvm_cascade import pipeline
from tvm_cascade.cascading import Plan, plan_graph, validate
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.assemble import Figures, Layout, assemble
from tvm_cascade.cascading.interleaving import Interleaving
from tvm_cascade.cascading.segments import SegmentCosts, Settings
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import ValidationError
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.report.text import block_rows
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.host_check import run_plan
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.quick_build import virtual_machine

relax: Any = _relax
FEED = np.random.default_rng(0).integers(-128, 128, (1, 11, 13, 3)).astype(np.int8)


@cache
def network() -> tuple[pipeline.Prepared, np.ndarray]:
    """A residual block with strides, dilation and padding on one side, and what TVM computes of `FEED`."""
    net = Net("int8", seed=3)
    x = net.conv(net.input(FEED.shape), 4, kernel=3, padding="same")
    y = net.conv(x, 8, kernel=1, activation="relu")
    y = net.conv(net.depthwise(y, kernel=3, dilation=(1, 2), padding="same"), 4, kernel=1)
    x = net.max_pool(net.add(x, y), kernel=(2, 3), stride=(1, 2), padding=(0, 1, 1, 1))
    x = net.conv(x, 5, kernel=(3, 3), stride=(2, 1), padding=(1, 2, 1, 0))
    mod = net.finish(net.global_pool(x))
    machine = virtual_machine(LowerQuantized()(mod))
    return pipeline.prepare(mod, KernelTarget()), machine["main"](tvm.runtime.tensor(FEED)).numpy()


def plan_in(width: int, kept: int, streamed: bool = False) -> Plan:
    """The whole network in stripes of one form."""
    graph = network()[0].graph
    tables = AccessTables(graph, graph.inputs if streamed else (), accumulators=True)
    costs = SegmentCosts(tables, range(len(graph.ops)), Settings())
    layout = Layout((0, len(graph.ops)), (Interleaving(stripe_columns=width, halo_tensors=kept),))
    return assemble(costs, layout, Figures(0, 0))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("width", "kept"), [(3, 0), (3, 2), (3, 4), (2, 5), (1, 3), (1, 7)])
def test_every_form_computes_the_same(width: int, kept: int, streamed: bool) -> None:
    prepared, expected = network()
    plan = plan_in(width, kept, streamed)
    assert any(s.halo_columns for s in plan.storages) == bool(kept)
    assert plan.macs == plan.baseline_macs if kept == 7 else plan.macs > plan.baseline_macs
    validate(plan)
    run = run_plan(prepared, plan, [FEED])
    np.testing.assert_array_equal(run.outputs[0], expected)
    assert run.executed_macs == plan.macs
    assert run.arena_high_water <= plan.peak


def test_less_is_made_again_the_more_is_kept() -> None:
    work = [plan_in(2, kept).macs for kept in range(8)]
    assert work == sorted(work, reverse=True) and work[0] > work[-1]


def test_a_store_that_is_too_small_fails_the_replay() -> None:
    plan = plan_in(2, 7)
    kept = next(s for s in plan.storages if s.halo_columns)
    smaller = tuple(replace(s, halo_columns=s.halo_columns - 1) if s is kept else s for s in plan.storages)
    with pytest.raises(ValidationError):
        validate(replace(plan, storages=smaller))


def test_what_is_kept_is_listed() -> None:
    plan = plan_in(2, 7)
    listed = {str(r["name"]): r["bytes"] for r in block_rows(plan) if r["kind"] == "kept"}
    assert len(listed) == sum(s.halo_columns > 0 for s in plan.storages)
    assert all(name.startswith("columns kept of ") for name in listed)
    assert sum(r["bytes"] for r in block_rows(plan) if r["kind"] == "tensor" and r["ring"]) < plan.peak  # type: ignore[misc]


def test_nothing_kept_without_stripes() -> None:
    assert all(not s.halo_columns for s in plan_graph(network()[0].graph, rows_alone(pixels=True)).storages)
