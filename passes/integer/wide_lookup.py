"""Functions of int16 activations by an interpolated table: logistic and tanh; and leaky relu, which needs none.

Both share one table, `sigmoid(i / 24)` in 0.16, interpolated by 9 or 8 bits. Source: TFLite's
`reference_integer_ops::Logistic` and `Tanh`.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from tvm_cascade.passes.integer.fixed_point import (
    i32,
    quantize_multiplier,
    round_half_away,
    te_clamp,
    te_rescale,
)
from tvm_cascade.passes.integer.island import Island, NotLowered, Quantized
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx

_INTEGER_BITS = 3  # of the power-of-two input scale that needs no multiplier
# where the reference's table lies one above `round(65536 sigmoid(i / 24))`
_ONE_MORE = (
    4, 8, 12, 14, 15, 16, 17, 19, 20, 21, 22, 25, 27, 28, 29, 30, 31, 33, 34, 35, 37, 39, 40, 41, 43, 44, 45, 46, 49,
    50, 54, 62, 63, 64, 66, 82, 86, 93, 100, 103, 112, 116, 135, 255,
)  # fmt: skip


@cache
def sigmoid_table() -> np.ndarray:
    """256 entries of uint16, as int32."""
    table = [min(round(65536 / (1 + math.exp(-i / 24))), 65535) for i in range(256)]
    for i in _ONE_MORE:
        table[i] += 1
    return np.array(table, "int32")


def lower_wide_function(island: Island, x: Quantized, function: str) -> Value:
    """`function` is sigmoid or tanh, of int16 to the scale 1/32768 that the reference prescribes."""
    out = island.output
    if x.constant is not None or out.dtype != "int16" or out.zero_point or x.zero_point:
        raise NotLowered(f"a {function} of int16 with zero points, or to another type")
    if float(out.scale) != 1 / (1 << 15):
        raise NotLowered(f"a {function} of int16 whose output scale is not 1/32768")
    m, s = _input_multiplier(float(x.step))
    bits = 9 if function == "sigmoid" else 8

    def compute(a: Tensor, table: Tensor) -> Tensor:
        def scaled(*index: Index) -> Scalar:
            half = i32((1 << s) >> 1)
            return (a[index].astype("int32") * i32(m) + half) >> i32(s)

        place = te.compute(out.shape, scaled, name="wide_lut_input")

        def finish(*index: Index) -> Scalar:
            curve = te_sigmoid(place[index], table, bits)
            return _te_curve(curve, place[index], function).astype("int16")

        return te.compute(out.shape, finish, name="wide_lut")

    attrs = {"function": function, "multiplier": m, "shift": s}
    return island.emitter.call("wide_lut", compute, [x.value], [sigmoid_table()], attrs)


def te_sigmoid(v: Scalar, table: Tensor, bits: int) -> Scalar:
    """The table at `|v| / 2^bits`, interpolated, with that many fraction bits more."""
    magnitude = tirx.Select(v < i32(0), i32(0) - v, v)
    high = tirx.min(magnitude >> i32(bits), i32(254))
    low = magnitude & i32((1 << bits) - 1)
    between = (table[high] << i32(bits)) + low * (table[high + i32(1)] - table[high])
    top = (0x7FFF << 10) if bits == 9 else (0xFFFF << 8)
    return tirx.Select((magnitude >> i32(bits)) >= i32(255), i32(top), between)


def _te_curve(curve: Scalar, v: Scalar, function: str) -> Scalar:
    """The other half by symmetry, in 0.15."""
    if function == "sigmoid":
        below = i32((1 << 25) + (1 << 9) - 1) - curve
        return tirx.Select(v >= i32(0), curve + i32(1 << 9), below) >> i32(10)
    half, round_up = 1 << 23, 1 << 7
    below = i32(half + round_up - 1) - curve
    return tirx.Select(v >= i32(0), curve + i32(round_up - half), below) >> i32(8)


def _input_multiplier(scale: float) -> tuple[int, int]:
    """Multiplier and right shift from stored values to 3/4 of 1/2^14ths."""
    exact = math.log2(scale)
    shift = (15 - _INTEGER_BITS) + round_half_away(exact)
    if abs(exact - round_half_away(exact)) < 1e-3 and shift in (0, 1):
        return 3 << shift, 0
    multiplier, shift = scale * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2.0 and shift <= 30:
        shift += 1
        multiplier *= 2.0
    if multiplier > 32767.0 or shift > 30:
        raise NotLowered(f"a function of int16 of scale {scale:g}")
    return int(multiplier), shift


def lower_wide_leaky_relu(island: Island, x: Quantized, alpha: float) -> Value:
    """`MBQM` with one multiplier on each side of zero."""
    out = island.output
    if x.constant is not None or out.dtype != "int16":
        raise NotLowered("a leaky relu of int16 to another type")
    slope = np.float32(x.step * np.float32(alpha))
    above = quantize_multiplier(float(np.float32(x.step / out.scale)))
    m, s = quantize_multiplier(float(np.float32(slope / out.scale)))
    if max(above[1], s) > 14:
        raise NotLowered("a leaky relu whose scales are too far apart")
    sign = -1 if m < 0 else 1

    def compute(a: Tensor) -> Tensor:
        def at(*index: Index) -> Scalar:
            d = a[index].astype("int32") - i32(x.zero_point)
            below = te_rescale(d, abs(m), s, 1 << 16) * i32(sign)
            scaled = tirx.Select(d >= i32(0), te_rescale(d, *above, 1 << 16), below)
            return te_clamp(scaled + i32(out.zero_point), out.lo, out.hi, out.dtype)

        return te.compute(out.shape, at, name="leaky_relu")

    return island.emitter.call("leaky_relu", compute, [x.value], attrs={"output_zero_point": out.zero_point})
