"""`log1p` in single floats, rounded as in newlib, musl and glibc up to 2.40.

One value in eleven is not the nearest single float there, and weights of mel filters follow from these values. The
method is Sun's fdlibm's: 1 + x = 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), log(1 + f) = f - f^2/2 + s
(f^2/2 + R(s^2)) with s = f / (2 + f); the polynomial R approximates the rest of the series.
"""

from __future__ import annotations

from functools import reduce
from math import frexp

import numpy as np

_f = np.float32
_ONE, _HALF = _f(1.0), _f(0.5)
# of R
_SERIES = tuple(map(_f, (0.14798198640, 0.15313838422, 0.18183572590, 0.22222198546, 0.28571429849, 0.4, 2 / 3)))
_LOG2_HIGH, _LOG2_LOW = _f(6.9313812256e-01), _f(9.0580006145e-06)  # their sum is log(2)
_TINY, _SMALL, _MOST = _f(2.0**-29), _f(0.41421387), _f(1.414214)  # near sqrt(2) - 1 and sqrt(2), as fdlibm has them


def single_log1p(x: np.float32) -> np.float32:
    """Return log(1 + x) of a single float x >= 0."""
    if x < _TINY:
        return x - x * x * _HALF
    k, f, lost = 0, x, _f(0.0)
    if x >= _SMALL:
        whole = _ONE + x
        k = frexp(float(whole))[1] - 1
        lost = (_ONE - (whole - x) if k else x - (whole - _ONE)) / whole  # what the sum was rounded by
        fraction = whole / _f(2.0**k)
        if fraction >= _MOST:
            k, fraction = k + 1, fraction / _f(2.0)
        f = fraction - _ONE
    square, high, low = _HALF * f * f, _f(k) * _LOG2_HIGH, _f(k) * _LOG2_LOW + lost
    if abs(f) < _f(2.0**-20):
        rest = square * (_ONE - _f(2 / 3) * f)
        return high - ((rest - low) - f)
    s = f / (_f(2.0) + f)
    z = s * s
    rest = z * reduce(lambda total, term: term + z * total, _SERIES)
    return high - ((square - (s * (square + rest) + low)) - f) if k else f - (square - s * (square + rest))
