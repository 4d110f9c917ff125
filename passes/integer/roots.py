"""Lower rsqrt, and compute squared differences, on stored integers.

rsqrt on int8 is a table, from the reference's five fixed-point Newton steps; on int16 an interpolated table. Source:
TFLite's `RsqrtEvalQuantizedInt8`, `GetInvSqrtQuantizedMultiplierExp` and squared difference.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tvm_cascade.passes.integer import l2_normalization as newton
from tvm_cascade.passes.integer.fixed_point import INT32_MAX, i32, quantize_multiplier, srdhm, te_rescale
from tvm_cascade.passes.integer.int16_lookup import lower_int16_table
from tvm_cascade.passes.integer.lookup import lookup, rescale
from tvm_cascade.passes.integer.task import Output, Task, lowers
from tvm_cascade.passes.integer.untyped import Scalar, Value
from tvm_cascade.program.operator import Quantized
from tvm_cascade.program.quant import NotLowered

_ROOT_BITS = 20  # fraction bits of the inverse root before it is scaled
_HEAD_ROOM = 7  # bits that a squared difference shifts its operands up by


@lowers("rsqrt")
def lower_inverse_root(task: Task) -> Value:
    """Lower rsqrt. Zero gives the highest output; so do negative inputs, refused by the reference."""
    x, out = task.operator.quantized(0), task.output
    if x.dtype == "int16":
        highest = np.float32(32767) * out.scale
        return lower_int16_table(
            task, x, "rsqrt", lambda v: np.float32(1) / np.sqrt(np.float32(v)) if v > 0 else highest
        )
    if x.dtype != "int8" or x.constant is not None or out.dtype != "int8":
        raise NotLowered(f"an inverse root of {x.dtype}, which the reference does not have")
    return lookup(task, x, _inverse_roots(x, out))


def _inverse_roots(x: Quantized, out: Output) -> np.ndarray:
    ratio = 1.0 / float(np.float32(np.sqrt(x.step) * out.scale))
    m, s = quantize_multiplier(ratio)
    table = []
    for stored in range(-128, 128):
        value = stored - x.zero_point
        if value <= 0:
            table.append(127)
            continue
        inverse, left = _inverse_root(value)
        root = rescale(np.array([1], "int64"), inverse, left + _ROOT_BITS)
        table.append(int(np.clip(rescale(root, m, s - _ROOT_BITS)[0] + out.zero_point, -128, 127)))
    return np.array(table)


def _inverse_root(value: int) -> tuple[int, int]:
    """Return multiplier (Q0.31) and left shift for `1 / sqrt(value)`."""
    if value <= 1:
        return INT32_MAX, 0
    pairs = (32 - value.bit_length() - 1) // 2 - 1
    shift = newton.BASE_SHIFT - pairs
    half = (((value << 2 * pairs) >> 1) + 1) >> 1
    x = newton.ONE
    for _ in range(newton.NEWTON_STEPS):
        cube = srdhm(srdhm(x, x), x) << 6
        x = (srdhm(newton.HALF_OF_THREE, x) - srdhm(half, cube)) << 3
    return int(srdhm(x, newton.HALF_SQRT_2)) << max(-shift, 0), -max(shift, 0)


def squared_difference(
    a: Quantized, b: Quantized, out: Output
) -> tuple[Callable[[Scalar, Scalar], Scalar], dict[str, object]]:
    """Return the squared difference as a TE function on two elements, and its attributes. The reference supports only
    int8.
    """
    if {a.dtype, b.dtype, out.dtype} != {"int8"}:
        raise NotLowered(f"a squared difference of {a.dtype}, which the reference does not have")
    high = 1 << _HEAD_ROOM
    twice = np.float64(np.float32(2) * max(a.step, b.step))
    (ma, sa), (mb, sb) = (quantize_multiplier(float(np.float64(q.step) / twice)) for q in (a, b))
    mo, so = quantize_multiplier(float(twice * twice / np.float64(np.float32(high * high) * out.scale)))
    if so > 0:
        raise NotLowered("a squared difference whose output scale is too small for the reference")

    def value(x: Scalar, y: Scalar) -> Scalar:
        left = te_rescale(a.centred(x) * i32(high), ma, sa, a.reach * high)
        right = te_rescale(b.centred(y) * i32(high), mb, sb, b.reach * high)
        return te_rescale((left - right) * (left - right), mo, so, (255 * high) ** 2)

    return value, {"head_room": _HEAD_ROOM, "multipliers": (ma, mb, mo), "shifts": (sa, sb, so)}
