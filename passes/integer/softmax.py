"""Lower softmax in gemmlowp's fixed point; axes before the last are transposed.

Bytes: the exponential depends only on `max - x`, so its 256 values are an int32 table (Q0.31), zero where the reference
skips the element, for any stored result type. The sum is in Q12.19; its reciprocal takes three Newton steps in Q2.29,
once per row. Source: TFLite's reference softmax and gemmlowp's `exp_on_negative_values` and
`one_over_one_plus_x_for_x_in_0_1`.

int16: two interpolated 513-entry tables, `exp` on [-10, 0] and `1 / (1 + x)` on [0, 1], each sample corrected by half
the interpolation error at the interval's middle. Source: TFLite's `reference_ops::SoftmaxInt16` and `LUTPopulate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tvm_cascade.passes.integer import fixed_point as fp
from tvm_cascade.passes.integer.data_movement import transposed
from tvm_cascade.passes.integer.fixed_point import INT32_MAX, i32, i64
from tvm_cascade.passes.integer.int16_lookup import te_interpolated
from tvm_cascade.passes.integer.rows import Row, Rows, Stage
from tvm_cascade.passes.integer.task import Task, bounded_multiplier, lowers
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te
from tvm_cascade.program.operator import Quantized
from tvm_cascade.program.quant import BYTE_TYPES, NotLowered

INPUT_BITS = 5  # integer bits of the scaled difference, Q5.26
SUM_BITS = 12  # integer bits of the sum, Q12.19
# exp(-2^e) in Q0.31 for the bits that the scaled difference has above a quarter
_EXP_STEPS = ((-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535), (3, 720401), (4, 242))
_EXP_OF_MINUS_EIGHTH = 1895147668
_ONE_THIRD = 715827883
_FRACTION = 28  # bits of quotients before they are rounded to a scale of their own
_FINEST = 1 << 16  # steps of 1 at most, for which these bits suffice: errors of 2^-13 steps
_SCALE_TOLERANCE = 0.001  # the reference's relative tolerance of the output scale 1/256
_FORTYEIGHT_OVER_17 = 1515870810  # Q2.29
_MINUS_32_OVER_17 = -1010580540
_LOWEST16, _HIGHEST16 = fp.range_of("int16")
_STEPS = 512  # intervals between the samples of an int16 table


@lowers("softmax")
def lower_softmax(task: Task) -> Value:
    """Lower softmax along any axis, between two transposes unless it is the last."""
    rank = len(task.output.shape)
    axis, beta = task.attributes["axis"] % rank, task.attributes.get("beta", 1.0)
    x = task.operator.activation()
    if axis == rank - 1:
        return _along_last(task, x, beta)
    order = [*(a for a in range(rank) if a != axis), axis]
    shape = tuple(x.shape[a] for a in order)
    moved = replace(x, source=transposed(task.emitter, x.source, order), extents=shape)
    value = _along_last(replace(task, output=replace(task.output, shape=shape)), moved, beta)
    return transposed(task.emitter, value, [order.index(a) for a in range(rank)])


def _along_last(task: Task, x: Quantized, beta: float) -> Value:
    out = task.output
    if x.dtype == "int16":
        return _int16_along_last(task, x, beta)
    if x.dtype not in BYTE_TYPES:
        raise NotLowered("its input is not dequantized from integers")
    zero_point, steps = fp.range_of(out.dtype)[0], 1 << fp.bits_of(out.dtype)
    fixed = abs(float(out.scale) * steps - 1) <= _SCALE_TOLERANCE and out.zero_point == zero_point
    to_reals = task.real and out.scale * _FINEST >= 1 and out.dtype in BYTE_TYPES
    if not fixed and not to_reals:
        raise NotLowered(f"a softmax whose result has not the scale 1/{steps} and the zero point {zero_point}")
    if out.shape[-1] > 1 << SUM_BITS:
        raise NotLowered(f"{out.shape[-1]} classes overflow the reference's sum")
    table = exponentials(float(x.step), beta)
    stored, attrs = _as_reference(out.dtype), {"axis": len(out.shape) - 1, "clamp": out.clamp}
    if to_reals:
        m, s = bounded_multiplier(np.float64(2.0**-_FRACTION) / np.float64(out.scale))
        stored = _Stored(_FRACTION, lambda value: out.stored(out.rescaled(value, m, s, 1 << _FRACTION)))
        if not fixed or out.shape[-1] > steps:  # as many equal classes are ties, rounded otherwise by kernels of bytes
            attrs |= {"multiplier": m, "shift": s, "output_zero_point": out.zero_point}
    return task.emitter.call("softmax", lambda a, exps: _te_softmax(a, exps, stored), [x.source, table], **attrs)


def exponentials(scale: float, beta: float) -> np.ndarray:
    """Return `exp(-beta * scale * d)` in Q0.31 for d in 0..255, zero beyond the reference's cutoff."""
    m, s = scaled_multiplier(scale, beta)
    lowest = lowest_difference(s)
    d = -np.arange(256, dtype="int64")
    used = np.where(d >= lowest, d, 0)
    shifted = (used << s).astype("int32").astype("int64")
    return np.where(d >= lowest, _exp_of_negative(fp.srdhm(shifted, m)), 0).astype("int32")


def scaled_multiplier(scale: float, beta: float) -> tuple[int, int]:
    """Return `QM` from stored differences to Q5.26."""
    m, s = fp.quantize_multiplier(min(float(np.float32(beta)) * scale * (1 << (31 - INPUT_BITS)), float(INT32_MAX)))
    if s < 0:
        raise NotLowered(f"a softmax over logits of scale {scale:g}")
    return m, s


def lowest_difference(shift: int) -> int:
    """Return the (negative) difference from the largest stored logit below which the reference's exponential is zero.

    `shift` is the exponent from `scaled_multiplier`.
    """
    return -math.floor(((1 << INPUT_BITS) - 1) * (1 << (31 - INPUT_BITS)) / (1 << shift))


def _exp_of_negative(a: np.ndarray) -> np.ndarray:
    """Compute exp(a) in Q0.31 for a <= 0 in Q5.26: a polynomial on [-1/4, 0), then a product for each higher bit."""
    quarter = 1 << (31 - INPUT_BITS - 2)
    remainder = (a & (quarter - 1)) - quarter
    x = (remainder << INPUT_BITS) + (1 << 28)
    x2 = fp.srdhm(x, x)
    x3, x4 = fp.srdhm(x2, x), fp.srdhm(x2, x2)
    tail = fp.rounding_divide(fp.srdhm(fp.rounding_divide(x4, 2) + x3, _ONE_THIRD) + x2, 1)
    result = _EXP_OF_MINUS_EIGHTH + fp.srdhm(x + tail, _EXP_OF_MINUS_EIGHTH)
    above = remainder - a
    for exponent, factor in _EXP_STEPS:
        result = np.where(above & (1 << (31 - INPUT_BITS + exponent)), fp.srdhm(result, factor), result)
    return np.where(a == 0, INT32_MAX, result)


@dataclass(frozen=True)
class _Stored:
    """The storage form of a quotient: its fraction bits, and the conversion."""

    bits: int
    store: Callable[[Scalar], Scalar]


def _as_reference(dtype: str) -> _Stored:
    """Store quotients in steps of the type's width above its lowest value, like TFLite."""
    low, high = fp.range_of(dtype)
    return _Stored(fp.bits_of(dtype), lambda value: fp.te_clamp(value + i32(low), low, high, dtype))


def _te_softmax(x: Tensor, exps: Tensor, stored: _Stored) -> Tensor:
    rows = Rows(x, "softmax")
    rk, rs = rows.axis("rk"), rows.axis("rs")
    top = rows.stage("max_acc", lambda *r: te.max(rows.element(r, rk), axis=[rk]))
    total = rows.stage("sum_acc", lambda *r: te.sum(te_halves_up(exps[top[r] - rows.element(r, rs)]), axis=[rs]))
    zeros = rows.stage("zeros", lambda *r: fp.te_leading_zeros(total[r]))
    half = rows.stage("half", lambda *r: _te_half_denominator(total[r], zeros[r]))
    guess = te_newton(half, rows.stage)

    def finish(row: Row, k: Index) -> Scalar:
        product = fp.te_srdhm(
            exps[top[row] - rows.element(row, k)].astype("int64"), fp.te_saturate(guess[row] * i64(2))
        )
        e = (i32(SUM_BITS + 31 - stored.bits) - zeros[row]).astype("int64")
        # both factors are positive: rounding half away is rounding half up
        value = ((product + (i64(1) << (e - i64(1)))) >> e).astype("int32")
        return stored.store(value)

    return rows.elements(finish)


def te_halves_up(e: Scalar) -> Scalar:
    """Round a positive Q0.31 to Q12.19 (half up), within 32 bits."""
    return (e >> i32(SUM_BITS)) + ((e >> i32(SUM_BITS - 1)) & i32(1))


def _te_half_denominator(total: Scalar, zeros: Scalar) -> Scalar:
    """Return `(1 + f) / 2` in Q0.31 as int64, for the sum `(1 + f) 2^k`."""
    fraction = (total.astype("int64") << zeros.astype("int64")) - i64(1 << 31)
    return (fraction + i64(1 << 31)) >> i64(1)


def te_newton(half: Tensor, stage: Stage) -> Tensor:
    """Compute `1 / (2 h)` in Q1.30 for h in [1/2, 1], as int64: three Newton steps, a single stage each. The result may
    reach 1, so callers saturate twice its value.
    """
    guess = stage("newton", lambda *r: fp.te_srdhm(half[r], i64(_MINUS_32_OVER_17)) + i64(_FORTYEIGHT_OVER_17))
    for _ in range(3):
        guess = stage("newton", partial(_te_newton_step, half, guess))
    return guess


def _te_newton_step(half: Tensor, x: Tensor, *r: Index) -> Scalar:
    error = fp.te_srdhm(x[r], i64(1 << 29) - fp.te_srdhm(half[r], x[r]))
    return x[r] + fp.te_saturate(error * i64(4))


def _int16_along_last(task: Task, x: Quantized, beta: float) -> Value:
    """Lower int16 softmax along the last axis, with output scale 1/32768."""
    out = task.output
    if task.real:
        raise NotLowered("a softmax of real numbers of int16, from which the reference's is up to nine steps off")
    if x.constant is not None or out.dtype != "int16" or out.zero_point or float(out.scale) != 1 / (1 << 15):
        raise NotLowered("a softmax of int16 to another type or scale")
    if out.shape[-1] > 1 << 16:
        raise NotLowered(f"{out.shape[-1]} classes overflow the reference's sum")
    m, s = fp.quantize_multiplier(float(x.step) * float(np.float32(beta)) / (10.0 / 65535.0))
    if s > 30:
        raise NotLowered(f"a softmax over logits of scale {x.step:g}")
    tables = [_table(math.exp, -10.0, 0.0), _table(lambda v: 1.0 / (1.0 + v), 0.0, 1.0)]

    def compute(a: Tensor, exps: Tensor, inverses: Tensor) -> Tensor:
        return _te_int16_softmax(a, exps, inverses, (m, s))

    axis = len(out.shape) - 1
    return task.emitter.call("wide_softmax", compute, [x.source, *tables], axis=axis, multiplier=m, shift=s)


def _table(function: Callable[[float], float], low: float, high: float) -> np.ndarray:
    """Return 513 samples, in Q0.15, for a function on [low, high] with values in [-1, 1]."""
    step = (high - low) / _STEPS
    scale = 65536.0 / (2.0 / 65535.0 * 65535.0)

    def sample(v: float) -> float:
        return function(v) * scale

    values = []
    for i in range(_STEPS):
        here, after = sample(low + i * step), sample(low + (i + 1) * step)
        middle = fp.round_half_away(sample(low + i * step + step / 2))
        bend = fp.round_half_away((fp.round_half_away((after + fp.round_half_away(here)) / 2) - middle) / 2)
        values.append(min(max(fp.round_half_away(here) - bend, _LOWEST16), _HIGHEST16))
    values.append(min(max(fp.round_half_away(sample(high)), _LOWEST16), _HIGHEST16))
    return np.array(values, "int16")


def _te_int16_softmax(x: Tensor, exps: Tensor, inverses: Tensor, scaling: tuple[int, int]) -> Tensor:
    rows = Rows(x, "wide_softmax")
    rk, rs = rows.axis("rk"), rows.axis("rs")
    top = rows.stage("max_acc", lambda *r: te.max(rows.element(r, rk), axis=[rk]))

    def argument(row: Row, k: Index) -> Scalar:
        scaled = fp.te_rescale(rows.element(row, k) - top[row], *scaling, (1 << 16) - 1)
        return _te_bounded(scaled + i32(_HIGHEST16))

    arguments = rows.elements(argument, "place")
    e = rows.elements(lambda row, k: te_interpolated(exps, rows.of(arguments, row, k)), "exp")
    total = rows.stage("sum_acc", lambda *r: te.sum(rows.of(e, r, rs), axis=[rs]))
    zeros = rows.stage("zeros", lambda *r: fp.te_leading_zeros(total[r]))

    def mantissa_of(*r: Index) -> Scalar:
        shifted = total[r].astype("int64") << (zeros[r] - i32(1)).astype("int64")
        return ((shifted + i64(1 << 13)) >> i64(14)).astype("int32") - i32((1 << 15) + (1 << 16))

    mantissa = rows.stage("mantissa", mantissa_of)
    inverse = rows.stage("inverse", lambda *r: te_interpolated(inverses, _te_bounded(mantissa[r])))

    def finish(row: Row, k: Index) -> Scalar:
        right = (i32(31) - zeros[row]).astype("int64")
        product = rows.of(e, row, k).astype("int64") * inverse[row].astype("int64")
        value = ((product + ((i64(1) << right) >> i64(1))) >> right).astype("int32")
        return fp.te_clamp(value, 0, _HIGHEST16, "int16")

    return rows.elements(finish)


def _te_bounded(v: Scalar) -> Scalar:
    """Clamp an int32 to the int16 range."""
    return fp.te_clamp(v, _LOWEST16, _HIGHEST16, "int32")
