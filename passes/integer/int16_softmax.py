"""Softmax of int16 along the last axis by two interpolated tables of 513 entries.

`exp` on [-10, 0] and `1 / (1 + x)` on [0, 1], each sample bent by half the error at its interval's middle. Source:
TFLite's `reference_ops::SoftmaxInt16` and `LUTPopulate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tvm_cascade.passes.integer.expressions import NotLowered
from tvm_cascade.passes.integer.fixed_point import (
    i32,
    i64,
    quantize_multiplier,
    round_half_away,
    te_clamp,
    te_leading_zeros,
    te_rescale,
)
from tvm_cascade.passes.integer.int16_lookup import te_interpolated
from tvm_cascade.passes.integer.island import Island, Output, Quantized
from tvm_cascade.passes.integer.requantize import from_own_scale
from tvm_cascade.passes.integer.rows import Row, Rows
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te

_HIGHEST = (1 << 15) - 1
_LOWEST = -(1 << 15)
_STEPS = 512


def lower_int16_softmax(island: Island, x: Quantized, beta: float) -> Value:
    """Softmax of int16 along the last axis, to 1/32768ths."""
    out = island.output
    if island.real and not out.zero_point and float(out.scale) * (1 << 15) > 1 and out.dtype == "int16":
        own = Output.unbounded(out.shape, "int16", 1 / (1 << 15))
        return from_own_scale(island, own, lower_int16_softmax(island.writing(own), x, beta))
    if x.constant is not None or out.dtype != "int16" or out.zero_point or float(out.scale) != 1 / (1 << 15):
        raise NotLowered("a softmax of int16 to another type or scale")
    if out.shape[-1] > 1 << 16:
        raise NotLowered(f"{out.shape[-1]} classes overflow the reference's sum")
    m, s = quantize_multiplier(float(x.step) * float(np.float32(beta)) / (10.0 / 65535.0))
    if s > 30:
        raise NotLowered(f"a softmax over logits of scale {x.step:g}")
    tables = [_table(math.exp, -10.0, 0.0), _table(lambda v: 1.0 / (1.0 + v), 0.0, 1.0)]

    def compute(a: Tensor, exps: Tensor, inverses: Tensor) -> Tensor:
        return _te_softmax(a, exps, inverses, (m, s))

    axis = len(out.shape) - 1
    return island.emitter.call("wide_softmax", compute, [x.value, *tables], axis=axis, multiplier=m, shift=s)


def _table(function: Callable[[float], float], low: float, high: float) -> np.ndarray:
    """513 samples of a function into [-1, 1), in 0.15."""
    step = (high - low) / _STEPS
    scale = 65536.0 / (2.0 / 65535.0 * 65535.0)

    def sample(v: float) -> float:
        return function(v) * scale

    values = []
    for i in range(_STEPS):
        here, after = sample(low + i * step), sample(low + (i + 1) * step)
        middle = round_half_away(sample(low + i * step + step / 2))
        bend = round_half_away((round_half_away((after + round_half_away(here)) / 2) - middle) / 2)
        values.append(min(max(round_half_away(here) - bend, _LOWEST), _HIGHEST))
    values.append(min(max(round_half_away(sample(high)), _LOWEST), _HIGHEST))
    return np.array(values, "int16")


def _te_softmax(x: Tensor, exps: Tensor, inverses: Tensor, scaling: tuple[int, int]) -> Tensor:
    rows = Rows(x, "wide_softmax")
    rk, rs = rows.axis("rk"), rows.axis("rs")
    top = rows.stage("max_acc", lambda *r: te.max(rows.element(r, rk), axis=[rk]))

    def place(row: Row, k: Index) -> Scalar:
        scaled = te_rescale(rows.element(row, k) - top[row], *scaling, (1 << 16) - 1)
        return _te_bounded(scaled + i32(_HIGHEST))

    places = rows.elements(place, "place")
    e = rows.elements(lambda row, k: te_interpolated(exps, rows.of(places, row, k)), "exp")
    total = rows.stage("sum_acc", lambda *r: te.sum(rows.of(e, r, rs), axis=[rs]))
    zeros = rows.stage("zeros", lambda *r: te_leading_zeros(total[r]))

    def mantissa_of(*r: Index) -> Scalar:
        shifted = total[r].astype("int64") << (zeros[r] - i32(1)).astype("int64")
        return ((shifted + i64(1 << 13)) >> i64(14)).astype("int32") - i32((1 << 15) + (1 << 16))

    mantissa = rows.stage("mantissa", mantissa_of)
    inverse = rows.stage("inverse", lambda *r: te_interpolated(inverses, _te_bounded(mantissa[r])))

    def finish(row: Row, k: Index) -> Scalar:
        right = (i32(31) - zeros[row]).astype("int64")
        product = rows.of(e, row, k).astype("int64") * inverse[row].astype("int64")
        value = ((product + ((i64(1) << right) >> i64(1))) >> right).astype("int32")
        return te_clamp(value, 0, _HIGHEST, "int16")

    return rows.elements(finish)


def _te_bounded(v: Scalar) -> Scalar:
    """An int32 within the range of int16."""
    return te_clamp(v, _LOWEST, _HIGHEST, "int32")
