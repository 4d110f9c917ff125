"""TFLite's fixed-point primitives in the program (TE); `operators.fixed_point` has the numpy twins.

Symbols: a real multiplier d is `m * 2^(s - 31)` with a 31-bit m (`QM`); `SRDHM(a, m) = (a * m + 2^30) >> 31` in 64
bits; `RDivPOT(h, e)` divides by 2^e, ties away from zero; `MBQM(x, m, s)` is both, and rounds twice, which no single
rounding reproduces. Source: gemmlowp's fixedpoint.h and TFLite's common.h.

TE has no let: nested forms that repeat an operand grow exponentially and compile for minutes. So each operand occurs
once where possible. Values stay in 32 bits wherever the operand's bound allows.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.operators.fixed_point import (  # noqa: F401 - lowering functions have all of it from here
    INT32_MAX,
    MOST_SUM,
    quantize_multiplier,
    quantize_multipliers,
    range_of,
    round_half_away,
    rounded,
    rounding_divide,
    srdhm,
)
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, tirx


def bits_of(dtype: str) -> int:
    """Return an integer type's bits."""
    return int(np.iinfo(dtype).bits)


def i32(value: int) -> Scalar:
    return tirx.const(int(value), "int32")


def i64(value: int) -> Scalar:
    return tirx.const(int(value), "int64")


def te_srdhm(a: Scalar, m: Scalar) -> Scalar:
    """Compute `SRDHM` on int64 expressions; the result fits 32 bits."""
    return (a * m + i64(1 << 30)) >> i64(31)


def te_rounding_divide(h: Scalar, e: int, bits: int = 32) -> Scalar:
    """Compute `RDivPOT` by a constant, on int32 or (`bits=64`) int64; the caller ensures that `|h| + 2^(e-1)` fits."""
    if e == 0:
        return h
    const = i64 if bits == 64 else i32
    return (h + (h >> const(bits - 1)) + const(1 << (e - 1))) >> const(e)


def te_wrapping_shift(x: Scalar, s: Scalar) -> Scalar:
    """Shift an int32 left by an int32, wrapping in 32 bits like the reference.

    A truncated 64-bit product: C leaves the left shift of a negative number undefined, and TVM simplifies unsigned
    arithmetic without wraparound.
    """
    return (x.astype("int64") * (i64(1) << s.astype("int64"))).astype("int32")


def te_rescale(x: Scalar, m: int, s: int, bound: int) -> Scalar:
    """Compute `MBQM` by a constant multiplier, as int32.

    Parameters
    ----------
    x : int32 expression
    m, s : the multiplier, from `quantize_multiplier`
    bound : int
        `|x| <= bound`.
    """
    if s > 0 and bound << s > INT32_MAX:  # the reference shifts in 32 bits, and wraps
        high = te_srdhm(te_wrapping_shift(x, i32(s)).astype("int64"), i64(m))
        return high.astype("int32")
    e = max(-s, 0)
    narrow = _high_bound(bound, s) + (1 << max(e - 1, 0)) <= INT32_MAX
    if narrow and m == 1 << 30:  # a power of two: `SRDHM(x << s, 2^30)` is `(x << s) / 2`, rounded half up
        return te_rounding_divide(x * i32(1 << (s - 1)) if s > 0 else (x + i32(1)) >> i32(1), e)
    high = te_srdhm(x.astype("int64"), i64(m << max(s, 0)))
    if narrow:
        return te_rounding_divide(high.astype("int32"), e)
    return te_rounding_divide(high, e, bits=64).astype("int32")


def te_rescale_channel(x: Scalar, m: Scalar, s: Scalar, shifts: np.ndarray, bound: int) -> Scalar:
    """Compute `MBQM` by per-channel multipliers, as int32.

    Parameters
    ----------
    x, m, s : int32 expressions
        Accumulator, multiplier and shift of a single output; the shift is TFLite's, positive to the left.
    shifts : int32 array
        All values that `s` takes.
    bound : int
        `|x| <= bound`.
    """
    lo, hi = int(shifts.min()), int(shifts.max())
    wide = x.astype("int64")
    if hi > 0:
        wide = te_wrapping_shift(x, tirx.max(s, i32(0))).astype("int64")
    high = te_srdhm(wide, m.astype("int64"))
    narrow = max(_high_bound(bound, hi), 0) + (1 << max(-lo - 1, 0)) <= INT32_MAX
    high = high.astype("int32") if narrow else high
    const = i32 if narrow else i64
    e = const(0) - (s if narrow else s.astype("int64"))
    sign = high >> const(31 if narrow else 63)
    if hi < 0:
        result = (high + sign + (const(1) << (e - const(1)))) >> e
    else:
        e = tirx.max(e, const(0)) if hi > 0 else e
        result = (high + tirx.Select(e > const(0), sign, const(0)) + ((const(1) << e) >> const(1))) >> e
    return result if narrow else result.astype("int32")


def may_tie(m: np.ndarray | int, s: np.ndarray | int, bound: int) -> bool:
    """Return True if `x m 2^(s - 31)` may lie halfway between two integers for an integer x of `|x| <= bound`."""
    product, shift = np.asarray(m, "int64"), 31 - np.asarray(s, "int64")
    half = np.int64(1) << np.maximum(shift - 1, 0)
    factor = np.maximum(product & -product, 1)  # the power of two in m: x needs the other factors of 2^(shift - 1)
    return bool(np.any((product != 0) & (shift > 0) & (factor <= half) & (half // factor <= bound)))


def te_rescale_even(x: Scalar, m: int, s: int, bound: int) -> Scalar:
    """Compute `x m 2^(s - 31)` rounded once, half to even, and saturated, as int32; parameters like `te_rescale`."""
    if m == 0:
        return i32(0)
    zeros = min((m & -m).bit_length() - 1, 31 - s)
    m, shift = m >> zeros, 31 - s - zeros
    half = (1 << shift) >> 1
    largest = bound * abs(m) + half
    const, x = (i32, x) if largest <= INT32_MAX else (i64, x.astype("int64"))
    product = x if m == 1 else x * const(m)
    if shift:
        ties = bound >= half
        odd = tirx.bitwise_and(product >> const(shift), const(1)) if ties else const(0)
        product = (product + const(half - ties) + odd) >> const(shift)
    return _saturated(product, largest >> shift)


def te_rescale_channel_even(
    x: Scalar, m: Scalar, s: Scalar, given: tuple[np.ndarray, np.ndarray], bound: int
) -> Scalar:
    """Compute `te_rescale_even` by per-channel multipliers; `given` are all values for `m` and `s`, in pairs."""
    product = x.astype("int64") * m.astype("int64")
    shift = i64(31) - s.astype("int64")
    half = i64(1) << (shift - i64(1))
    if may_tie(*given, bound):
        half = half - i64(1) + tirx.bitwise_and(product >> shift, i64(1))
    return _saturated((product + half) >> shift, int((bound * np.ldexp(1.0, given[1])).max()) + 1)


def _saturated(value: Scalar, largest: int) -> Scalar:
    """Clip `value` to `largest` in magnitude, as int32 with room for a zero point."""
    if largest > MOST_SUM:
        value = tirx.max(tirx.min(value, i64(MOST_SUM)), i64(-MOST_SUM))
    return value.astype("int32")


def once_rounded(m: np.ndarray | np.integer) -> np.ndarray:
    """Return `QM` multipliers rounded to 16 bits, the reference's form for 64-bit accumulators."""
    return np.where(m < 0x7FFF0000, (m.astype("int64") + (1 << 15)) >> 16, 0x7FFF).astype("int32")


def te_rescale_once(x: Scalar, r: Scalar, s: Scalar) -> Scalar:
    """Compute `MBQM64`: an int64 accumulator times a 16-bit multiplier, rounded once, as int32.

    The reference's form for int16 activations; `r` is from `once_rounded`, `s` TFLite's shift, both int32 expressions.
    """
    up = i64(14) - s.astype("int64")
    return ((x * r.astype("int64") + (i64(1) << up)) >> (up + i64(1))).astype("int32")


def te_clamp(x: Scalar, lo: int, hi: int, dtype: str) -> Scalar:
    """Clamp an int32 to `[lo, hi]` and cast to `dtype`."""
    return tirx.max(tirx.min(x, i32(hi)), i32(lo)).astype(dtype)


def te_broadcast(x: Tensor, index: tuple[Index, ...]) -> Scalar:
    """Return the element of `x` for an index into the broadcast shape."""
    own = index[len(index) - len(x.shape) :]
    return x[tuple(0 if int(d) == 1 else i for d, i in zip(x.shape, own, strict=True))]


def te_leading_zeros(v: Scalar) -> Scalar:
    """Count a positive int32's leading zeros, by comparisons: portable, and used once per row."""
    count = i32(0)
    for bit in range(1, 31):
        count = count + tirx.Select(v < i32(1 << bit), i32(1), i32(0))
    return count + i32(1)


def te_saturate(v: Scalar) -> Scalar:
    """Clamp an int64 to the int32 range."""
    return tirx.max(tirx.min(v, i64(INT32_MAX)), i64(-INT32_MAX - 1))


def _high_bound(bound: int, s: int) -> int:
    """Bound on `SRDHM(x << max(s, 0), m)` for `|x| <= bound` and m below 2^31."""
    return min((bound << max(s, 0)) + 1, 1 << 31)
