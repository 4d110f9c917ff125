"""Compiling stages of many kernels: TVM's search for common subexpressions is left out, and only there."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir.instrument import pass_instrument

from tvm_cascade.parallel.problem import CONCURRENT, Schedule, Stage
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages

SEARCH = "tirx.CommonSubexprElim"


@pass_instrument
class Passes:
    """Names of the passes that run."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run_before_pass(self, _mod, info) -> None:
        self.names.append(str(info.name))


def branches(count: int) -> tvm.IRModule:
    """Build a network of `count` hyperbolic tangents of sums of the input and a number."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 40), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            sums = [builder.emit(relax.op.add(x, relax.const(float(k), "float32"))) for k in range(count)]
            out = builder.emit_output(relax.Tuple([builder.emit(relax.op.tanh(s)) for s in sums]))
        builder.emit_func_output(out)
    return builder.finalize()


@pytest.mark.parametrize(("count", "searched"), [(4, True), (40, False)])
def test_subexpressions_of_large_stages_are_left_to_llvm(count, searched):
    net = stage_network(branches(count), "llvm")
    units = unit_graph(net.graph, "fused")
    stage = Stage(CONCURRENT, tuple(unit.ops for unit in units.units))
    mod = lower_stages(net, units, Schedule((stage,), 0.0), LowerOptions(workers=2))
    passes = Passes()
    with tvm.transform.PassContext(opt_level=2, instruments=[passes]):
        session = Session(compile_stages(mod))
    assert (SEARCH in passes.names) is searched
    x = np.random.default_rng(0).standard_normal((4, 40)).astype("float32")
    for k, made in enumerate(session.run(x)):
        np.testing.assert_allclose(made, np.tanh(x + np.float32(k)), rtol=1e-6, atol=1e-6)
