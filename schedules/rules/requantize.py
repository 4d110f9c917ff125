"""Requantization of convolutions: a short exact form, used if a compile-time check proves exactness for the layer.

The reference is TFLite's `MBQM(acc, m, s) + zo`, clamped. MBQM (MultiplyByQuantizedMultiplier) rounds twice: in SRDHM
(SaturatingRoundingDoublingHighMul), then in RDivPOT (RoundingDivideByPOT). With multiplier m, shift s (negative to the
right), zero points zx of the input and zo of the output, e = -s and r = 2^(e-1) + (zo << e), the short form is

    h = (2 acc * m + 2^31) / 2^32 + r        rounded down; one `smmlar` on cores that have it
    y = clamp((h + (acc >> 31)) >> e)

`RDivPOT` adds h >> 31, the short form adds acc >> 31: they differ only if acc < 0 rounds to h = 0, and there (r - 1) >>
e equals r >> e. Preconditions, checked per layer:

- every e >= 1, and every |acc| < 2^30, so that 2 acc does not wrap. The bound on |acc| is the exact range over all int8
  inputs: bias plus the positive (negative) part of the weights times the largest (smallest) x - zx;
- |h| + r < 2^31, so that the sum does not wrap.

Where zo is at or below the lower clamp (a fused ReLU) every acc < 0 gives the lower clamp with or without acc >> 31,
because y is monotone in acc and acc = 0 gives zo: the term is left out.

All other layers use the general form in 64 bits.

Operators on real numbers (`ONCE`) round once, half to even. If no accumulator lies halfway (`may_tie`) that is `h = 2
acc * m / 2^32 + r`, rounded down, and `y = clamp(h >> e)`: one `smmla`, with nothing to correct. Accumulators that lie
halfway have multipliers of few bits, as scales that are powers of two make them: m = n 2^z. With k = 31 - s - z

    p = acc * n,    y = clamp((p + 2^(k-1) - 1 + (zo << k) + (p >> k & 1)) >> k)

is exact in 32 bits if p and the numbers added to it stay below 2^31 (the narrow form).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_cascade.schedules.rules.emit import Builder
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.tir import Value, i32, tirx

_LIMIT = 1 << 31
HALFWAY = "an accumulator may lie halfway"
WIDE_LOW = 25  # low bits of a wide multiplier, which are multiplied apart


@dataclass(frozen=True, slots=True, eq=False)
class Requantize:
    """The requantization of a layer: from int32 accumulators to outputs.

    `table` is int32 [channels, 3]: multiplier, addend, shift. Short form: addend r, shift e. General form: addend
    unused, TFLite's shift (negative to the right).
    """

    table: np.ndarray
    short: bool
    sign: bool  # whether acc >> 31 is needed
    zero_point: int
    lo: int
    hi: int
    reason: str = ""  # why it is not the short form
    once: bool = False  # rounds once, half away from zero; `table` is then m, 2^(e-1), e with e = -shift - 1
    even: bool = False  # rounds once, half to even; in the short form no accumulator lies halfway
    narrow: bool = False  # rounds once, half to even, in 32 bits; `table` is then n, 2^(k-1) + (zo << k), k
    wide: bool = (
        False  # rounds once, by multipliers m of 53 bits; `table` is then m >> 25, the rest of m, e (`WIDE_LOW`)
    )

    @property
    def in_lanes(self) -> bool:
        """Return True if vectors of int32 compute it (`schedules.rules.lanes`)."""
        return self.short or self.narrow

    @property
    def full_range(self) -> bool:
        return (self.lo, self.hi) == (-128, 127)


def plan_requantize(
    multiplier: np.ndarray,
    shift: np.ndarray,
    acc_lo: np.ndarray,
    acc_hi: np.ndarray,
    zero_point: int,
    clamp: tuple[int, int],
    even: bool = False,
) -> Requantize:
    """Plan the short form if it is exact for accumulators in `[acc_lo, acc_hi]` (int64 [channels]), else the narrow
    form, else the general form.

    With `even` all round once, half to even; the narrow form knows no other rounding.
    """
    m, s = multiplier.astype(np.int64).ravel(), shift.astype(np.int64).ravel()
    lo, hi = clamp
    reason, largest = _refusal(m, s, acc_lo, acc_hi, zero_point), np.maximum(np.abs(acc_lo), np.abs(acc_hi))
    if even and not reason and may_tie(m, s, largest):
        reason = HALFWAY
    if even and reason and (narrow := _narrow_table(m, s, largest, zero_point)) is not None:
        return Requantize(narrow, False, False, zero_point, lo, hi, reason, even=True, narrow=True)
    if reason:
        table = np.stack([m, np.zeros_like(m), s], axis=1).astype(np.int32)
        return Requantize(table, False, True, zero_point, lo, hi, reason, even=even)
    e = -s
    addend = (np.int64(1) << (e - 1)) + (zero_point * (np.int64(1) << e))
    table = np.stack([m, addend, e], axis=1).astype(np.int32)
    return Requantize(table, True, zero_point > lo and not even, zero_point, lo, hi, even=even)


def _narrow_table(m: np.ndarray, s: np.ndarray, largest: np.ndarray, zero_point: int) -> np.ndarray | None:
    """Return the table of the narrow form; None if a sum may exceed 31 bits."""
    factor = np.where(m == 0, np.int64(1) << 30, m & -m)
    n, k = m // factor, 31 - s - np.log2(factor).astype(np.int64)
    if (m < 0).any() or (k < 1).any() or (k > 30).any() or (n * largest >= _LIMIT).any():
        return None
    addend = (np.int64(1) << (k - 1)) + zero_point * (np.int64(1) << k)
    if (n * largest + np.abs(addend) + 1 >= _LIMIT).any():
        return None
    return np.stack([n, addend, k], axis=1).astype(np.int32)


def may_tie(m: np.ndarray, s: np.ndarray, most: np.ndarray) -> bool:
    """Return True if `acc m / 2^(31 - s)` may lie halfway between two integers for some `|acc| <= most`, by channel."""
    half, factor = np.int64(1) << (30 - s), np.maximum(m & -m, 1)
    return bool(((m != 0) & (half // factor <= most)).any())


def reference(
    acc: np.ndarray, m: np.ndarray, s: np.ndarray, zero_point: int, clamp: tuple[int, int], even: bool = False
) -> np.ndarray:
    """Compute `clamp(MBQM(acc, m, s) + zero_point)`, element-wise on int64 arrays; negative shifts `s` go right.

    With `even` the product is rounded once, half to even.
    """
    if even:
        product, shift = acc * m, 31 - np.asarray(s, np.int64)
        odd = (product >> shift) & 1
        return np.clip(((product + (np.int64(1) << (shift - 1)) - 1 + odd) >> shift) + zero_point, *clamp)
    left, right = np.maximum(s, 0), np.maximum(-s, 0)
    shifted = ((acc << left) + (1 << 31)) % (1 << 32) - (1 << 31)
    product = (shifted * m + (1 << 30)) >> 31  # of two numbers of 32 bits: below 2^63
    half = (np.int64(1) << right) >> 1
    rounded = (product + np.where(right > 0, product >> 63, 0) + half) >> right
    return np.clip(rounded + zero_point, *clamp)


def constant_channels(
    m: np.ndarray,
    s: np.ndarray,
    acc_lo: np.ndarray,
    acc_hi: np.ndarray,
    zero_point: int,
    clamp: tuple[int, int],
    even: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the channels (bool [channels]) with the same output for every input, and that output (int64 [channels]).

    The reference is monotone in the accumulator (unless a left shift wraps, which is excluded), so it is constant if
    equal at both bounds. Trained networks have such channels, with zero weights and biases beyond 2^30.
    """
    low, high = (reference(a, m, s, zero_point, clamp, even) for a in (acc_lo, acc_hi))
    safe = np.maximum(np.abs(acc_lo), np.abs(acc_hi)) < (np.int64(1) << (31 - np.clip(s, 0, 31)))
    return (low == high) & safe & (m >= 0), low


def _refusal(m: np.ndarray, s: np.ndarray, acc_lo: np.ndarray, acc_hi: np.ndarray, zero_point: int) -> str:
    if (s > -1).any() or (s < -30).any():
        return "a shift is not to the right"
    largest = np.maximum(np.abs(acc_lo), np.abs(acc_hi))
    if (largest >= 1 << 30).any():
        return "an accumulator may reach 2^30"
    e = -s
    addend = (np.int64(1) << (e - 1)) + zero_point * (np.int64(1) << e)
    product = (largest * m >> 31) + 2
    if (m < 0).any() or (product + np.abs(addend) + 1 >= _LIMIT).any():
        return "the rounded product and its addend may exceed 31 bits"
    return ""


def accumulator_bounds(
    weights: np.ndarray, bias: np.ndarray, input_zero_point: int, input_range: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Compute each channel's smallest and largest accumulator over all inputs; `weights` is [taps, channels].

    Padding contributes 0, which lies between the two.
    """
    positive = np.maximum(weights, 0).sum(0, np.int64)
    negative = weights.sum(0, np.int64) - positive
    low, high = input_range[0] - input_zero_point, input_range[1] - input_zero_point
    low, high = min(low, 0), max(high, 0)
    b = bias.astype(np.int64).ravel()
    return b + positive * low + negative * high, b + positive * high + negative * low


def emit_requantize(
    b: Builder, q: Requantize, acc: Value, m: Value, addend: Value, shift: Value, in_word: bool = False
) -> Value:
    """Emit the requantization of accumulator `acc`; return the output value (int32, clamped).

    With `in_word` the lowest byte of `shift` is one less than the shift to the right; not for wide multipliers.
    """
    if q.wide:
        return _wide(b, q, acc, m, addend, shift)
    if q.once:
        return _once(b, q, acc, m, addend, shift, in_word)
    if q.narrow:
        return _narrow(b, q, acc, m, addend, shift, in_word)
    if not q.short:
        if in_word:
            shift = b.let(-1 - tirx.bitwise_and(shift, i32(31)), "s")
        return (_general_even if q.even else _general)(b, q, acc, m, shift)
    h = b.let(call("smmla" if q.even else "smmlar", acc * 2, m, addend), "h")
    if q.sign:
        h = b.let(h + tirx.shift_right(acc, tirx.const(31, "int32")), "h")
    if in_word:
        return clamp_value(b, q, call("asr", h, shift), halved=True)
    return clamp_value(b, q, tirx.shift_right(h, shift))


def _once(b: Builder, q: Requantize, acc: Value, m: Value, addend: Value, shift: Value, in_word: bool) -> Value:
    """Round once: `(acc m + (acc >> 31) + 2^(31 + e)) >> (32 + e)`, for which the high words suffice."""
    wide = acc.astype("int64") * m.astype("int64") + tirx.shift_right(acc, tirx.const(31, "int32")).astype("int64")
    high = b.let(tirx.shift_right(wide, tirx.const(32, "int64")).astype("int32"), "h")
    if in_word:
        return clamp_value(b, q, tirx.shift_right(call("asr", high + addend, shift), i32(1)) + q.zero_point)
    return clamp_value(b, q, tirx.shift_right(high + addend, shift) + q.zero_point)


def _narrow(b: Builder, q: Requantize, acc: Value, n: Value, addend: Value, shift: Value, in_word: bool) -> Value:
    """Emit `(acc n + addend - 1 + (acc n >> shift & 1)) >> shift` in 32 bits."""
    product, below = b.let(acc * n, "p"), b.let(addend - 1, "below")
    if in_word:
        odd = tirx.bitwise_and(tirx.shift_right(call("asr", product, shift), i32(1)), i32(1))
        return clamp_value(b, q, call("asr", b.let(product + below + odd, "h"), shift), halved=True)
    odd = tirx.bitwise_and(tirx.shift_right(product, shift), i32(1))
    return clamp_value(b, q, tirx.shift_right(product + below + odd, shift))


def _wide(b: Builder, q: Requantize, acc: Value, m: Value, low: Value, shift: Value) -> Value:
    """Emit `(acc M + (acc >> 31) + 2^(56 + e)) >> (57 + e)` with `M = (m << 25) + low`: the product's high words
    suffice.
    """
    wide, sign = acc.astype("int64"), tirx.shift_right(acc, tirx.const(31, "int32")).astype("int64")
    rest = b.let(tirx.shift_right(wide * low.astype("int64") + sign, tirx.const(WIDE_LOW, "int64")), "rest", "int64")
    high = b.let(tirx.shift_right(wide * m.astype("int64") + rest, tirx.const(32, "int64")).astype("int32"), "h")
    half = tirx.shift_left(tirx.const(1, "int32"), shift - 1)
    return clamp_value(b, q, tirx.shift_right(high + half, shift) + q.zero_point)


def clamp_value(b: Builder, q: Requantize, value: Value, halved: bool = False) -> Value:
    """Clamp the value, with `halved` half of it rounded down, to the output's range."""
    value, saturated = b.let(value, "q"), "ssat8_half" if halved else "ssat8"
    if q.full_range:
        return call(saturated, value)
    if q.lo <= -128:
        return tirx.min(call(saturated, value), tirx.const(q.hi, "int32"))
    if halved and q.hi == 127:
        return tirx.max(call(saturated, value), tirx.const(q.lo, "int32"))
    if halved:
        value = b.let(tirx.shift_right(value, i32(1)), "q")
    if (q.lo, q.hi) == (0, 255):
        return call("usat8", value)
    return tirx.max(tirx.min(value, tirx.const(q.hi, "int32")), tirx.const(q.lo, "int32"))


def _general_even(b: Builder, q: Requantize, acc: Value, m: Value, shift: Value) -> Value:
    """Emit `acc m 2^(shift - 31) + zo` in 64 bits, rounded once, half to even, and saturated.

    Where only halves stand in the way of the short form, the high word is rounded, in 32 bits: up from halves if the low
    word is not zero or the high word is odd.
    """
    product = b.let(acc.astype("int64") * m.astype("int64"), "p", "int64")
    if q.reason == HALFWAY:
        e, one = b.let(0 - shift, "e"), i32(1)
        h = b.let(tirx.shift_right(product, tirx.const(31, "int64")).astype("int32"), "h")
        odd = b.let(tirx.bitwise_and(tirx.shift_right(h, e), one), "odd")
        low = tirx.bitwise_and(product.astype("int32"), i32(0x7FFFFFFF))
        up = b.let(tirx.Select(tirx.EQ(low, i32(0)), odd, one), "up")
        return clamp_value(b, q, tirx.shift_right(h + tirx.shift_left(one, e - 1) - 1 + up, e) + q.zero_point)
    down = b.let(tirx.const(31, "int64") - shift.astype("int64"), "down", "int64")
    odd = tirx.bitwise_and(tirx.shift_right(product, down), tirx.const(1, "int64"))
    below = tirx.shift_left(tirx.const(1, "int64"), down - 1) - 1
    whole = b.let(tirx.shift_right(product + below + odd, down), "whole", "int64")
    most = tirx.const(1 << 30, "int64")
    return clamp_value(b, q, tirx.max(tirx.min(whole, most), 0 - most).astype("int32") + q.zero_point)


def _general(b: Builder, q: Requantize, acc: Value, m: Value, shift: Value) -> Value:
    """Emit `MBQM(acc, m, shift) + zo` in 64 bits."""
    left = b.let(tirx.max(shift, tirx.const(0, "int32")), "left")
    right = b.let(tirx.max(0 - shift, tirx.const(0, "int32")), "right")
    shifted = tirx.shift_left(acc.astype("uint32"), left.astype("uint32")).astype("int32")  # it may wrap
    wide = shifted.astype("int64") * m.astype("int64") + tirx.const(1 << 30, "int64")
    h = b.let(tirx.shift_right(wide, tirx.const(31, "int64")), "h", "int64")
    half = tirx.shift_right(tirx.shift_left(tirx.const(1, "int64"), right.astype("int64")), tirx.const(1, "int64"))
    negative = tirx.Select(right > 0, tirx.shift_right(h, tirx.const(63, "int64")), tirx.const(0, "int64"))
    y = tirx.shift_right(h + negative + half, right.astype("int64")).astype("int32") + q.zero_point
    return clamp_value(b, q, y)
