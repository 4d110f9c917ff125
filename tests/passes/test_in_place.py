"""Element-wise operators write over what they read: planned, replayed and run to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import tvm

from tvm_cascade import pipeline
from tvm_cascade.cascading import Plan, PlanOptions, layerwise, offsets_of, plan_graph, validate
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import ValidationError
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.schedules.driver.lower_plan import lower_plan
from tvm_cascade.schedules.driver.places import overwrites
from tvm_cascade.schedules.tir import relax, te
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.host_check import run_plan
from tvm_cascade.testing.plan_options import ROWS_ALONE, rows_alone
from tvm_cascade.testing.quick_build import virtual_machine

ONE_BY_ONE = rows_alone(layerwise=True, in_place=True)
MAP = 12 * 12 * 8  # bytes


def network() -> tvm.IRModule:
    """Two maps are added, the sum goes through tables and is multiplied by a third: all element for element."""
    net = Net("int8", seed=5, scales="varied")
    x = net.input((1, 12, 12, 4))
    a = net.conv(x, 8, 3)
    c = net.add(a, net.conv(a, 8, 1))
    d = net.relu(net.sigmoid(c))
    e = net.requantize(d, a)
    return net.finish(net.avg_pool(net.mul(e, net.conv(e, 8, 1)), 2))


@pytest.fixture(scope="module")
def prepared() -> pipeline.Prepared:
    return pipeline.prepare(network(), KernelTarget())


def overwriting(plan: Plan) -> list[str]:
    return [op.kind for op in plan.graph.ops if overwrites(plan, op)]


def test_layer_by_layer_they_cost_no_buffer(prepared: pipeline.Prepared) -> None:
    plain, plan = layerwise(prepared.graph, ROWS_ALONE), layerwise(prepared.graph, ONE_BY_ONE)
    assert overwriting(plain) == []
    assert len(overwriting(plan)) >= 4
    assert (plain.peak, plan.peak) == (3 * MAP, 2 * MAP)
    assert not overwriting(layerwise(prepared.graph, replace(ONE_BY_ONE, overlap=False)))


@pytest.mark.parametrize("options", [ONE_BY_ONE, rows_alone(in_place=True, pixels=True, accumulators=True)])
def test_to_the_bit(prepared: pipeline.Prepared, options: PlanOptions) -> None:
    plan = plan_graph(prepared.graph, options)
    validate(plan)
    x = np.random.default_rng(0).integers(-128, 128, (1, 12, 12, 4)).astype("int8")
    machine = virtual_machine(LowerQuantized()(network()))
    run = run_plan(prepared, plan, [x])
    np.testing.assert_array_equal(run.outputs[0], machine["main"](tvm.runtime.tensor(x)).numpy())
    assert run.arena_high_water <= plan.peak


def test_an_output_ahead_of_its_input_is_refused(prepared: pipeline.Prepared) -> None:
    plan = layerwise(prepared.graph, ONE_BY_ONE)
    op = next(op for op in plan.graph.ops if overwrites(plan, op))
    at = plan.buffers.index(f"tensor {op.outputs[0]}")
    offsets = list(plan.allocation.offsets)
    offsets[at] = offsets_of(plan)[f"tensor {op.inputs[op.in_place[0]]}"] + 4
    wrong = replace(plan.allocation, offsets=tuple(offsets), peak=plan.peak + 4)
    with pytest.raises(ValidationError):
        validate(replace(plan, allocation=wrong))


def test_kernels_beside_one_that_overwrites_may_alias_too(prepared: pipeline.Prepared) -> None:
    """TVM's LLVM back end takes `tirx.noalias` of one function for all of a module."""

    def told(plan: Plan) -> set[bool]:
        lowered = lower_plan(plan, prepared.kernels_of(plan))
        return {"tirx.noalias" in dict(f.attrs) for f in lowered.mod.functions.values()}

    plain = layerwise(prepared.graph, replace(ONE_BY_ONE, overlap=False))
    assert told(layerwise(prepared.graph, ONE_BY_ONE)) == {False} and told(plain) == {True}


@pytest.mark.parametrize("shape", [(1, 5, 96), (1, 5, 4, 24), (7, 50), (51,)])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_softmax_overwrites_its_input(dtype: Literal["float32", "int8"], shape: tuple[int, ...]) -> None:
    """A row is read, for its maximum and its sum, before its first element is written."""
    net = Net(dtype, seed=3)
    mod = net.finish(net.softmax(net.softmax(net.input(shape))))
    prepared = pipeline.prepare(mod, KernelTarget())
    apart = replace(ONE_BY_ONE, in_place=False, overlap=False)
    plain, plan = layerwise(prepared.graph, apart), layerwise(prepared.graph, ONE_BY_ONE)
    validate(plan)
    assert (overwriting(plan), overwriting(plain)) == (["softmax", "softmax"], [])
    size, scratch = np.zeros(shape, dtype).nbytes, max(op.scratch_bytes for op in prepared.graph.ops)
    assert (plain.peak, plan.peak) == (2 * size + scratch + -size % 4, size + scratch + -size % 4 * bool(scratch))
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) if dtype == "float32" else rng.integers(-128, 128, shape)).astype(dtype)
    runs = [run_plan(prepared, p, [x]).outputs[0] for p in (plain, plan)]
    np.testing.assert_array_equal(runs[1], runs[0])
    want = virtual_machine(LowerQuantized()(mod))["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(runs[1], want, rtol=1e-5 if dtype == "float32" else 0, atol=0)


def test_values_that_others_read_are_no_scratch_in_the_output() -> None:
    """The softmax keeps its exponentials in the output, a sum with its own input does not: that may lie there."""

    def scratch(both: bool) -> tuple[tuple[int, ...], int]:
        bb = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((1, 40), "float32"))

        def computed(a: Any) -> Any:
            e = te.compute(a.shape, lambda i, j: te.exp(a[i, j]), "e")
            k = te.reduce_axis((0, 40), "k")
            total = te.compute((1,), lambda i: te.sum(e[i, k], axis=[k]), "total")
            return te.compute(a.shape, lambda i, j: e[i, j] / total[i] + (a[i, j] if both else 0.0), "y")

        with bb.function("main", [x]):
            with bb.dataflow():
                y = bb.emit_output(bb.emit_te(computed, x))
            bb.emit_func_output(y)
        (op,) = pipeline.prepare(bb.finalize(), KernelTarget()).graph.ops
        return op.in_place, op.scratch_bytes

    assert scratch(both=False) == ((0,), 0)
    assert scratch(both=True) == ((0,), 160)
