"""QDQ networks of ONNX without their dead channels: bit for bit those with all of them, and those of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnxruntime

from tvm_cascade.frontend import load
from tvm_cascade.passes import LowerQuantized
from tvm_cascade.passes.shrink_channels import shrink_channels
from tvm_cascade.testing.onnx_layers import Layers
from tvm_cascade.testing.reference import Compiled

_LOWER: Any = LowerQuantized()
_SHAPE = (1, 3, 6, 6)


class _Net(Layers):
    """Layers between QuantizeLinear and DequantizeLinear, in channels first, some of whose filters are zero."""

    def pick(self, *options):
        return options[int(self.rng.integers(len(options)))]

    def stored(self, x: str, scale: float = 0.0, zero_point: int = 3) -> str:
        return super().stored(x, scale or self.pick(0.01, 0.02, 0.04), self.pick(-128, -5, 3))

    def planted(self, shape: tuple[int, ...], share: float = 0.4) -> str:
        """Weights (out, in, ...), a scale for every output."""
        data = self.rng.integers(-127, 128, shape).astype("int8")
        data[self.rng.random(shape[0]) < share] = 0
        data[:, self.rng.random(shape[1]) < share / 2] = 0
        scales = self.rng.uniform(0.002, 0.006, shape[0]).astype("float32")
        zeros = self.constant(np.zeros(shape[0], "int8"))
        return self.node("DequantizeLinear", self.constant(data), self.constant(scales), zeros, axis=0)

    def conv(self, x: str, c: int, out: int, k: int, groups: int = 1) -> str:
        """A convolution with a bias, whose scale may be another than that of the sums, and perhaps a relu behind it."""
        bias = self.rng.integers(-4000, 4000, out).astype("int32")
        scales = self.rng.uniform(0.00004, 0.0001, out).astype("float32")
        zeros = self.constant(np.zeros(out, "int32"))
        b = self.node("DequantizeLinear", self.constant(bias), self.constant(scales), zeros, axis=0)
        weights = self.planted((out, c // groups, k, k))
        y = self.node("Conv", x, weights, b, group=groups, pads=[k // 2] * 4)
        return self.stored(self.node("Relu", y) if self.pick(True, False) else y)

    def write(self, path: Path) -> None:
        x = self.conv(self.stored("x"), 3, 6, 3)
        for _ in range(3):
            y = self.conv(self.conv(x, 6, 6, 3, 6), 6, 6, 1)
            x = self.stored(self.node("Add", x, y)) if self.pick(True, False) else y
            x = self.pick(self.stored, lambda v: self.stored(self.node("Relu", v)), str)(x)
        x = self.stored(self.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
        pooled = self.node("Flatten", self.stored(self.node("GlobalAveragePool", self.conv(x, 6, 8, 1))))
        y = self.node("Gemm", pooled, self.planted((4, 8)), transB=1)
        self.save(path, self.stored(y), _SHAPE, 2)


def test_random_networks_give_the_bits_of_the_file(tmp_path: Path) -> None:
    removed = compared = equal = 0
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for seed in range(12):
        path = tmp_path / "m.onnx"
        _Net(seed).write(path)
        mod = load(path)
        made, lost = shrink_channels(mod)
        removed += sum(layer.channels for layer in lost)
        small, whole = Compiled(_LOWER(made)), Compiled(_LOWER(mod))
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for k in range(3):
            x = np.random.default_rng(k).uniform(-3, 3, _SHAPE).astype("float32")
            ours, theirs = small(x)[0], np.asarray(session.run(None, {"x": x})[0])
            np.testing.assert_array_equal(ours, whole(x)[0])
            assert np.abs(ours - theirs).max() <= 0.041  # a step of the output
            compared, equal = compared + ours.size, equal + int((ours == theirs).sum())
    assert removed > 100
    assert equal >= 0.95 * compared  # sums in floats are rounded otherwise where they lie between two steps
