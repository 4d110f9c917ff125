"""Kernels that share an arena, inlined by LLVM: no load of one moves across the stores of another."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tvm_cascade import passes, pipeline
from tvm_cascade.cascading import plan_graph
from tvm_cascade.cores import KernelTarget
from tvm_cascade.emit import host
from tvm_cascade.request import PlanRequest
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.host_check import run_plan
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.quick_build import virtual_machine


def small_maps() -> tvm.IRModule:
    """Maps so small that LLVM merges all kernels into one straight line."""
    net = Net("int8", seed=3)
    x = net.max_pool(net.input((1, 15, 4, 1)), (2, 2), (2, 1))
    x = net.relu(net.add(x, x))
    return net.finish(net.global_pool(net.conv(x, 1, kernel=3)))


def test_small_kernels_in_one_arena() -> None:
    mod = passes.LowerQuantized()(small_maps())
    feed = np.random.default_rng(3).integers(-128, 128, (1, 15, 4, 1)).astype(np.int8)
    tensor = tvm.runtime.tensor(feed)
    plain = virtual_machine(mod)["main"](tensor).numpy()
    prepared = pipeline.prepare(mod, KernelTarget())
    for asked in ({"layerwise": True}, {}, {"overlap": False}):
        options = rows_alone(**asked, pixels=True)
        ran = run_plan(prepared, plan_graph(prepared.graph, options), [feed], host.optimised)
        np.testing.assert_array_equal(ran.outputs[0], plain)
        planned = passes.Cascade(PlanRequest(**asked))(mod)
        made = relax.VirtualMachine(tvm.compile(planned, target="llvm"), tvm.cpu())["main"](tensor).numpy()
        np.testing.assert_array_equal(made, plain)


def test_other_targets_get_none() -> None:
    mod = passes.LowerQuantized()(small_maps())
    with tvm.target.Target("c"):
        assert "va_end" not in passes.Cascade()(mod).script()
    assert "va_end" in passes.Cascade()(mod).script()


def test_cross_targets_build() -> None:
    planned = passes.Cascade()(passes.LowerQuantized()(small_maps()))
    for triple in ("aarch64-linux-gnu", "riscv64-unknown-linux-gnu", "x86_64-linux-gnu"):
        tvm.compile(planned, target=tvm.target.Target({"kind": "llvm", "mtriple": triple}))
