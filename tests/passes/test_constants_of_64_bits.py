"""Constants of 64 bits through every pass that writes a module anew: Relax makes 32 bits of those without a stated type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade import passes
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.testing.quick_build import quick_run

BEYOND = {  # values that 32 bits do not hold: a vector, which is a parameter of kernels, and a scalar, which is inside
    "float64": (np.array([1e-12, 1 + 1e-12, 3.0]), np.array(1 / 3)),
    "int64": (np.array([2**40, 1, -(2**35)]), np.array(2**33 + 1)),
}


def network(dtype: str) -> tvm.IRModule:
    vector, scalar = BEYOND[dtype]
    bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((2, 3), dtype))
    with bb.function("main", [x]):
        with bb.dataflow():
            total = bb.emit(relax.op.add(x, relax.const(vector, dtype)))
            made = bb.emit_output(relax.op.add(total, relax.const(scalar, dtype)))
        bb.emit_func_output(made)
    return bb.get()


def partitioned(mod: tvm.IRModule, x: np.ndarray) -> Any:
    return quick_run(passes.PartitionRegions()(mod), x)


def substituted(mod: tvm.IRModule, x: np.ndarray) -> Any:
    return quick_run(passes.SubstituteGraph()(mod), x)


def staged(mod: tvm.IRModule, x: np.ndarray) -> Any:
    stages = passes.ScheduleStages(model=AnalyticCost(find_device("v100")))
    return Session(compile_stages(stages(mod))).run(x)


@pytest.mark.parametrize(
    ("dtype", "way"),
    [("float64", partitioned), *((dtype, way) for dtype in BEYOND for way in (substituted, staged))],
)
def test_constants_keep_their_type(dtype: str, way: Callable[..., Any]) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    vector, scalar = BEYOND[dtype]
    (made,) = way(network(dtype), x)
    assert made.dtype == x.dtype
    np.testing.assert_array_equal(made, x + vector + scalar)
