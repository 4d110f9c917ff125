"""MVE vectors of four int32 lanes in TIR: loads, stores, and TFLite's rescaling by `vqrdmulh` and `vrshl`.

`vqrdmulh` is SRDHM (`schedules.rules.requantize`). `vrshl` by -e is RDivPOT except for negative h, from which one is
subtracted first: h + (h >> 31). After `vqdmulh`, which rounds down, `vrshl` rounds once, half up (`Requantize.even`); from
products that may lie halfway, one is subtracted first where the number below is even (`Requantize.narrow`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm_cascade.schedules.rules.emit import Builder, KernelBuilder, best_step
from tvm_cascade.schedules.rules.requantize import Requantize
from tvm_cascade.schedules.tir import Value, i32, tirx

LANES = 4
_STEP = 6  # most vectors of an iteration of a loop over elements
_LARGEST = (1 << 31) - 1


def splat(value: Value, lanes: Any = LANES) -> Value:
    """Return a vector with `value` in every lane; Python integers become int32."""
    return tirx.Broadcast(i32(value), lanes)


def vector(buffer: Value, index: Value, lanes: Any) -> Value:
    """Loads `lanes` elements of `buffer` from `index` on."""
    ramp: Value = tirx.Ramp(i32(index), i32(1), lanes)
    return tirx.BufferLoad(buffer, [ramp])


def put(k: Builder, buffer: Value, index: Value, value: Value, lanes: Any) -> None:
    """Stores `lanes` elements from `index` on."""
    ramp: Value = tirx.Ramp(i32(index), i32(1), lanes)
    k.add(tirx.BufferStore(buffer, value, [ramp]))


def each_vector(
    k: KernelBuilder, out: Value, count: int, dtype: str, value: Callable[[Value], Value], start: Value = 0
) -> None:
    """Store `count` elements, four or more, to `out` from `start` on: `value(i)` is the vector from element `i` on.

    If they are no whole vectors, the last vector overlaps the previous vector, and is computed before anything is
    stored, so elements may lie in their operands' place.
    """
    last = k.let(value(i32(count - LANES)), "last", f"{dtype}x{LANES}") if count % LANES else None
    step = best_step(count // LANES, _STEP)
    for i in k.unrolled(count // LANES // step, step):
        put(k, out, start + i * LANES, value(i * LANES), LANES)
    if last is not None:
        put(k, out, start + (count - LANES), last, LANES)


def high_lanes(k: KernelBuilder, acc: Value, m: Value, sign: bool = False, even: bool = False) -> Value:
    """Compute SRDHM of two vectors.

    With `sign`, decrement negative lanes by one, as `rounded_lanes` needs. With `even` round the high words down for a
    single rounding in `rounded_lanes`.
    """
    name = "llvm.arm.mve.vqdmulh" if even else "llvm.arm.mve.vqrdmulh"
    high = k.let(tirx.call_llvm_pure_intrin("int32x4", name, acc, m), "h", "int32x4")
    if not sign:
        return high
    return k.let(high + tirx.shift_right(high, splat(31)), "h", "int32x4")


def rounded_lanes(value: Value, shift: Value) -> Value:
    """Shift `value` right by `-shift` bits, rounded half up."""
    return _shifted_lanes(value, shift, rounded=True)


def _shifted_lanes(value: Value, shift: Value, rounded: bool) -> Value:
    return tirx.call_llvm_pure_intrin("int32x4", "llvm.arm.mve.vshl.vector", value, shift, 0, int(rounded), 0)


def _even_lanes(k: KernelBuilder, product: Value, shift: Value) -> Value:
    """Shift a vector right by `-shift` bits, rounded half to even."""
    odd = tirx.bitwise_and(_shifted_lanes(product, shift, rounded=False), splat(1))
    return rounded_lanes(k.let(product + odd - splat(1), "h", "int32x4"), shift)


def rescale_lanes(k: KernelBuilder, acc: Value, m: Value, s: Value | None) -> Value:
    """Compute `MBQM` of four lanes by multiplier `m` and shift `s` (negative: right; None: no shift)."""
    high = high_lanes(k, acc, splat(m), s is not None)
    return high if s is None else rounded_lanes(high, splat(s))


def requantize_lanes(k: KernelBuilder, q: Requantize, acc: Value, m: Value, shift: Value, zero: Value | None) -> Value:
    """Requantize four accumulators to clamped int32 outputs; `shift` is negative (right).

    `zero` is the output's zero point, loaded from memory so that layers of equal shape share a kernel; None if always
    0. Limits in `q` that no int32 exceeds are left out.
    """
    if q.narrow:
        value = _even_lanes(k, k.let(acc * m, "p", "int32x4"), shift)
    else:
        value = rounded_lanes(high_lanes(k, acc, m, q.sign, q.even), shift)
    value = k.let(value if zero is None else value + splat(zero), "q", "int32x4")
    value = value if q.hi >= _LARGEST else tirx.min(value, splat(q.hi))
    return value if q.lo <= -_LARGEST - 1 else tirx.max(value, splat(q.lo))
