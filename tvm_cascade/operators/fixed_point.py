"""The fixed-point arithmetic of TFLite's reference kernels on numpy arrays: the results of integer programs, at compile
time.

Symbols: a real multiplier d is `m * 2^(s - 31)` with a 31-bit m (`QM`); `SRDHM(a, m) = (a * m + 2^30) >> 31` in 64
bits; `RDivPOT(h, e)` divides by 2^e, ties away from zero; `MBQM(x, m, s)` is both, and so rounds twice, which single
rounding does not reproduce. Source: gemmlowp's fixedpoint.h and TFLite's common.h. `passes.integer.fixed_point` has the
same in the program.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

INT32_MAX = (1 << 31) - 1
MOST_SUM = 1 << 30  # in units of the output's scale: beyond it every output saturates


def range_of(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest number of an integer type."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def round_half_away(x: float | np.floating) -> int:
    """Compute `std::round`: to the nearest integer, ties away from zero."""
    whole = np.trunc(x)
    return int(whole) + (int(np.sign(x)) if abs(x - whole) >= 0.5 else 0)


def rounded(x: np.ndarray | np.floating) -> Any:
    """Compute `std::round` on floats, in the given type."""
    whole = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= 0.5, np.sign(x), x.dtype.type(0))


def quantize_multiplier(d: float) -> tuple[int, int]:
    """Compute `QM`: (m, s) with `d ~ m * 2^(s - 31)`, 2^30 <= |m| < 2^31; (0, 0) if d is below 2^-32."""
    m, s = quantize_multipliers([d])
    return int(m[0]), int(s[0])


def quantize_multipliers(ds: Iterable[float]) -> tuple[np.ndarray, np.ndarray]:
    """Compute `QM` of every d, as two int32 arrays. Raises `ValueError` if any is not finite."""
    real = np.fromiter((float(d) for d in ds), np.float64)
    if not np.isfinite(real).all():
        raise ValueError(f"a multiplier of {real[~np.isfinite(real)][0]} is not finite")
    fraction, s = np.frexp(real)
    m = rounded(fraction * (1 << 31)).astype(np.int64)
    carried = m == 1 << 31
    m, s = np.where(carried, m >> 1, m), s + carried
    little = s < -31
    return np.where(little, 0, m).astype("int32"), np.where(little, 0, s).astype("int32")


def srdhm(a: np.ndarray | int, m: int | np.ndarray) -> Any:
    """Compute `SRDHM` on int64 arrays."""
    return (np.asarray(a, "int64") * m + (1 << 30)) >> 31


def rounding_divide(h: np.ndarray, e: int | np.ndarray) -> np.ndarray:
    """Compute `RDivPOT` on int64 arrays."""
    h, e = np.asarray(h, "int64"), np.asarray(e, "int64")
    return np.where(e == 0, h, (h + (h >> 63) + ((np.int64(1) << e) >> 1)) >> e)


def rescale(x: np.ndarray, m: int | np.ndarray, s: int | np.ndarray) -> np.ndarray:
    """Compute `MBQM` of 32-bit numbers in int64 arrays. A left shift wraps in 32 bits, as in the reference."""
    m, s = np.asarray(m, "int64"), np.asarray(s, "int64")
    up = np.asarray(x, "int64") << np.maximum(s, 0)
    return rounding_divide(srdhm(up.astype("int32"), m), np.maximum(-s, 0))


def rescale_even(x: np.ndarray, m: int | np.ndarray, s: int | np.ndarray) -> np.ndarray:
    """Compute `x m 2^(s - 31)` rounded once, half to even, and saturated, for 32-bit numbers in int64 arrays."""
    shift = 31 - np.asarray(s, "int64")
    product = np.asarray(x, "int64") * np.asarray(m, "int64")
    half, odd = (np.int64(1) << shift) >> 1, (product >> shift) & 1
    return np.clip((product + half - 1 + odd) >> shift, -MOST_SUM, MOST_SUM)


def activation_range(
    bounds: tuple[float, float | None] | None, scale: np.float32, zero_point: int, dtype: str, once: bool = False
) -> tuple[int, int]:
    """Return the stored bounds of an activation with real `bounds` (None: unbounded), rounded in float32, halves away from
    zero or, with `once`, to even."""
    to_integer = np.rint if once else round_half_away
    lo, hi = range_of(dtype)
    if bounds is None:
        return lo, hi
    lo = max(lo, zero_point + int(to_integer(np.float32(bounds[0]) / scale)))
    if bounds[1] is not None:
        hi = min(hi, zero_point + int(to_integer(np.float32(bounds[1]) / scale)))
    return lo, hi
