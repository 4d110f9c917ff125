"""Inverted bottlenecks in groups of channels: emitted and run, bit for bit, byte for byte, work as planned."""

# TVM's expressions get their fields at run time, where no type checker sees them.
# pyright: reportCallIssue=false, reportArgumentType=false
from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax as _relax

from tvm_cascade import api, pipeline
from tvm_cascade.cascading import PlanOptions, plan_graph, validate
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.assemble import Figures, Layout, assemble
from tvm_cascade.cascading.channels import blocks, group_counts, in_groups
from tvm_cascade.cascading.segments import SegmentCosts, Settings
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.passes import LowerQuantized, SplitChannels
from tvm_cascade.passes.prepare_graph import prepare_graph
from tvm_cascade.passes.split_channels import with_channel_groups
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.host_check import PlanRun, plan_prepared, run_plan
from tvm_cascade.testing.quick_build import virtual_machine

pytestmark = pytest.mark.usefixtures("quick_host")

relax: Any = _relax
CAN = PlanOptions()


def computed(lowered: Any, feed: np.ndarray) -> np.ndarray:
    """What TVM's own executor makes of a module."""
    machine = virtual_machine(lowered)
    return machine["main"](tvm.runtime.tensor(feed)).numpy()


def block(seed: int) -> tuple[Any, np.ndarray, int]:
    """A random block between two convolutions, an input for it, and a number of groups."""
    rng = random.Random(seed)
    shape = (1, rng.randint(3, 8), rng.randint(3, 9), rng.randint(1, 4))
    inputs, stride = rng.choice((3, 4, 8, 10)), rng.choice((1, 1, 2))
    groups = rng.choice((2, 3, 4, 5, 6, 8))
    kernel = rng.choice((3, 3, 5, (3, 1), (1, 5)))
    stride = stride if isinstance(kernel, int) else 1
    net = Net("int8", seed=seed)
    x = net.conv(net.input(shape), inputs, kernel=3, padding="same")
    y = net.conv(x, groups * rng.choice((4, 8, 9)), kernel=1, activation=rng.choice(("relu6", "relu", None)))
    if y.shape[3] <= inputs:
        y = net.conv(x, 12 * groups, kernel=1, activation="relu6")
    padding = rng.choice(("same", "same", "valid")) if min(x.shape[1:3]) >= 7 else "same"
    y = net.depthwise(y, kernel=kernel, stride=stride, padding=padding, activation="relu6")
    y = net.conv(y, inputs, kernel=1)
    x = net.add(x, y) if y.shape == x.shape else y
    mod = net.finish(net.conv(x, 3, kernel=3, padding="same"))
    feed = np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)
    return mod, feed, groups


@pytest.mark.parametrize("seed", range(3))
def test_random_blocks(seed: int) -> None:
    """By rows, by pixels and in stripes: the same bits, the arena and the work that were planned, nothing beyond."""
    mod, feed, groups = block(seed)
    lowered = LowerQuantized()(mod)
    plain = prepare_graph(lowered, KernelTarget()).graph
    (found,) = blocks(plain)
    assert groups in group_counts(plain, found)
    split = SplitChannels({plain.ops[found.project].name: groups})(lowered)
    prepared = as_prepared(mod, split)
    expected = in_groups(plain, {found: groups})
    for mine, other in zip(expected.ops, prepared.graph.ops, strict=True):  # the planner's mirror
        fields = ("kind", "windows", "columns", "macs", "scratch_bytes")
        if mine.kernels.channel_tiling is not None:
            assert all(getattr(mine, f) == getattr(other, f) for f in fields)
            assert mine.kernels.channel_tiling == other.kernels.channel_tiling
    want = computed(lowered, feed)
    if seed == 0:  # the module runs without the planner too
        assert np.array_equal(computed(split, feed), want)
    graph = prepared.graph
    plans = [plan_graph(graph, replace(CAN, granularity="row" if seed % 2 else "pixel"))]
    costs = SegmentCosts(AccessTables(graph, accumulators=True), range(len(graph.ops)), Settings(overlap=True))
    forms = costs.striped(0, len(graph.ops))
    for form in forms[-1:]:
        plans.append(assemble(costs, Layout((0, len(graph.ops)), (form.interleaving,)), Figures(0, 0)))
    for plan in dict.fromkeys(plans):
        validate(plan)
        check(run_plan(prepared, plan, [feed]), plan.macs, plan.peak, want)


def check(ran: PlanRun, macs: int, peak: int, want: np.ndarray) -> None:
    assert np.array_equal(ran.outputs[0], want)
    assert ran.executed_macs == macs
    assert ran.arena_high_water <= peak


def as_prepared(mod: Any, lowered: Any) -> pipeline.Prepared:
    made = prepare_graph(lowered, KernelTarget())
    io = pipeline.interface_of(mod, made.graph)
    return pipeline.Prepared(made.graph, made.extracted, made.kernels, made.core, io)


@cache
def late_blocks() -> Any:
    """Blocks of few pixels and many channels."""
    net = Net("int8", seed=7)
    x = net.conv(net.input((1, 7, 7, 4)), 16, kernel=3, padding="same")
    for stride in (1, 2):
        y = net.conv(x, 96, kernel=1, activation="relu6")
        y = net.conv(net.depthwise(y, kernel=3, stride=stride, padding="same", activation="relu6"), 16, kernel=1)
        x = net.add(x, y) if stride == 1 else y
    return net.finish(x)


def test_the_plan_says_what_it_does() -> None:
    mod = late_blocks()
    plain, found = (api.plan(mod, target="host", max_macs=f) for f in (1.0, 1.8))
    assert not plain.groups and not any(plain.in_groups)
    assert found.groups and found.plan.peak < plain.plan.peak
    assert found.plan.macs <= 1.8 * plain.plan.macs
    assert found.plan.baseline_macs == plain.plan.macs
    validate(found.plan)
    assert "groups" in found.concats and "channels in groups" in found.to_text(details=True)
    points = found.to_dict()["frontier"]
    assert isinstance(points, list)
    assert points[0]["channel_groups"] and not points[-1]["channel_groups"]
    assert points[0]["peak_bytes"] <= found.plan.peak


def test_caps() -> None:
    """Groups are tried where nothing else fits, and only there."""
    mod = late_blocks()
    prepared = pipeline.prepare(mod, KernelTarget())

    def chosen(sram: int) -> Any:
        return plan_prepared(mod, prepared, replace(CAN, max_macs=1.8, sram=sram))

    plain = plan_graph(prepared.graph, replace(CAN, max_macs=1.8)).peak
    assert not chosen(plain).groups
    found = chosen(plain - 200)
    assert found.groups and found.plan.peak <= plain - 200
    assert found.graph is prepared.graph and found.prepared.graph is not prepared.graph
    with pytest.raises(InfeasibleError):
        chosen(plain // 3)


@pytest.mark.emulator
def test_firmware(emulator: None, tmp_path: Path) -> None:
    """A Cortex-M4 runs it in the arena that was planned, and makes what TVM makes."""
    mod = late_blocks()
    feed = np.random.default_rng(1).integers(-128, 128, (1, 7, 7, 4)).astype(np.int8)
    made = api.compile(mod, target="cortex-m4", max_macs=1.8, output=tmp_path / "p")
    assert made.groups
    np.savez(tmp_path / "in.npz", **{name_of(mod): feed})
    ran = api.run(tmp_path / "p", inputs=tmp_path / "in.npz", outputs=tmp_path / "out.npz")
    assert ran.equals_host
    assert ran.arena_high_water_bytes == ran.arena_bytes == made.plan.peak
    assert ran.executed_macs == made.plan.macs > made.plan.baseline_macs
    (out,) = np.load(tmp_path / "out.npz").values()
    assert np.array_equal(out, computed(LowerQuantized()(mod), feed))


def name_of(mod: Any) -> str:
    return str(mod["main"].params[0].name)


def test_names_and_groups_that_are_none() -> None:
    lowered = LowerQuantized()(late_blocks())
    names = [op.name for op in prepare_graph(lowered, KernelTarget()).graph.ops]
    for groups in ({"nothing": 2}, {names[0]: 2}, {names[3]: 5}, {names[3]: 0}):
        with pytest.raises(UsageError):
            with_channel_groups(lowered, groups)


@pytest.mark.parametrize("other", ["expand", "project", "dilated", "grouped", "wide"])
def test_what_only_looks_like_a_block(other: str) -> None:
    """Kernels of a group compute none of these."""
    net = Net("int8", seed=1)
    x = net.conv(net.input((1, 9, 9, 4)), 8, kernel=3)
    y = net.conv(x, 24, kernel=3 if other == "expand" else 1)
    y = net.depthwise(y, kernel=3, dilation=2 if other == "dilated" else 1)
    y = net.conv(y, 8, kernel=3 if other == "project" else 1, groups=2 if other == "grouped" else 1)
    lowered = LowerQuantized()(net.finish(y))
    if other == "wide":  # as a convolution whose sums are of 64 bits
        lowered = with_attribute(lowered, "conv2d", "accumulator", "int64")
    graph = prepare_graph(lowered, KernelTarget()).graph
    assert not blocks(graph)
    with pytest.raises(UsageError, match="no projection of an inverted bottleneck"):
        with_channel_groups(lowered, {graph.ops[3].name: 4})


def with_attribute(mod: Any, kind: str, name: str, value: object) -> Any:
    made = mod.clone()
    for gv, func in mod.functions.items():
        if func.attrs is not None and str(func.attrs.get("op_kind")) == kind:
            made.update_func(gv, func.with_attr(name, value))
    return made


def test_blocks_beside_a_concat() -> None:
    """Groups are tried too where a concat is written into place, and kept where they are smaller."""
    net = Net("int8", seed=7)
    x = net.conv(net.input((1, 7, 7, 4)), 16, kernel=3)
    for stride in (1, 2):
        y = net.conv(x, 96, kernel=1, activation="relu6")
        y = net.conv(net.depthwise(y, kernel=3, stride=stride, activation="relu6"), 16, kernel=1)
        x = net.add(x, y) if stride == 1 else y
    mod = net.finish(net.concat([net.conv(x, 8, kernel=1), net.conv(x, 8, kernel=1)]))
    found = api.plan(mod, target="host", max_macs=1.8)
    assert found.groups and found.plan.peak == found.frontier[0][0]
