"""Networks of int16 activations with int8 weights, layer by layer and whole: what estimates of their kernels are checked with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tvm_cascade.testing.tflite import ModelWriter

_SCALE = 0.002
_WINDOW: dict[str, Any] = {
    "strideH": 1,
    "strideW": 1,
    "dilationHFactor": 1,
    "dilationWFactor": 1,
    "fusedActivationFunction": 1,
}


def conv(writer: ModelWriter, x: int, shape: Sequence[int], channels: int) -> int:
    """A 3x3 convolution of `x`, of `shape` (NHWC), "same"; the tensor that it makes."""
    parts = _weights(writer, (channels, 3, 3, shape[3]), 0)
    out = writer.tensor((*shape[:3], channels), "int16", _SCALE)
    writer.operator("CONV_2D", [x, *parts], [out], "Conv2DOptions", padding=0, **_WINDOW)
    return out


def depthwise(writer: ModelWriter, x: int, shape: Sequence[int]) -> int:
    """A 3x3 depthwise convolution of `x`, "same"."""
    parts, out = _weights(writer, (1, 3, 3, shape[3]), 3), writer.tensor(shape, "int16", _SCALE)
    how: dict[str, Any] = {"padding": 0, "depthMultiplier": 1, **_WINDOW}
    writer.operator("DEPTHWISE_CONV_2D", [x, *parts], [out], "DepthwiseConv2DOptions", **how)
    return out


def dense(writer: ModelWriter, x: int, depth: int, units: int) -> int:
    """The products of `x`, of shape (1, depth), by `units` rows of weights."""
    weights = _constant(writer, (units, depth))
    bias = writer.tensor((units,), "int64", _SCALE * 0.01, data=np.arange(units, dtype="int64") * 99)
    out = writer.tensor((1, units), "int16", _SCALE)
    writer.operator("FULLY_CONNECTED", [x, weights, bias], [out], "FullyConnectedOptions")
    return out


def add(writer: ModelWriter, x: int, y: int, shape: Sequence[int]) -> int:
    """The sum of two tensors of a shape."""
    out = writer.tensor(shape, "int16", 2 * _SCALE)
    writer.operator("ADD", [x, y], [out], "AddOptions")
    return out


def mean(writer: ModelWriter, x: int, shape: Sequence[int]) -> int:
    """The means of the channels of `x`."""
    out = writer.tensor((1, shape[3]), "int16", _SCALE)
    axes = writer.constant(np.array([1, 2], "int32"))
    writer.operator("MEAN", [x, axes], [out], "ReducerOptions", keepDims=False)
    return out


def pool(writer: ModelWriter, x: int, shape: Sequence[int], name: str) -> int:
    """A 2x2 pool of `x`, `AVERAGE_POOL_2D` or `MAX_POOL_2D`."""
    out = writer.tensor((1, shape[1] // 2, shape[2] // 2, shape[3]), "int16", _SCALE)
    how: dict[str, Any] = {"padding": 1, "strideH": 2, "strideW": 2, "filterHeight": 2, "filterWidth": 2}
    writer.operator(name, [x], [out], "Pool2DOptions", **how)
    return out


def whole(writer: ModelWriter) -> None:
    """All of them, in a row."""
    shape, wide = (1, 12, 10, 6), (1, 12, 10, 12)
    x = conv(writer, writer.activation(shape, "int16", _SCALE), shape, 12)
    x = add(writer, x, depthwise(writer, x, wide), wide)
    dense(writer, mean(writer, x, wide), 12, 5)


def layers(shape: Sequence[int]) -> Mapping[str, Callable[[ModelWriter], Any]]:
    """Networks of one layer over an input of `shape` (NHWC), by name."""

    def given(writer: ModelWriter, of: Sequence[int] = shape) -> int:
        return writer.activation(tuple(of), "int16", _SCALE)

    return MappingProxyType(
        {
            "conv int16": lambda w: conv(w, given(w), shape, shape[1] + 6),
            "depthwise int16": lambda w: depthwise(w, given(w), shape),
            "dense int16": lambda w: dense(w, given(w, (1, 9 * shape[3])), 9 * shape[3], 2 * shape[2]),
            "add int16": lambda w: add(w, given(w), given(w), shape),
            "mean int16": lambda w: mean(w, given(w), shape),
            "average pool int16": lambda w: pool(w, given(w), shape, "AVERAGE_POOL_2D"),
            "max pool int16": lambda w: pool(w, given(w), shape, "MAX_POOL_2D"),
        }
    )


def _weights(writer: ModelWriter, shape: tuple[int, ...], axis: int) -> list[int]:
    """Int8 weights of one scale an output channel, which is `axis`, and int64 biases."""
    scales = np.linspace(0.005, 0.015, shape[axis], dtype="float32")
    weights = _constant(writer, shape, scales, axis)
    values = np.arange(shape[axis], dtype="int64") * 99
    return [weights, writer.tensor((shape[axis],), "int64", scales * np.float32(_SCALE), data=values)]


def _constant(writer: ModelWriter, shape: tuple[int, ...], scales: Any = 0.01, axis: int = 0) -> int:
    values = np.random.default_rng(shape[0]).integers(-127, 128, shape).astype("int8")
    return writer.tensor(shape, "int8", scales, axis=axis, data=values)
