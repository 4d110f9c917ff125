"""Fully connected (dense) layers as 1 x 1 convolutions with one pixel a row, and their single-rounding requantization.

The lowered operator computes `clamp(((acc m + 2^(k-1) + (acc >> 31)) >> k) + zo)` with `k = 31 - s`: the reference's
double arithmetic, rounded half away from zero; m and s are multiplier and shift, zo is the output's zero point.
Convolutions round twice (`schedules.rules.requantize`). Both are monotone in acc; if their outputs change at the same
values of acc, they are equal, and the layer uses the short form of convolutions. If no m of 31 bits gives the double
arithmetic's outputs, m has 53 bits: the products are summed in 32 bits all the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tvm_cascade.schedules.kernels.spec import ONCE, OperatorSpec
from tvm_cascade.schedules.rules.geometry import Sliding
from tvm_cascade.schedules.rules.quantized import RANGES, QuantizedConv, centred
from tvm_cascade.schedules.rules.requantize import WIDE_LOW, Requantize, accumulator_bounds, plan_requantize

ROUNDING = "once, half away from zero"


def read_dense(spec: OperatorSpec) -> QuantizedConv | None:
    """Read an 8-bit fully connected layer as a convolution; None for any other operator and for forms unknown to the
    kernels.
    """
    if spec.kind != "dense" or len(spec.constants) != 4:
        return None
    weights, bias, multiplier, shift = spec.constants
    data, given = spec.inputs[0], spec.attributes
    if not {data.dtype, spec.output.dtype} <= RANGES.keys() or weights.dtype != np.int8 or weights.ndim != 2:
        return None
    if given.rounding not in (ROUNDING, ONCE, None) or given.kernel_layout != "OI":
        return None
    if len(data.shape) != 2 or data.shape[1] != weights.shape[1]:
        return None
    rows, depth = data.shape
    units = weights.shape[0]
    window = Sliding(1, rows, depth, 1, rows, (1, 1), (1, 1), (0, 0))
    zero_in, zero_out = given.input_zero_point or 0, given.output_zero_point or 0
    lo, hi = given.clamp or RANGES[spec.output.dtype]
    taps = np.ascontiguousarray(centred(weights, given.weight_zero_point or 0).T).reshape(1, 1, depth, units)
    bounds = accumulator_bounds(taps.reshape(depth, units), bias, zero_in, RANGES[data.dtype])
    m, s = (np.broadcast_to(a.ravel(), (units,)).astype(np.int64) for a in (multiplier, shift))
    plan = plan_single if multiplier.dtype == np.int32 else plan_wide
    if given.rounding == ROUNDING:
        requantize = plan(m, s, bounds, zero_out, (lo, hi))
    else:
        requantize = plan_requantize(m, s, *bounds, zero_out, (lo, hi), given.rounding == ONCE)
    if requantize is None:
        return None
    conv = QuantizedConv(window, taps, bias.ravel().astype(np.int32), zero_in, requantize, False)
    return replace(conv, dtype=data.dtype, out_dtype=spec.output.dtype, unsigned=given.weight_type == "uint8")


def plan_single(
    m: np.ndarray, s: np.ndarray, bounds: tuple[np.ndarray, np.ndarray], zero_point: int, clamp: tuple[int, int]
) -> Requantize | None:
    """Plan the short form if proved equal to rounding once, else the form that rounds once; None for left shifts.

    `m`, `s` are int64 [units], `bounds` the smallest and largest accumulators.
    """
    if (s > -2).any() or (s < -30).any() or (m < 0).any():
        return None
    planned = plan_requantize(m, s, *bounds, zero_point, clamp)
    if planned.short and all(
        _equal(*row, zero_point, clamp) for row in sorted(set(zip(m.tolist(), s.tolist(), strict=True)))
    ):
        return planned
    table = np.stack([m, np.int64(1) << (-s - 2), -s - 1], axis=1).astype(np.int32)
    return Requantize(table, False, True, zero_point, *clamp, "rounds once", once=True)


def plan_wide(
    m: np.ndarray, s: np.ndarray, _bounds: object, zero_point: int, clamp: tuple[int, int]
) -> Requantize | None:
    """Plan the form that rounds once by multipliers of up to 53 bits; None for shifts with a half that is no multiple
    of 2^32.
    """
    e = np.where(m == 0, 1, -s - 1 - WIDE_LOW)  # of the high word of a product by the multiplier's upper bits
    if (e < 1).any() or (e > 31).any() or (m < 0).any():
        return None
    table = np.stack([m >> WIDE_LOW, m & ((1 << WIDE_LOW) - 1), e], axis=1).astype(np.int32)
    return Requantize(table, False, True, zero_point, *clamp, "rounds once, by wide multipliers", once=True, wide=True)


def _equal(m: int, s: int, zero_point: int, clamp: tuple[int, int]) -> bool:
    """Test that rounding once and rounding twice agree for every |acc| below 2^30.

    Both are monotone, so it suffices to compare them near each acc at which the output first reaches a value v, and to
    check that it does so there.
    """
    if m < 1 << 30:
        return False
    k = 31 - s
    steps = np.arange(clamp[0] - zero_point, clamp[1] - zero_point + 2, dtype=np.int64)
    middle = np.array([-(-((2 * v - 1) << (k - 1)) // m) for v in steps.tolist()], np.int64)
    acc = middle[:, None] + np.arange(-4, 5)
    inside = np.abs(acc).max(axis=1) < 1 << 30
    once = (acc * m + (np.int64(1) << (k - 1)) + (acc >> 63)) >> k
    high = (acc * m + (1 << 30)) >> 31
    twice = (high + (high >> 63) + (np.int64(1) << (-s - 1))) >> -s
    taken = (once[:, 0] < steps) & (once[:, -1] >= steps)
    return bool((((once == twice).all(axis=1) & taken) | ~inside).all())
