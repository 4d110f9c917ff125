"""Concats whose makers write into place: planned, replayed, run to the bit, and no copy left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade import pipeline
from tvm_cascade.cascading import Plan, PlanOptions, plan_graph, validate
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.overlap import Overlaps
from tvm_cascade.cores import KernelTarget, kernel_target
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Tile
from tvm_cascade.ordering import order
from tvm_cascade.passes.candidates import concats_in_place as in_place
from tvm_cascade.passes.candidates.candidate import KernelSource, Network, PlannedCandidate, best_candidate
from tvm_cascade.passes.cascade import Cascade
from tvm_cascade.passes.join_concats import joinable, joined
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.plan_network import plan_network
from tvm_cascade.passes.prices import Prices, TimeRule
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.kernels.pitch import NotPitchedError, pitched
from tvm_cascade.schedules.tir import shape_of
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.host_check import plan_prepared, run_plan
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.quick_build import virtual_machine

CAN: dict[str, Any] = {"pixels": True, "accumulators": True, "stripes": True, "in_place": True}
WAYS = {
    "layer by layer": rows_alone(layerwise=True, **CAN),
    "smallest": rows_alone(**CAN),
    "rows": rows_alone(granularity="row", **CAN),
    "apart": rows_alone(overlap=False, **CAN),
    "streamed": rows_alone(stream_input=True, **CAN),
}


def cell(shared_part: bool = False) -> tvm.IRModule:
    """Branches of an irregular cell, concatenated; then two more. With `shared_part` somebody else reads a branch too."""
    net = Net("int8", seed=5)
    x = net.input((1, 12, 12, 8), "x")
    branches = [net.conv(x, 8, 3), net.depthwise(net.conv(x, 12, 1), 3), net.max_pool(net.conv(x, 8, 1), 3, 1, "same")]
    y = net.conv(net.concat(branches), 12, 3)
    if shared_part:
        y = net.concat([y, branches[0]])
    return net.finish(net.conv(net.concat([net.conv(y, 8, 3), net.conv(y, 8, 1)]), 8, 3))


def dense_block() -> tvm.IRModule:
    """Every layer reads what all before it made, as DenseNet's do, its growth made in two halves."""
    net = Net("int8", seed=7)
    x = net.conv(net.input((1, 8, 8, 4), "x"), 8, 3)
    for _ in range(3):
        y = net.conv(x, 8, 1, activation="relu")
        x = net.concat([net.conv(y, 8, 3), net.conv(y, 8, 1)])
    return net.finish(x)


def stack() -> tvm.IRModule:
    """Two maps, one below the other."""
    net = Net("int8", seed=3)
    x = net.input((1, 12, 12, 8), "x")
    return net.finish(
        net.conv(net.concat([net.conv(x, 8, 3, (2, 1)), net.depthwise(net.conv(x, 8, 1), 3)], axis=1), 8, 3)
    )


@pytest.mark.parametrize("options", [WAYS["layer by layer"], WAYS["smallest"]])
def test_along_the_rows(expected: tuple[np.ndarray, np.ndarray], options: PlanOptions) -> None:
    plain = pipeline.prepare(stack(), KernelTarget())
    made = joined(plain, joinable(plain))
    assert [op.part_offsets for op in made.graph.ops if op.part_offsets] == [(0, 6 * 12 * 8)]
    plan = plan_graph(made.graph, options)
    assert validate(plan).macs == plan.macs
    assert all(kernel is None for op, kernel in zip(plan.graph.ops, made.kernels_of(plan), strict=True) if op.view)
    np.testing.assert_array_equal(run_plan(made, plan, [expected[0]]).outputs[0], reference(stack(), expected[0]))


def test_what_a_join_may_follow_depends_on_the_makers_beside() -> None:
    """A maker alone may write behind its dying input; beside another, which does not wait for it, it may not."""
    plain = pipeline.prepare(stack(), KernelTarget())
    made = joined(plain, joinable(plain)).graph
    whole = next(op.outputs[0] for op in made.ops if op.part_offsets)
    conv, depthwise = (made.producer[t] for op in made.ops if op.part_offsets for t in op.inputs)
    assert conv is not None and depthwise is not None
    dying, units = list(made.ops[depthwise].inputs), {whole: made.tensors[whole].rows}
    overlaps = Overlaps(AccessTables(made), in_place=True)
    assert overlaps.pairs((depthwise,), dying, units, Tile())
    assert not overlaps.pairs((conv, depthwise), dying, units, Tile())


def reference(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    machine = virtual_machine(LowerQuantized()(mod))
    return machine["main"](tvm.runtime.tensor(x)).numpy()


@pytest.fixture(scope="module")
def prepared() -> pipeline.Prepared:
    return pipeline.prepare(cell(), KernelTarget())


@pytest.fixture(scope="module")
def expected() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).integers(-128, 128, (1, 12, 12, 8)).astype("int8")
    return x, reference(cell(), x)


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_to_the_bit(prepared: pipeline.Prepared, expected: tuple[np.ndarray, np.ndarray], options: PlanOptions) -> None:
    made = joined(prepared, joinable(prepared))
    assert [op.name for op in made.graph.ops if op.part_offsets] == ["concat", "concat1"]
    plan, plain = plan_graph(made.graph, options), plan_graph(prepared.graph, options)
    assert plan.peak <= plain.peak and (not options.layerwise or plan.peak < plain.peak)
    assert validate(plan).macs == plan.macs
    run = run_plan(made, plan, [expected[0]])
    np.testing.assert_array_equal(run.outputs[0], expected[1])
    assert run.arena_high_water <= plan.peak


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
def test_performance_schedules_write_apart(target: str) -> None:
    fast = pipeline.prepare(cell(), kernel_target(target, "obj" if target == "cortex-m55" else "c"))
    made = joined(fast, joinable(fast))
    plan = plan_graph(made.graph, WAYS["layer by layer"])
    kernels = made.kernels_of(plan)
    assert [k is None for k in kernels] == [op.view for op in plan.graph.ops]
    assert any(op.part_offsets for op in plan.graph.ops)
    assert {v.rule.split(".")[0] for k in kernels if k is not None for v in k.variants} <= {
        "cortex_m_dsp", "cortex_m_mve", "pooling", "cortex_m_scalar",
    }  # fmt: skip


def places_moved(plan: Plan, by: int) -> Plan:
    part = next(s for s in plan.storages if s.pitch and s.byte_offset)
    moved = replace(part, byte_offset=part.byte_offset - by)
    return replace(plan, storages=tuple(moved if s is part else s for s in plan.storages))


@pytest.mark.parametrize("options", [WAYS["layer by layer"], WAYS["smallest"]])
def test_parts_that_overlap_are_refused(prepared: pipeline.Prepared, options: PlanOptions) -> None:
    plan = plan_graph(joined(prepared, joinable(prepared)).graph, options)
    with pytest.raises(ValidationError):
        validate(places_moved(plan, 4))


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4", "cortex-m55", "host"])
def test_requantized_parts_are_written_apart(target: str) -> None:
    """The quantizers of `.onnx` and `.pt2` store a part anew in the scale of the whole, element by element."""
    net = Net("int8", seed=11)
    x = net.input((1, 1, 24, 4), "x")
    own, other = net.conv(x, 16, (1, 3)), net.conv(x, 8, (1, 3))
    mod = net.finish(net.conv(net.concat([net.requantize(own, other), other]), 8, (1, 3)))
    plain = pipeline.prepare(mod, kernel_target(target))
    made = joined(plain, joinable(plain))
    assert [op.part_offsets for op in made.graph.ops if op.part_offsets] == [(0, 16)]
    given = np.random.default_rng(0).integers(-128, 128, (1, 1, 24, 4)).astype("int8")
    for options in (WAYS["layer by layer"], WAYS["smallest"]):
        plan = plan_graph(made.graph, options)
        validate(plan)
        if target == "host":
            np.testing.assert_array_equal(run_plan(made, plan, [given]).outputs[0], reference(mod, given))


def test_only_what_is_free() -> None:
    """Parts that somebody else reads are copied as before."""
    assert joinable(pipeline.prepare(cell(shared_part=True), KernelTarget())).keys() == {"concat2"}
    kernels = pipeline.prepare(cell(), KernelTarget()).kernels
    with pytest.raises(NotPitchedError, match="no whole elements"):
        pitched(next(k for k in pipeline.prepare(floats(), KernelTarget()).kernels if k), 6, 8)
    with pytest.raises(NotPitchedError, match="pixels from channels"):
        pitched(next(k for k in kernels if k), 5, 8)


def floats() -> tvm.IRModule:
    net = Net()
    return net.finish(net.conv(net.input((1, 6, 6, 2)), 4, 3))


def test_every_road_takes_them(expected: tuple[np.ndarray, np.ndarray]) -> None:
    chosen = plan_prepared(cell(), pipeline.prepare(cell(), KernelTarget()), WAYS["layer by layer"])
    plain = plan_graph(pipeline.prepare(cell(), KernelTarget()).graph, WAYS["layer by layer"])
    assert chosen.joined == ("concat", "concat1")
    assert chosen.exactness == {"concats in place": "every bit stays"}
    assert chosen.reason == f"writes the parts of concat, concat1 into place: {plain.peak} -> {chosen.plan.peak} bytes"
    assert chosen.plan.baseline_peak == plain.baseline_peak
    request, lowered = PlanRequest(layerwise=True), LowerQuantized()(cell())
    found = plan_network(lowered, request)
    assert found.joined == chosen.joined
    planned = Cascade(request)(lowered)
    assert shape_of(planned["cascade_main"].params[-1]) == (found.plan.peak,)
    machine = relax.VirtualMachine(tvm.compile(planned, "llvm"), tvm.cpu())
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(expected[0])).numpy(), expected[1])


def test_the_order_counts_a_join_once() -> None:
    """As `ordering` does: the whole exists from its first part on, and the parts nowhere else."""
    prepared = pipeline.prepare(dense_block(), KernelTarget())
    made = joined(prepared, joinable(prepared))
    assert order(made.graph).peak < order(prepared.graph).peak
    x = np.random.default_rng(1).integers(-128, 128, (1, 8, 8, 4)).astype("int8")
    plan = plan_graph(made.graph, WAYS["layer by layer"])
    np.testing.assert_array_equal(run_plan(made, plan, [x]).outputs[0], reference(dense_block(), x))


def test_one_by_one_the_smallest_is_kept(monkeypatch: pytest.MonkeyPatch, prepared: pipeline.Prepared) -> None:
    """A further concat in place that is better than none in place, but worse than those before it, is left alone."""
    plain = plan_graph(prepared.graph, rows_alone(layerwise=True))
    peaks = {(): 1000, ("a", "b", "c"): 1100, ("a",): 900, ("a", "b"): 950, ("a", "c"): 900}

    def sized(names: tuple[str, ...]) -> Plan:
        return replace(plain, allocation=replace(plain.allocation, peak=peaks[names]))

    monkeypatch.setattr(in_place, "joinable", lambda _: dict.fromkeys("abc", (0,)))
    monkeypatch.setattr(in_place, "joined", lambda made, joins: replace(made, graph=tuple(joins)))
    monkeypatch.setattr(in_place, "plan_graph", lambda names, _: sized(names))
    monkeypatch.setattr(Prices, "add", lambda _, made: made)  # of graphs that are none
    network = Network(cell(), prepared, rows_alone(), KernelSource(KernelTarget()))
    start, rule = PlannedCandidate(prepared, sized(())), TimeRule(rows_alone(), Prices())
    best = best_candidate(start, [lambda best: in_place.concats_in_place(network, best)], rule)
    assert (best.joined, best.plan.peak) == (("a", "c"), 900)
