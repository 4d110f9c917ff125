"""Staged programs on the CPU: same results as in sequence, memory that no two groups share, merges that are exact."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")  # before TVM's pool starts: without it a 2-core machine gets one thread

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.errors import GraphError, ValidationError
from tvm_cascade.parallel import MERGE, Options, Schedule, Stage, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.memory import plan_memory
from tvm_cascade.staging.program.program import plan_program
from tvm_cascade.staging.program.schedule_stages import LowerOptions, ScheduleStages, emit_cpu, lower_stages
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.poison import Poison
from tvm_cascade.testing.zoo.inception import inception_e
from tvm_cascade.testing.zoo.squeezenet import squeezenet

V100 = AnalyticCost(find_device("v100"))


def branches() -> tvm.IRModule:
    """A residual, two depths of branches, a pool, a view, a dense layer and two outputs."""
    net = Net("float32", "NCHW", seed=4)
    x = net.input((1, 8, 12, 12), "x")
    a = net.conv(x, 16, 1, activation="relu")
    b = net.conv(net.conv(x, 8, 1, activation="relu"), 16, 3, activation="relu")
    c = net.conv(net.max_pool(x, 3, 1, 1), 16, (1, 5), padding=(0, 2, 0, 2))
    y = net.concat([a, b, c])
    z = net.add(net.conv(y, 48, 3), y, "relu")
    return net.finish([net.softmax(net.dense(net.flatten(net.global_pool(z)), 10)), net.depthwise(y, 3)])


def greedy_groups(mod: tvm.IRModule, unit: str = "fused"):
    net = stage_graph(mod)
    units = unit_graph(net.graph, unit)
    return net, units, schedule(net.graph, V100, Options(variant="greedy", unit=unit)).schedule


def inputs_of(mod: tvm.IRModule, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal([int(d) for d in p.ty.shape.values]).astype("float32") for p in mod["main"].params]


def run(net, units, found: Schedule, data, lower: LowerOptions = LowerOptions()) -> list[np.ndarray]:  # noqa: B008
    return Session(compile_stages(lower_stages(net, units, found, lower))).run(*data)


def sequential(mod: tvm.IRModule, data, unit: str = "fused") -> list[np.ndarray]:
    net = stage_graph(mod)
    found = schedule(net.graph, V100, Options(variant="sequential", unit=unit)).schedule
    return run(net, unit_graph(net.graph, unit), found, data)


@pytest.mark.parametrize("unit", ["op", "fused", "sepconv"])
def test_concurrent_stages_compute_the_same_bits(unit):
    mod = branches()
    data = inputs_of(mod)
    net, units, found = greedy_groups(mod, unit)
    assert max(len(s.groups) for s in found.stages) >= 3
    for a, b in zip(run(net, units, found, data), sequential(mod, data, unit), strict=True):
        np.testing.assert_array_equal(a, b)


def test_equals_tvms_own_build():
    mod = branches()
    data = inputs_of(mod)
    net, units, found = greedy_groups(mod)
    plain = Session(tvm.compile(mod, "llvm")).run(*data)
    for a, b in zip(run(net, units, found, data), plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("network", [branches, lambda: inception_e(width=0.0625), lambda: squeezenet(1, 47, 0.25, 12)])
def test_order_of_groups_and_stale_memory_do_not_matter(network):
    """Groups one after the other, last first, with NaN in every dead byte before each step: the same bits."""
    mod = network()
    data = inputs_of(mod)
    net, units, found = greedy_groups(mod)
    expected = run(net, units, found, data)
    harsh = run(net, units, found, data, LowerOptions(serial_reversed=True, before_step=Poison()))
    for a, b in zip(harsh, expected, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(a).all()


def test_a_plan_for_sequential_reuse_would_be_caught():
    """The check has teeth: with lifetimes of single kernels instead of stages the groups destroy one another's data."""
    mod = inception_e(width=0.0625)
    net, units, found = greedy_groups(mod)
    program = plan_program(net, units, found)
    steps = tuple(replace(step, groups=((k,),)) for step in program.steps for group in step.groups for k in group)
    unsafe = plan_memory(replace(program, steps=steps))
    assert unsafe.allocation.peak < plan_memory(program).allocation.peak
    kernels = build_kernels(net, program.specs, cpu=True)
    staged = emit_cpu(program, kernels, unsafe, LowerOptions(serial_reversed=True))
    data = inputs_of(mod)
    assert not np.allclose(Session(compile_stages(staged)).run(*data)[0], sequential(mod, data)[0])


def test_concurrent_tensors_share_no_bytes():
    net, units, found = greedy_groups(branches())
    program = plan_program(net, units, found)
    plan = plan_memory(program)
    spans = dict(zip(plan.offsets, zip(plan.allocation.offsets, plan.problem.buffers, strict=True), strict=True))
    for time, _ in enumerate(program.steps):
        live = sorted((o, o + b.size) for o, b in spans.values() if b.lower <= time < b.upper)
        assert all(high <= low for (_, high), (low, _) in pairwise(live))


def test_thousand_runs_are_identical():
    mod = inception_e(width=0.0625, size=5)
    net, units, found = greedy_groups(mod)
    session = Session(compile_stages(lower_stages(net, units, found, LowerOptions())))
    data = inputs_of(mod)
    first = session.run(*data)[0]
    assert all(np.array_equal(session.run(*data)[0], first) for _ in range(1000))


def siblings(layout="NCHW", stride=1, batch=1, kind="conv") -> tvm.IRModule:
    """Operators that may be merged: other kernels, paddings and channel counts on one input."""
    net = Net("float32", layout, seed=9)
    if kind == "dense":
        x = net.input((batch, 24), "x")
        return net.finish([net.dense(x, n, activation="relu") for n in (8, 20, 3)])
    x = net.input((batch, 6, 11, 13) if layout == "NCHW" else (batch, 11, 13, 6), "x")
    high, wide = -(-11 // stride), -(-13 // stride)
    shapes = [(1, 0), (3, 1), (5, 2), ((1, 3), (0, 1, 0, 1)), ((3, 1), (1, 0, 1, 0))]
    ys = [net.conv(x, 4 + k, kernel, stride, pad, activation="relu") for k, (kernel, pad) in enumerate(shapes)]
    axes = (2, 3) if layout == "NCHW" else (1, 2)
    assert all([y.shape[a] for a in axes] == [high, wide] for y in ys)
    return net.finish(ys)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2},
        {"stride": 3},
        {"layout": "NHWC"},
        {"batch": 2},
        {"kind": "dense"},
        {"kind": "dense", "batch": 3},
    ],
)
def test_merged_operators_equal_the_single_ones(options):
    mod = siblings(**options)
    net = stage_graph(mod)
    units = unit_graph(net.graph, "fused")
    merged = Schedule((Stage(MERGE, (tuple(range(len(net.graph.ops))),)),), 0.0)
    data = inputs_of(mod)
    for a, b in zip(run(net, units, merged, data), sequential(mod, data), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_merge_is_one_kernel_and_its_split_is_free():
    net = stage_graph(siblings())
    units = unit_graph(net.graph, "fused")
    merged = Schedule((Stage(MERGE, (tuple(range(len(net.graph.ops))),)),), 0.0)
    mod = lower_stages(net, units, merged, LowerOptions())
    assert len(mod.get_global_vars()) == 2  # main and the merged kernel


def test_searched_merges_run():
    mod = squeezenet(1, 47, 0.25, 12)
    net = stage_graph(mod)
    units = unit_graph(net.graph, "fused")
    found = schedule(net.graph, V100, Options(variant="both")).schedule
    assert any(s.strategy == MERGE for s in found.stages)
    data = inputs_of(mod)
    np.testing.assert_allclose(run(net, units, found, data)[0], sequential(mod, data)[0], rtol=2e-5, atol=1e-6)


def test_the_pass_leaves_its_input_alone_and_searches_by_itself():
    mod = branches()
    before = tvm_ffi.structural_hash(mod)
    staged = ScheduleStages(model=AnalyticCost(find_device("cpu2")), options=Options(variant="both"))(mod)
    assert tvm_ffi.structural_hash(mod) == before
    data = inputs_of(mod)
    for a, b in zip(Session(compile_stages(staged)).run(*data), sequential(mod, data), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_compiles_through_the_default_pipeline_too():
    mod = branches()
    net, units, found = greedy_groups(mod)
    data = inputs_of(mod)
    staged = lower_stages(net, units, found, LowerOptions())
    plain = Session(tvm.compile(staged, "llvm")).run(*data)
    for a, b in zip(plain, sequential(mod, data), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_stage_is_one_parallel_region():
    net, units, found = greedy_groups(branches())
    text = lower_stages(net, units, found, LowerOptions()).script()
    assert "for lane in T.parallel(2)" in text
    assert "R.memory.alloc_storage" in text and "R.builtin.alloc_tensor" not in text


@pytest.mark.parametrize("lowered", [False, True])
def test_integer_networks_run_staged_bit_for_bit(lowered):
    net8 = Net("int8")
    x = net8.input((1, 12, 12, 8), "x")
    ends = [net8.conv(x, 8, 1, activation="relu"), net8.conv(x, 8, 3), net8.max_pool(x, 3, 1, "same")]
    y = net8.dense(net8.flatten(net8.global_pool(net8.concat(ends))), 10)
    mod = net8.finish(y)
    mod = LowerQuantized()(mod) if lowered else mod
    data = [np.random.default_rng(0).integers(-128, 128, (1, 12, 12, 8)).astype("int8")]
    net, units, found = greedy_groups(mod)
    assert max(len(s.groups) for s in found.stages) == 3
    np.testing.assert_array_equal(run(net, units, found, data)[0], sequential(mod, data)[0])


def test_wrong_schedules_are_refused():
    net, units, found = greedy_groups(branches())
    with pytest.raises(ValidationError, match="at the same time as"):
        lower_stages(net, units, Schedule(found.stages[::-1], 0.0), LowerOptions())
    with pytest.raises(ValidationError, match="runs 0 times"):
        lower_stages(net, units, Schedule(found.stages[:-1], 0.0), LowerOptions())


def test_symbolic_shapes_are_refused():
    n = tvm.tirx.Var("n", "int64")
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit_output(relax.op.nn.relu(x))
        bb.emit_func_output(y)
    with pytest.raises(GraphError, match="not static"):
        stage_graph(bb.get())
