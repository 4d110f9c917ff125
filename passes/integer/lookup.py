"""Lowering of unary element-wise operators on bytes to lookup tables of 256 entries, by the reference's arithmetic.

The table is indexed by `stored - lowest`. Float functions follow the reference step by step in float32. Operators on int16
are lowered by `int16_lookup`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tvm_cascade.passes.integer import fixed_point as fp
from tvm_cascade.passes.integer import int16_lookup as int16
from tvm_cascade.passes.integer.fixed_point import i32
from tvm_cascade.passes.integer.task import Output, Task, lowers
from tvm_cascade.passes.integer.untyped import Value
from tvm_cascade.program.operator import Quantized
from tvm_cascade.program.quant import STORED_TYPES, NotLowered

_SQRT_HALF = np.float32(math.sqrt(0.5))
_SQRT_2_OVER_PI = np.float32(math.sqrt(2 / math.pi))
_CUBIC = np.float32(0.044715)
_FAR = 1e9  # beyond every stored value
_HARD_SWISH_BITS = 7  # left shift of stored values to the 16-bit form


@lowers("sigmoid", "tanh", "exp", "gelu", "gelu_tanh")
def lower_float_function(task: Task) -> Value:
    """Lower sigmoid, tanh, exp and gelu to the reference's float32 table."""
    x, kind = _operand(task), task.operator.kind
    if x.dtype == "int16":
        if kind in _INTERPOLATED:
            return int16.lower_int16_table(task, x, kind, _INTERPOLATED[kind])
        return int16.lower_int16_function(task, x, kind)
    return lookup(task, x, float_table(_TABULATED[kind], x, task.output))


@lowers("log")
def lower_log(task: Task) -> Value:
    """Lower the logarithm; nonpositive inputs give the lowest output."""
    out = task.output
    lowest = np.float32(np.float32(fp.range_of(out.dtype)[0] - out.zero_point) * out.scale)

    def log(v: float | np.float32) -> float:
        return math.log(v) if v > 0 else float(lowest)

    x = _operand(task)
    if x.dtype == "int16":
        return int16.lower_int16_table(task, x, "log", log)
    return lookup(task, x, float_table(exactly(log), x, out))


@lowers("negative")
def lower_negative(task: Task) -> Value:
    """Negate. The reference negates stored values, wrapping, regardless of zero points and scales; for real operators
    it saturates.
    """
    x, out = _operand(task), task.output
    if x.dtype == "int16":
        return int16.lower_int16_negative(task, x)
    if not task.real and x.declared == out.declared != "uint8":
        return lookup(task, x, (-_centred(x) - x.zero_point).astype(out.dtype))
    if x.zero_point or out.zero_point or x.step != out.scale:
        raise NotLowered("a negation of real numbers between zero points or scales")
    return lookup(task, x, _clipped(-_centred(x), out))


@lowers("leakyrelu")
def lower_leaky_relu(task: Task) -> Value:
    """Lower to `MBQM` with one multiplier on each side of zero; a negative slope's sign is applied after rounding."""
    x, out = _operand(task), task.output
    if x.dtype == "int16":
        return int16.lower_int16_leaky_relu(task, x, float(task.attributes["alpha"]))
    slope = np.float32(x.step * np.float32(task.attributes["alpha"]))
    d = _centred(x)
    if out.once:
        real = np.where(d >= 0, np.float64(x.step), np.float64(slope)) * d
        return lookup(task, x, _clipped(out.rounded(real / out.scale).astype("int64"), out))
    above = rescale(d, *fp.quantize_multiplier(float(np.float32(x.step / out.scale))))
    m, s = fp.quantize_multiplier(float(np.float32(slope / out.scale)))
    below = rescale(d, abs(m), s) * (-1 if m < 0 else 1)
    return lookup(task, x, _clipped(np.where(d >= 0, above, below), out))


@lowers("abs")
def lower_abs(task: Task) -> Value:
    """Lower to `MBQM(|x - xz|)`, or `|x - xz|` for equal scales."""
    x, out = _operand(task), task.output
    if x.dtype == "int16":
        return int16.lower_int16_abs(task, x)
    magnitude = np.abs(_centred(x))
    if out.once:
        magnitude = out.rounded(magnitude * (np.float64(x.step) / np.float64(out.scale))).astype("int64")
    elif x.step != out.scale:
        magnitude = rescale(magnitude, *fp.quantize_multiplier(float(np.float32(x.step / out.scale))))
    return lookup(task, x, _clipped(magnitude, out))


@lowers("elu")
def lower_elu(task: Task) -> Value:
    """Lower elu: `x`, or `exp(x) - 1` below zero."""
    stored = _operand(task)
    if stored.dtype != "int8":
        raise NotLowered(f"an elu of {stored.dtype}, which the reference does not have")
    return lookup(task, stored, float_table(exactly(lambda v: math.expm1(v) if v < 0 else v), stored, task.output))


@lowers("hard_swish")
def lower_hard_swish(task: Task) -> Value:
    """Lower hard swish, `x * relu6(x + 3) / 6`, in the reference's 16-bit arithmetic."""
    x = _operand(task)
    if x.dtype == "int16":
        raise NotLowered("a hard swish of int16, which the reference does not have")
    return lookup(task, x, hard_swish_table(x, task.output))


def lookup(task: Task, x: Quantized, table: np.ndarray) -> Value:
    """Emit the element-wise lookup `table[x - lowest]`; raise `NotLowered` if the output has another shape than `x`."""
    if x.shape != task.output.shape:
        raise NotLowered(f"a table from the shape {x.shape} to {task.output.shape}")
    lowest = fp.range_of(x.dtype)[0]
    return task.elementwise(
        "lut",
        lambda index, a, t: t[a[index].astype("int32") - i32(lowest)],
        [x.operand, table.astype(task.output.dtype)],
        input_zero_point=x.zero_point,
        output_zero_point=task.output.zero_point,
        lowest=lowest,
    )


def float_table(function: Callable[[np.ndarray], np.ndarray], x: Quantized, out: Output) -> np.ndarray:
    """Return the table `clamp(rha(f(sx (v - xz)) * (1 / so)) + zo)` for all stored v, in float32; NaN gives the least
    stored value, infinity saturates.
    """
    real = (x.step * _centred(x).astype("float32")).astype("float32")
    with np.errstate(over="ignore"):
        scaled = (function(real).astype("float32") * (np.float32(1) / out.scale)).astype("float32")
    finite = np.nan_to_num(scaled, nan=-_FAR, posinf=_FAR, neginf=-_FAR)
    stored = (out.rounded(finite) + np.float32(out.zero_point)).astype("float32")
    return np.clip(stored, out.lo, out.hi).astype("int64")


def rescale(x: np.ndarray, m: int, s: int) -> np.ndarray:
    """Compute `MBQM` on int64 arrays, at compile time."""
    shifted = (x << max(s, 0)).astype("int32").astype("int64")
    return fp.rounding_divide(fp.srdhm(shifted, m), max(-s, 0))


def hard_swish_table(x: Quantized, out: Output) -> np.ndarray:
    """Return the reference's hard swish as a table: 16-bit fixed point, saturating shifts, last product truncated
    toward zero.
    """
    fine = np.float32(np.float32(1) / np.float32(1 << _HARD_SWISH_BITS)) * x.step
    output, output_exponent = fp.quantize_multiplier(float(np.float32(fine / out.scale)))
    relu, relu_exponent = fp.quantize_multiplier(float(np.float32(fine / (np.float32(3) / np.float32(1 << 15)))))
    value = _wrap16(_wrap16(_centred(x)) << _HARD_SWISH_BITS)
    scaled = _srdhm16(value, int(fp.once_rounded(np.int64(output))))
    gate = value
    if relu_exponent > 0:
        gate = _saturate16(gate << (relu_exponent - 1))
    gate = _srdhm16(gate, int(fp.once_rounded(np.int64(relu))))
    if relu_exponent > 0:
        gate = _saturate16(gate << 1)
    if relu_exponent < 0:
        gate = _rounding_divide16(gate, -relu_exponent)
    gate = (gate + (1 << 15)) >> 1
    product = gate * scaled
    product = np.where(product >= 0, product >> 15, -((-product) >> 15))
    if output_exponent > 0:
        raise NotLowered("a hard-swish whose output scale is too small for the reference")
    wrapped = _wrap16(_rounding_divide16(product, -output_exponent) + (out.zero_point + out.offset)) - out.offset
    return np.clip(wrapped, out.lo, out.hi)


def _operand(task: Task) -> Quantized:
    x = task.operator.activation()
    if x.dtype not in STORED_TYPES:
        raise NotLowered("its input is not dequantized from integers")
    return x


def _centred(x: Quantized) -> np.ndarray:
    """Return `v - xz` for every stored v, as int64."""
    lowest, highest = fp.range_of(x.dtype)
    return np.arange(lowest, highest + 1, dtype="int64") - x.zero_point


def _rounding_divide16(x: np.ndarray, exponent: int) -> np.ndarray:
    """Compute the reference's int16 rounding shift, whose 16-bit mask turns every nonnegative number into 1 for
    exponents from 16 on.
    """
    mask = int(_wrap16(np.array((1 << exponent) - 1, "int64")))
    return (x >> exponent) + ((x & mask) > (mask >> 1) + (x < 0))


def _clipped(values: np.ndarray, out: Output, add_zero: bool = True) -> np.ndarray:
    return np.clip(values + (out.zero_point if add_zero else 0), out.lo, out.hi)


def exactly(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """Return `function` vectorized, computed in double and rounded once to float32; NaN outside its domain."""

    def evaluate(x: np.ndarray) -> np.ndarray:
        values = []
        for v in x.reshape(-1).tolist():
            try:
                values.append(function(v))
            except OverflowError:
                values.append(math.inf)
            except ValueError:
                values.append(math.nan)
        with np.errstate(over="ignore"):
            return np.array(values).astype("float32").reshape(x.shape)

    return evaluate


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.float32(1) / (np.float32(1) + exactly(_exp)(-x))


def _exp(v: float | np.float32) -> float:
    """Compute exp with its argument limited to 89: no overflow in double, and infinity after rounding to float32."""
    return math.exp(min(v, 89.0))


def _gelu(x: np.ndarray) -> np.ndarray:
    """Compute `x / 2 (1 + erf(x / sqrt(2)))`, float32 to float32."""
    scaled = (x * _SQRT_HALF).astype("float32")
    return np.float32(0.5) * x * (np.float32(1) + np.array([math.erf(v) for v in scaled.tolist()], "float32"))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    """Compute `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, float32 to float32."""
    inner = (_SQRT_2_OVER_PI * (x + _CUBIC * x * x * x)).astype("float32")
    return np.float32(0.5) * x * (np.float32(1) + np.array([math.tanh(v) for v in inner.tolist()], "float32"))


def _wrap16(x: np.ndarray) -> np.ndarray:
    return x.astype("int16").astype("int64")


def _saturate16(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -(1 << 15), (1 << 15) - 1)


def _srdhm16(a: np.ndarray, b: int) -> np.ndarray:
    """Compute 16-bit SRDHM with gemmlowp's nudge and C's division."""
    product = a * b
    nudged = product + np.where(product >= 0, 1 << 14, 1 - (1 << 14))
    return np.where(nudged >= 0, nudged >> 15, -((-nudged) >> 15))


def _one(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.float32], float]:
    return lambda v: function(np.array([v], "float32"))[0]


_TABULATED = {
    "sigmoid": _sigmoid,
    "tanh": exactly(math.tanh),
    "exp": exactly(_exp),  # correctly rounded, as C's expf almost always is and numpy's is not
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
# for int16: lowered to interpolated tables
_INTERPOLATED: dict[str, Callable[[np.float32], float]] = {
    "exp": _exp,
    "gelu": _one(_gelu),
    "gelu_tanh": _one(_gelu_tanh),
}
