"""Lower unary int16 operators: float functions by interpolated tables; leaky relu, abs and negation by arithmetic.

sigmoid and tanh share one table, `sigmoid(i / 24)` in Q0.16, interpolated by 9 or 8 bits. Other functions (exp, log,
gelu, rsqrt) have 513 samples each, corrected by half the interpolation error at the interval's middle. Functions on
real numbers (ONNX, PyTorch) have 1025 samples with eight more bits, and parabolas between. Source: TFLite's
`reference_integer_ops::Logistic` and `Tanh`, `LUTPopulate` and `AbsEvalQuantized`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tvm_cascade.passes.integer.fixed_point import i32, quantize_multiplier, round_half_away, rounded, te_rescale
from tvm_cascade.passes.integer.task import Output, Task
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx
from tvm_cascade.program.operator import Quantized
from tvm_cascade.program.quant import NotLowered

_INTEGER_BITS = 3  # integer bits of the fixed-point input for which a power-of-two scale needs no multiplier
# indices at which the reference's table is one above `round(65536 sigmoid(i / 24))`
_ONE_MORE = (
    4, 8, 12, 14, 15, 16, 17, 19, 20, 21, 22, 25, 27, 28, 29, 30, 31, 33, 34, 35, 37, 39, 40, 41, 43, 44, 45, 46, 49,
    50, 54, 62, 63, 64, 66, 82, 86, 93, 100, 103, 112, 116, 135, 255,
)  # fmt: skip


@cache
def sigmoid_table() -> np.ndarray:
    """Return the reference's table for `sigmoid(i / 24)` in Q0.16: 256 entries in uint16 range, as int32."""
    table = [min(round(65536 / (1 + math.exp(-i / 24))), 65535) for i in range(256)]
    for i in _ONE_MORE:
        table[i] += 1
    return np.array(table, "int32")


def lower_int16_function(task: Task, x: Quantized, function: str) -> Value:
    """Lower sigmoid or tanh (`function`) of int16. The reference requires the output scale 1/32768; real operators take any."""
    out = task.output
    if x.constant is not None or out.dtype != "int16" or out.zero_point or x.zero_point:
        raise NotLowered(f"a {function} of int16 with zero points, or to another type")
    if task.real:
        return lower_int16_table(task, x, function, _tanh if function == "tanh" else _sigmoid)
    if float(out.scale) != 1 / (1 << 15):
        raise NotLowered(f"a {function} of int16 whose output scale is not 1/32768")
    m, s = _input_multiplier(float(x.step))
    bits = 9 if function == "sigmoid" else 8

    def compute(a: Tensor, table: Tensor) -> Tensor:
        def scaled(*index: Index) -> Scalar:
            half = i32((1 << s) >> 1)
            return (a[index].astype("int32") * i32(m) + half) >> i32(s)

        argument = te.compute(out.shape, scaled, name="wide_lut_input")

        def finish(*index: Index) -> Scalar:
            curve = te_sigmoid(argument[index], table, bits)
            return _te_curve(curve, argument[index], function).astype("int16")

        return te.compute(out.shape, finish, name="wide_lut")

    return task.emitter.call("wide_lut", compute, [x.source, sigmoid_table()], function=function, multiplier=m, shift=s)


def _tanh(v: np.float32) -> float:
    return math.tanh(v)


def _sigmoid(v: np.float32) -> float:
    return 0.5 + 0.5 * math.tanh(v / 2)


def te_sigmoid(v: Scalar, table: Tensor, bits: int) -> Scalar:
    """Interpolate the table at `|v| / 2^bits`; the result has `bits` more fraction bits than the table."""
    magnitude = tirx.Select(v < i32(0), i32(0) - v, v)
    high = tirx.min(magnitude >> i32(bits), i32(254))
    low = magnitude & i32((1 << bits) - 1)
    between = (table[high] << i32(bits)) + low * (table[high + i32(1)] - table[high])
    top = (0x7FFF << 10) if bits == 9 else (0xFFFF << 8)
    return tirx.Select((magnitude >> i32(bits)) >= i32(255), i32(top), between)


def _te_curve(curve: Scalar, v: Scalar, function: str) -> Scalar:
    """Compute `v`'s sigmoid or tanh in Q0.15, from `|v|`'s interpolated sigmoid by symmetry."""
    if function == "sigmoid":
        below = i32((1 << 25) + (1 << 9) - 1) - curve
        return tirx.Select(v >= i32(0), curve + i32(1 << 9), below) >> i32(10)
    half, round_up = 1 << 23, 1 << 7
    below = i32(half + round_up - 1) - curve
    return tirx.Select(v >= i32(0), curve + i32(round_up - half), below) >> i32(8)


def _input_multiplier(scale: float) -> tuple[int, int]:
    """Return the reference's multiplier and right shift from stored values to the table's input: units of 1 / (3 *
    4096).
    """
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


def lower_int16_leaky_relu(task: Task, x: Quantized, alpha: float) -> Value:
    """Lower to `MBQM` with a single multiplier on each side of zero."""
    out = task.output
    if x.constant is not None or out.dtype != "int16":
        raise NotLowered("a leaky relu of int16 to another type")
    if task.explicit:
        raise NotLowered("a leaky relu of floats between quantizations of int16")
    slope = np.float32(x.step * np.float32(alpha))
    ratios = [np.float64(a) / np.float64(out.scale) if out.once else np.float32(a / out.scale) for a in (x.step, slope)]
    above, (m, s) = (quantize_multiplier(float(ratio)) for ratio in ratios)
    if max(above[1], s) > 14:
        raise NotLowered("a leaky relu whose scales are too far apart")
    sign = -1 if m < 0 else 1

    def element(index: tuple[Index, ...], a: Tensor) -> Scalar:
        d = x.centred(a[index])
        below = out.rescaled(d, abs(m), s, 1 << 16) * i32(sign)
        return out.stored(tirx.Select(d >= i32(0), out.rescaled(d, *above, 1 << 16), below))

    return task.elementwise("leaky_relu", element, [x.operand], output_zero_point=out.zero_point)


def lower_int16_abs(task: Task, x: Quantized) -> Value:
    """Lower to `MBQM(|x|)`, or `|x|` for equal scales."""
    out = _symmetric(task, x, "abs")
    if task.explicit and x.step != out.scale:
        raise NotLowered("an abs of floats between quantizations of int16")
    m, s = quantize_multiplier(float(np.float32(x.step / out.scale)))
    if s > 14:
        raise NotLowered("an abs whose scales are too far apart")

    def magnitude(v: Scalar) -> Scalar:
        value = tirx.Select(v < i32(0), i32(0) - v, v)
        return value if x.step == out.scale else te_rescale(value, m, s, 1 << 15)

    return task.elementwise("abs", lambda index, a: out.clamped(magnitude(a[index].astype("int32"))), [x.operand])


def lower_int16_negative(task: Task, x: Quantized) -> Value:
    """Negate. The reference ignores scales and wraps, so -32768 stays; for real operators it saturates to 32767."""
    out = _symmetric(task, x, "negation")
    if task.real and x.step != out.scale:
        raise NotLowered("a negation of real numbers between scales")
    lowest = i32(_HIGHEST if task.real else _LOWEST)

    def element(index: tuple[Index, ...], a: Tensor) -> Scalar:
        v = a[index].astype("int32")
        return out.clamped(tirx.Select(v == i32(_LOWEST), lowest, i32(0) - v))

    return task.elementwise("negative", element, [x.operand])


def lower_int16_table(task: Task, x: Quantized, kind: str, function: Callable[[np.float32], float]) -> Value:
    """Lower `function` to a table with 513 samples over the input's range, interpolated. The reference's slopes have 16
    bits: they wrap if neighbouring samples lie further apart, such as at input scales far above training. A function on
    real numbers becomes a table of parabolas.
    """
    out = _symmetric(task, x, kind)
    if task.real:
        return _lower_to_parabolas(task, x, kind, function)
    with np.errstate(invalid="ignore"):
        samples = _samples(function, x, out)
    if not np.all(np.isfinite(samples)):
        raise NotLowered(f"a function {kind} that is infinite within its input's range")
    narrow = bool(samples.min() >= _LOWEST and samples.max() <= _HIGHEST)
    table = samples.astype("int16" if narrow else "int32")
    steps = np.diff(samples)
    wraps = bool(np.any((steps < _LOWEST) | (steps > _HIGHEST)))

    def element(index: tuple[Index, ...], a: Tensor, t: Tensor) -> Scalar:
        value = te_interpolated(t, a[index].astype("int32"), wraps)
        return value.astype("int16") if narrow else out.clamped(value)

    return task.elementwise(kind, element, [x.operand, table])


def _lower_to_parabolas(task: Task, x: Quantized, kind: str, function: Callable[[np.float32], float]) -> Value:
    """Compute `function` by parabolas through three of 1025 samples with `_FRACTION` fraction bits, and one rounding.

    Raises `NotLowered` unless the error before rounding is less than `_OFF` of a step.
    """
    out = task.output
    places = np.arange(_LOWEST, _HIGHEST + 2, 64)
    exact = _steps(function, x, out, places)
    if not np.all(np.isfinite(exact)):
        raise NotLowered(f"a function {kind} that is infinite within its input's range")
    table = np.rint(np.clip(exact, -_FARTHEST, _FARTHEST) * (1 << _FRACTION)).astype("int32")
    if (off := _largest_error(table, function, x, out)) > _OFF:
        raise NotLowered(f"a function {kind} of int16, of which a table is {off:.2g} steps off")

    def element(index: tuple[Index, ...], a: Tensor, t: Tensor) -> Scalar:
        v = a[index].astype("int32")
        entry, low = ((v >> i32(7)) + i32(256)) * i32(2), (v & i32(127)).astype("int64")
        first, middle, last = (t[entry + i32(k)].astype("int64") for k in range(3))
        half = tirx.const(1 << (12 + _FRACTION), "int64")
        value = (_parabola(first, middle, last, low) + half) >> tirx.const(13 + _FRACTION, "int64")
        lowest, highest = (tirx.const(bound, "int64") for bound in (out.lo, out.hi))
        return tirx.max(tirx.min(value, highest), lowest).astype("int16")

    return task.elementwise(kind, element, [x.operand, table])


def _parabola(first: Any, middle: Any, last: Any, low: Any) -> Any:
    """Return 2^13 times the parabola through samples at 0, 64 and 128, at `low`."""
    return first * 8192 + low * ((middle - first) * 128 + (first - middle * 2 + last) * (low - 64))


def te_interpolated(table: Tensor, v: Scalar, wraps: bool = False) -> Scalar:
    """Interpolate a 513-entry table at the int16 value `v` by its low seven bits, with 16-bit slopes if it `wraps`."""
    entry = (v >> i32(7)) + i32(256)
    base, after = table[entry].astype("int32"), table[entry + i32(1)].astype("int32")
    slope = (after - base).astype("int16").astype("int32") if wraps else after - base
    return base + ((slope * (v & i32(127)) + i32(64)) >> i32(7))


_LOWEST, _HIGHEST = -(1 << 15), (1 << 15) - 1
_SAMPLES = 512
_FARTHEST = 1 << 22  # sample of a function of real numbers, in steps
_FRACTION = 8  # bits of samples of real numbers behind the point
_OFF = 1 / 32  # of a step


def _samples(function: Callable[[np.float32], float], x: Quantized, out: Output) -> np.ndarray:
    """Compute a function's 513 samples, step by step in float32 like the reference (`LUTPopulate`)."""
    f32 = np.float32
    low, high = x.step * f32(_LOWEST), x.step * f32(_HIGHEST)
    step = (high - low) / f32(_SAMPLES)
    inverse = f32(65536) / (out.scale * f32(_HIGHEST) - out.scale * f32(_LOWEST))

    def scaled(v: np.float32) -> np.float32:
        with np.errstate(over="ignore"):
            return f32(function(v)) * inverse

    values = []
    for i in range(_SAMPLES):
        at = low + f32(i) * step
        here, after = rounded(scaled(at)), scaled(low + f32(i + 1) * step)
        middle = rounded(scaled(at + step / f32(2)))
        bend = rounded((rounded((after + here) / f32(2)) - middle) / f32(2))
        values.append(min(max(here - bend, f32(_LOWEST)), f32(_HIGHEST)))
    values.append(min(max(rounded(scaled(high)), f32(_LOWEST)), f32(_HIGHEST)))
    return np.array(values)


def _largest_error(table: np.ndarray, function: Callable[[np.float32], float], x: Quantized, out: Output) -> float:
    """Return by how many steps the parabolas are off at most, of every third stored value that does not saturate."""
    places = np.arange(_LOWEST, _HIGHEST + 1, 3)
    entry, samples = 2 * ((places >> 7) + 256), table.astype("int64")
    made = _parabola(samples[entry], samples[entry + 1], samples[entry + 2], places & 127) / (1 << (13 + _FRACTION))
    beyond = (_LOWEST - 1, _HIGHEST + 1)
    return float(np.abs(np.clip(made, *beyond) - np.clip(_steps(function, x, out, places), *beyond)).max())


def _steps(function: Callable[[np.float32], float], x: Quantized, out: Output, places: np.ndarray) -> np.ndarray:
    """Compute a function of stored values, in output steps."""
    step, scale = float(x.step), float(out.scale)
    with np.errstate(all="ignore"):
        return np.array([float(function(np.float32(step * int(v)))) / scale for v in places])


def _symmetric(task: Task, x: Quantized, what: str) -> Output:
    out = task.output
    if x.constant is not None or out.dtype != "int16" or x.zero_point or out.zero_point:
        raise NotLowered(f"a {what} of int16 with zero points, or to another type")
    return out
