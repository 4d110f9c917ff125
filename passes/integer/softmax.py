"""Softmax along the last axis in gemmlowp's fixed point.

The exponential depends on `max - x` alone, so its 256 values are a table of int32 (Q0.31), zero where the reference
skips the element. The sum is in Q12.19, its reciprocal takes three Newton steps in Q2.29, once a row. Source:
TFLite's reference softmax and gemmlowp's `exp_on_negative_values` and `one_over_one_plus_x_for_x_in_0_1`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from tvm_cascade.passes.integer.data_movement import transposed
from tvm_cascade.passes.integer.expressions import NotLowered, constant_of, name_of
from tvm_cascade.passes.integer.fixed_point import (
    INT32_MAX,
    i32,
    i64,
    quantize_multiplier,
    range_of,
    rounding_divide,
    srdhm,
    te_clamp,
    te_leading_zeros,
    te_saturate,
    te_srdhm,
)
from tvm_cascade.passes.integer.int16_softmax import lower_int16_softmax
from tvm_cascade.passes.integer.island import BYTE_TYPES, ISLANDS, Island, Output, Quantized
from tvm_cascade.passes.integer.requantize import from_own_scale
from tvm_cascade.passes.integer.rows import Row, Rows, Stage
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te

INPUT_BITS = 5  # integer bits of the scaled difference, Q5.26
SUM_BITS = 12  # integer bits of the sum, Q12.19
# exp(-2^e) in Q0.31 for the bits that the scaled difference has above a quarter
_EXP_STEPS = ((-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535), (3, 720401), (4, 242))
_EXP_OF_MINUS_EIGHTH = 1895147668
_ONE_THIRD = 715827883
_SCALE_TOLERANCE = 0.001  # the reference's, of the result's 1/256
_FORTYEIGHT_OVER_17 = 1515870810  # Q2.29
_MINUS_32_OVER_17 = -1010580540


@ISLANDS.lowers("nn.softmax")
def lower_softmax(island: Island) -> Value:
    """Along another axis than the last between two transposes."""
    rank = len(island.output.shape)
    axis = int(island.core.attrs.axis) % rank
    logits, beta = _logits(island)
    x = island.activation(logits)
    if axis == rank - 1:
        return _along_last(island, x, beta)
    order = [*(a for a in range(rank) if a != axis), axis]
    shape = tuple(x.shape[a] for a in order)
    moved = replace(x, value=transposed(island.emitter, x.value, order), shape=shape)
    value = _along_last(replace(island, output=replace(island.output, shape=shape)), moved, beta)
    return transposed(island.emitter, value, [order.index(a) for a in range(rank)])


def _along_last(island: Island, x: Quantized, beta: float) -> Value:
    out = island.output
    if x.dtype == "int16":
        return lower_int16_softmax(island, x, beta)
    if x.dtype not in BYTE_TYPES:
        raise NotLowered("its input is not dequantized from integers")
    zero_point = range_of(out.dtype)[0]
    if abs(float(out.scale) * 256 - 1) > _SCALE_TOLERANCE or out.zero_point != zero_point:
        if not island.real or out.scale * 256 < 1 or out.dtype not in BYTE_TYPES:
            raise NotLowered(f"a softmax whose result has not the scale 1/256 and the zero point {zero_point}")
        own = Output.unbounded(out.shape, out.dtype, 1 / 256, zero_point)
        return from_own_scale(island, own, _along_last(island.writing(own), x, beta))
    if out.shape[-1] > 1 << SUM_BITS:
        raise NotLowered(f"{out.shape[-1]} classes overflow the reference's sum")
    table = exponentials(float(x.step), beta)

    def compute(a: Tensor, exps: Tensor) -> Tensor:
        return _te_softmax(a, exps, out.dtype)

    return island.emitter.call("softmax", compute, [x.value, table], axis=len(out.shape) - 1, clamp=out.clamp)


def exponentials(scale: float, beta: float) -> np.ndarray:
    """`exp(-beta * scale * d)` in Q0.31 for d in 0..255, zero below the reference's cut."""
    m, s = scaled_multiplier(scale, beta)
    lowest = lowest_difference(s)
    d = -np.arange(256, dtype="int64")
    used = np.where(d >= lowest, d, 0)
    shifted = (used << s).astype("int32").astype("int64")
    return np.where(d >= lowest, _exp_of_negative(srdhm(shifted, m)), 0).astype("int32")


def scaled_multiplier(scale: float, beta: float) -> tuple[int, int]:
    """`QM` from stored differences to Q5.26."""
    m, s = quantize_multiplier(min(float(np.float32(beta)) * scale * (1 << (31 - INPUT_BITS)), float(INT32_MAX)))
    if s < 0:
        raise NotLowered(f"a softmax over logits of scale {scale:g}")
    return m, s


def lowest_difference(shift: int) -> int:
    """The stored difference below which the reference takes an exponential for zero."""
    return -math.floor(((1 << INPUT_BITS) - 1) * (1 << (31 - INPUT_BITS)) / (1 << shift))


def _exp_of_negative(a: np.ndarray) -> np.ndarray:
    """exp(a) in Q0.31 for a <= 0 in Q5.26: a polynomial on [-1/4, 0), then a product for each bit above."""
    quarter = 1 << (31 - INPUT_BITS - 2)
    remainder = (a & (quarter - 1)) - quarter
    x = (remainder << INPUT_BITS) + (1 << 28)
    x2 = srdhm(x, x)
    x3, x4 = srdhm(x2, x), srdhm(x2, x2)
    tail = rounding_divide(srdhm(rounding_divide(x4, 2) + x3, _ONE_THIRD) + x2, 1)
    result = _EXP_OF_MINUS_EIGHTH + srdhm(x + tail, _EXP_OF_MINUS_EIGHTH)
    above = remainder - a
    for exponent, factor in _EXP_STEPS:
        result = np.where(above & (1 << (31 - INPUT_BITS + exponent)), srdhm(result, factor), result)
    return np.where(a == 0, INT32_MAX, result)


def _logits(island: Island) -> tuple[Value, float]:
    """The dequantized input and beta, by which the importer multiplies it."""
    inner = island.reader.define(island.core.args[0])
    if name_of(inner) != "relax.multiply":
        return island.core.args[0], 1.0
    beta = constant_of(island.reader.define(inner.args[1]))
    if beta is None or beta.size != 1:
        raise NotLowered("a product in front of it that is no beta")
    return inner.args[0], float(beta.reshape(-1)[0])


def _te_softmax(x: Tensor, exps: Tensor, dtype: str) -> Tensor:
    rows = Rows(x, "softmax")
    rk, rs = rows.axis("rk"), rows.axis("rs")
    top = rows.stage("max_acc", lambda *r: te.max(rows.element(r, rk), axis=[rk]))
    total = rows.stage("sum_acc", lambda *r: te.sum(te_halves_up(exps[top[r] - rows.element(r, rs)]), axis=[rs]))
    zeros = rows.stage("zeros", lambda *r: te_leading_zeros(total[r]))
    half = rows.stage("half", lambda *r: _te_half_denominator(total[r], zeros[r]))
    guess = te_newton(half, rows.stage)
    low, high = range_of(dtype)

    def finish(row: Row, k: Index) -> Scalar:
        product = te_srdhm(exps[top[row] - rows.element(row, k)].astype("int64"), te_saturate(guess[row] * i64(2)))
        e = (i32(SUM_BITS + 31 - 8) - zeros[row]).astype("int64")
        # both factors are positive: rounding half away is rounding half up
        value = ((product + (i64(1) << (e - i64(1)))) >> e).astype("int32")
        return te_clamp(value + i32(low), low, high, dtype)

    return rows.elements(finish)


def te_halves_up(e: Scalar) -> Scalar:
    """A positive Q0.31 in Q12.19, rounded, without leaving 32 bits."""
    return (e >> i32(SUM_BITS)) + ((e >> i32(SUM_BITS - 1)) & i32(1))


def _te_half_denominator(total: Scalar, zeros: Scalar) -> Scalar:
    """`(1 + f) / 2` in Q0.31 as int64, where the sum is `(1 + f) 2^k`."""
    fraction = (total.astype("int64") << zeros.astype("int64")) - i64(1 << 31)
    return (fraction + i64(1 << 31)) >> i64(1)


def te_newton(half: Tensor, stage: Stage) -> Tensor:
    """`1 / (2 h)` in Q1.30 for h in [1/2, 1], as int64: three Newton steps, one stage each. It may reach one: saturate
    its double."""
    guess = stage("newton", lambda *r: te_srdhm(half[r], i64(_MINUS_32_OVER_17)) + i64(_FORTYEIGHT_OVER_17))
    for _ in range(3):
        guess = stage("newton", partial(_te_newton_step, half, guess))
    return guess


def _te_newton_step(half: Tensor, x: Tensor, *r: Index) -> Scalar:
    error = te_srdhm(x[r], i64(1 << 29) - te_srdhm(half[r], x[r]))
    return x[r] + te_saturate(error * i64(4))
