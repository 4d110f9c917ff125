"""A network for wake words on a stream, as a `.tflite` file: every call takes one row of a spectrum, and every layer keeps in a
variable the rows that its window still needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_cascade.testing.tflite import ModelWriter

_SCALE = 0.05


def wake_word(
    features: int = 12, channels: int = 8, kernels: tuple[int, ...] = (3, 5), seed: int = 0, zero_point: int = -5
) -> bytes:
    """The file: depthwise convolutions over time, `kernels` rows each, with products in between, and a dense layer over
    the last four rows."""
    rng, writer = np.random.default_rng(seed), ModelWriter()
    depths = [features, *(channels for _ in kernels)]
    rows = [*(k - 1 for k in kernels), 3]
    shapes = {f"ring{n}": (1, count, 1, depth) for n, (count, depth) in enumerate(zip(rows, depths, strict=True))}
    writer.begin_with({n: np.full(s, zero_point, "int8") for n, s in shapes.items()}, _SCALE, zero_point)
    at = writer.activation((1, 1, 1, features), "int8", _SCALE, zero_point, name="row")
    for n, kernel in enumerate(kernels):
        window = _ring(writer, f"ring{n}", at, kernel - 1, depths[n], zero_point)
        at = _depthwise(writer, rng, window, kernel, depths[n], zero_point)
        at = _pixel(writer, rng, at, channels, depths[n], zero_point)
    last = _ring(writer, f"ring{len(kernels)}", at, 3, channels, zero_point)
    _labels(writer, rng, last, 4 * channels, zero_point)
    return writer.finish()


def _ring(writer: ModelWriter, name: str, at: int, rows: int, depth: int, zero: int) -> int:
    """The rows that a variable holds and the new one; the variable holds the last of them afterwards."""
    handle = writer.variable(name)
    before, whole, after = (
        writer.tensor((1, count, 1, depth), "int8", _SCALE, zero) for count in (rows, rows + 1, rows)
    )
    writer.operator("READ_VARIABLE", [handle], [before], "ReadVariableOptions", inner=True)
    writer.operator("CONCATENATION", [before, at], [whole], "ConcatenationOptions", inner=True, axis=1)
    ends = [writer.constant(np.array(v, "int32")) for v in ([0, 1, 0, 0], [1, rows + 1, 1, depth], [1, 1, 1, 1])]
    writer.operator("STRIDED_SLICE", [whole, *ends], [after], "StridedSliceOptions", inner=True)
    writer.operator("ASSIGN_VARIABLE", [handle, after], [], "AssignVariableOptions", inner=True)
    return whole


_WINDOW: dict[str, Any] = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}


def _weights(writer: ModelWriter, rng: np.random.Generator, shape: tuple[int, ...], units: int) -> list[int]:
    data = rng.integers(-127, 128, shape).astype("int8")
    bias = rng.integers(-300, 300, units).astype("int32")
    return [
        writer.tensor(shape, "int8", 0.01, data=data),
        writer.tensor((units,), "int32", 0.01 * _SCALE, data=bias),
    ]


def _depthwise(writer: ModelWriter, rng: np.random.Generator, at: int, kernel: int, depth: int, zero: int) -> int:
    made = writer.tensor((1, 1, 1, depth), "int8", _SCALE, zero)
    given = [at, *_weights(writer, rng, (1, kernel, 1, depth), depth)]
    options = {**_WINDOW, "depthMultiplier": 1, "fusedActivationFunction": 1}
    writer.operator("DEPTHWISE_CONV_2D", given, [made], "DepthwiseConv2DOptions", inner=True, **options)
    return made


def _pixel(writer: ModelWriter, rng: np.random.Generator, at: int, units: int, depth: int, zero: int) -> int:
    made = writer.tensor((1, 1, 1, units), "int8", _SCALE, zero)
    given = [at, *_weights(writer, rng, (units, 1, 1, depth), units)]
    writer.operator("CONV_2D", given, [made], "Conv2DOptions", inner=True, **_WINDOW)
    return made


def _labels(writer: ModelWriter, rng: np.random.Generator, at: int, depth: int, zero: int) -> None:
    made = writer.tensor((1, 3), "int8", _SCALE, zero, name="labels")
    given = [at, *_weights(writer, rng, (3, depth), 3)]
    writer.operator("FULLY_CONNECTED", given, [made], "FullyConnectedOptions", keepNumDims=False)
