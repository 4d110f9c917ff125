"""Plans, lowered and run on the host: equal to the plain network, within their arena, with the work they state."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade import passes, pipeline
from tvm_cascade.cascading import PlanOptions, plan_graph, validate
from tvm_cascade.cascading.unread_columns import has_unread_columns
from tvm_cascade.cores import KernelTarget
from tvm_cascade.emit.host import host_program, run_host
from tvm_cascade.emit.placement import place_io
from tvm_cascade.errors import UsageError
from tvm_cascade.request import PlanRequest
from tvm_cascade.tensor_spec import graph_io
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.quick_build import quick_build, virtual_machine
from tvm_cascade.testing.random_dags import RandomDag

CAN = {"pixels": True, "accumulators": True, "stripes": True}
OPTIONS = {
    "layerwise": rows_alone(layerwise=True, **CAN),
    "rows": rows_alone(granularity="row", **CAN),
    "smallest": rows_alone(**CAN),
    "no overlap": rows_alone(overlap=False, **CAN),
    "streamed": rows_alone(stream_input=True, **CAN),
    "recomputing": rows_alone(max_macs=2.0, overlap=False, **CAN),
}


def run(prepared: pipeline.Prepared, options: PlanOptions, feed: np.ndarray):
    plan = plan_graph(prepared.graph, options)
    validate(plan)
    program = host_program(
        pipeline.lower(prepared, plan, counted=True), place_io(plan, graph_io(plan.graph)), quick_build
    )
    return plan, run_host(program, [{program.inputs[0].name: feed}])


@pytest.mark.parametrize("seed", (1, 3, 5, 6, 8, 9, 12, 13))  # of one input
def test_every_plan_of_a_random_network_computes_the_same(seed: int) -> None:
    prepared = pipeline.prepare(RandomDag(seed).module(), KernelTarget())
    tensor = prepared.graph.tensors[prepared.graph.inputs[0]]
    feed = np.random.default_rng(seed).integers(-128, 128, tensor.shape).astype(np.int8)
    plain = None
    for name, options in OPTIONS.items():
        plan, result = run(prepared, options, feed)
        plain = plain or result
        for key, value in plain.outputs[0].items():
            np.testing.assert_array_equal(result.outputs[0][key], value, err_msg=name)
        assert result.executed_macs == plan.macs, name
        assert result.arena_high_water <= plan.peak, name
        if options.max_macs == 1.0:
            fewer = plan.macs < plan.baseline_macs and has_unread_columns(prepared.graph)
            assert fewer or plan.macs == plan.baseline_macs, name


def small_network() -> tvm.IRModule:
    net = Net("int8", seed=3)
    x = net.input((1, 15, 11, 3))
    y = net.conv(x, 8, kernel=3, stride=2, activation="relu")
    z = net.depthwise(y, kernel=3, activation="relu")
    return net.finish(net.add(net.conv(z, 8, kernel=1), y))


def test_the_pass_gives_a_module_for_the_stock_vm() -> None:
    mod = small_network()
    before = mod.script()
    feed = np.random.default_rng(0).integers(-128, 128, (1, 15, 11, 3)).astype(np.int8)
    integers = passes.LowerQuantized()(mod)
    plain = virtual_machine(integers)["main"](tvm.runtime.tensor(feed))
    planned = tvm.transform.Sequential([passes.LowerQuantized(), passes.Cascade()])(mod)
    made = relax.VirtualMachine(tvm.compile(planned, target="llvm"), tvm.cpu())["main"](tvm.runtime.tensor(feed))
    np.testing.assert_array_equal(made.numpy(), plain.numpy())
    assert mod.script() == before


def test_the_registered_pipeline_builds_a_users_module() -> None:
    feed = np.random.default_rng(1).integers(-128, 128, (1, 15, 11, 3)).astype(np.int8)
    mod = small_network()
    plain = virtual_machine(passes.LowerQuantized()(mod))
    built = relax.VirtualMachine(tvm.compile(mod, target="llvm", relax_pipeline="cascade"), tvm.cpu())
    tensor = tvm.runtime.tensor(feed)
    np.testing.assert_array_equal(built["main"](tensor).numpy(), plain["main"](tensor).numpy())


def test_a_float_network_is_planned_too() -> None:
    net = Net("float32", layout="NCHW", seed=5)
    x = net.input((1, 3, 12, 10))
    mod = net.finish(net.conv(net.conv(x, 4, kernel=3, activation="relu"), 5, kernel=3, stride=2))
    feed = np.random.default_rng(2).standard_normal((1, 3, 12, 10)).astype(np.float32)
    tensor = tvm.runtime.tensor(feed)
    plain = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())["main"](tensor).numpy()
    made = relax.VirtualMachine(tvm.compile(passes.Cascade()(mod), target="llvm"), tvm.cpu())["main"](tensor).numpy()
    np.testing.assert_allclose(made, plain, rtol=1e-5, atol=1e-5)


def test_a_relax_function_gets_its_inputs_whole() -> None:
    with pytest.raises(UsageError, match="stream_input"):
        passes.Cascade(PlanRequest(stream_input=True))
