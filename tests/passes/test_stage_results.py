"""What staged programs return: constants beside tensors, and tuples nested as in the function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_cascade.errors import GraphError
from tvm_cascade.relax_pipeline import cascade_pipeline
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.testing.quick_build import QUICK_TARGET


@I.ir_module
class Nested:
    @R.function
    def main(x: R.Tensor((2, 3), "float32")):
        with R.dataflow():
            a = R.exp(x)
            k = R.add(R.const([0.0, 1.0, 2.0], "float32"), R.const(1.0, "float32"))
            out = ((a,), R.const([3, 4], "int32"), k, x, (k, (a, R.negative(a))))
            R.output(out)
        return out


@I.ir_module
class Constants:
    @R.function
    def main(x: R.Tensor((2, 3), "float32")):
        with R.dataflow():
            k = R.add(R.const([0.0, 1.0], "float32"), R.const(1.0, "float32"))
            R.output(k)
        return k


@I.ir_module
class OneTensor:
    @R.function
    def main(x: R.Tensor((2, 3), "float32")):
        with R.dataflow():
            out = (R.exp(x),)
            R.output(out)
        return out


def arrays(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else tuple(map(arrays, value))


def result(mod: tvm.IRModule, pipeline: Any, x: np.ndarray) -> Any:
    machine = relax.VirtualMachine(tvm.compile(mod, QUICK_TARGET, relax_pipeline=pipeline), tvm.cpu())
    return arrays(machine["main"](tvm.runtime.tensor(x)))


def require_equal(one: Any, other: Any) -> None:
    if isinstance(other, tuple):
        assert isinstance(one, tuple) and len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            require_equal(a, b)
    else:
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("mod", [Nested, Constants, OneTensor], ids=["nested", "constants", "one"])
def test_results_are_those_of_tvms_default(mod: tvm.IRModule) -> None:
    x = np.arange(6, dtype="float32").reshape(2, 3) / 4
    require_equal(result(mod, cascade_pipeline(objective="latency"), x), result(mod, "default", x))


def test_a_function_of_constants_alone_has_no_stages() -> None:
    with pytest.raises(GraphError, match="no tensor that it computes"):
        stage_graph(Constants)
