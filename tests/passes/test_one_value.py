"""Operators whose bounds leave one value, such as behind a RELU where the zero point is the largest stored value: constants.

Compilers delete the loops of their kernels, which estimates of instructions cannot know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tvm_cascade import pipeline
from tvm_cascade.cascading import plan_graph
from tvm_cascade.cores import KernelTarget, kernel_target
from tvm_cascade.frontend import load
from tvm_cascade.testing.host_check import run_plan
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.reference import Reference
from tvm_cascade.testing.tflite import ModelWriter

SHAPE, RELU = (1, 6, 5, 4), 1


class Net:
    def __init__(self, dtype: str) -> None:
        self.dtype, self.rng, self.writer = dtype, np.random.default_rng(3), ModelWriter()
        self.last = int(np.iinfo(dtype).max)
        self.x = self.writer.activation(SHAPE, dtype, 0.1, 7)

    def conv(self, x: int, zero_point: int, activation: int = 0) -> int:
        data = self.rng.integers(1, 120, (4, 3, 3, 4)).astype(self.dtype)
        weights = self.writer.tensor(data.shape, self.dtype, 0.01, 0 if self.dtype == "int8" else 100, data=data)
        bias = self.writer.tensor((4,), "int32", 0.001, data=self.rng.integers(-99, 99, 4).astype("int32"))
        how = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
        return self.then(
            "CONV_2D", [x, weights, bias], zero_point, "Conv2DOptions", fusedActivationFunction=activation, **how
        )

    def then(self, kind: str, inputs: list[int], zero_point: int, options: str, **how: object) -> int:
        out = self.writer.tensor(SHAPE, self.dtype, 0.1, zero_point)
        self.writer.operator(kind, inputs, [out], options, inner=True, **how)
        return out


def _alone(net: Net) -> int:
    return net.conv(net.conv(net.x, 3), net.last, RELU)


def _in_front(net: Net) -> int:
    return net.conv(_alone(net), 5)


def _pool(net: Net) -> int:
    how = {"padding": 0, "strideH": 1, "strideW": 1, "filterHeight": 2, "filterWidth": 2}
    return net.then(
        "MAX_POOL_2D", [net.conv(net.x, net.last)], net.last, "Pool2DOptions", fusedActivationFunction=RELU, **how
    )


def _first_operand(net: Net) -> int:
    return net.then("SUB", [_in_front(net), net.conv(net.x, 2)], 9, "SubOptions")


def _second_operand(net: Net) -> int:
    return net.then("SUB", [net.conv(net.x, 2), _in_front(net)], 9, "SubOptions")


def _joined(net: Net) -> int:
    a, b = _alone(net), net.conv(net.x, net.last)
    out = net.writer.tensor((1, 6, 5, 8), net.dtype, 0.1, net.last)
    net.writer.operator("CONCATENATION", [a, b], [out], "ConcatenationOptions", inner=True, axis=3)
    return out


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("build", "convolutions"),
    [(_alone, 0), (_in_front, 0), (_pool, 0), (_first_operand, 1), (_second_operand, 1), (_joined, 1)],
)
def test_nothing_is_computed_for_them(
    tmp_path: Path, build: Callable[[Net], int], convolutions: int, dtype: str
) -> None:
    """Neither they, nor what they alone read, nor what reads them alone; the outputs are the reference's."""
    net = Net(dtype)
    net.writer.outputs.append(build(net))
    (tmp_path / "m.tflite").write_bytes(net.writer.finish())
    mod, x = load(tmp_path / "m.tflite"), net.rng.integers(0, 127, SHAPE).astype(dtype)
    expected = Reference(net.writer.finish()).run([x])[0]
    for core in (KernelTarget(), kernel_target("cortex-m4"), kernel_target("cortex-m55")):
        prepared = pipeline.prepare(mod, core)
        assert sum(op.kind.startswith("conv2d") for op in prepared.graph.ops) == convolutions
        assert prepared.graph.macs <= convolutions * 4 * np.prod(SHAPE) * 9
        if core == KernelTarget():
            for options in (rows_alone(), rows_alone(layerwise=True)):
                run = run_plan(prepared, plan_graph(prepared.graph, options), [x])
                np.testing.assert_array_equal(run.outputs[0], expected)
