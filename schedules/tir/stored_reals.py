"""How float activations are stored as int8 while a network runs: scale and zero point of a part, and its integers.

    symmetric   s = max |x| / 127                       z = 0                           q = rha(x * (127 / max |x|))
    asymmetric  s = (max(x, 0) - min(x, 0)) / 255       z = -128 - min / s, rounded     q = rha(x * (1 / s) + z)
    linear      s = (max(x, 0) - min(x, 0)) / 255       z = -128 + rne(-min / s)        q = rne(x / s) + z

Symmetric and asymmetric are LiteRT's: `rha` rounds half away from zero, and `z = 127 - max / s` where that is the more exact.
Linear is DynamicQuantizeLinear of ONNX less 128: `rne` rounds half to even. Functions take and return TIR expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from tvm_cascade.schedules.tir import Value, tirx


class Storing(Enum):
    """How a part is stored."""

    SYMMETRIC = "symmetric"
    ASYMMETRIC = "asymmetric"
    LINEAR = "linear"

    @property
    def lowest(self) -> int:
        """Return the least stored number."""
        return -127 if self is Storing.SYMMETRIC else -128


SCALE, INVERSE, ZERO = range(3)  # columns of the factors of a part; linear: the scale once more, as the divisor


def factors(
    low: Value, high: Value, storing: Storing, bound: Callable[[Value], Value] = lambda term: term
) -> tuple[Value, Value, Value]:
    """Return scale, inverse and zero point (float32) of a part whose smallest and largest elements are `low` and `high`.

    `bound` binds a term that stands in several places.
    """
    none, one = f32(0), f32(1)
    if storing is Storing.SYMMETRIC:
        reach = tirx.max(tirx.abs(low), tirx.abs(high))
        empty = reach == none
        return tirx.Select(empty, one, reach / f32(127)), tirx.Select(empty, none, f32(127) / reach), none
    low, high = bound(tirx.min(low, none)), bound(tirx.max(high, none))
    empty = low == high
    if storing is Storing.LINEAR:
        scale = tirx.Select(empty, one, (high - low) / f32(255))
        above = tirx.max(tirx.min(none - low / scale, f32(255)), none)
        return scale, scale, tirx.nearbyint(above) - f32(128)
    wide = bound(
        (high - low).astype("float64") / f64(255)
    )  # the reference subtracts in float32, and divides in float64
    below, above = (bound(end.astype("float64") / wide) for end in (low, high))
    nearer = f64(128) + tirx.abs(below) < f64(127) + tirx.abs(above)
    zero = rounded(bound(tirx.Select(nearer, f64(-128) - below, f64(127) - above)), bound)
    held = tirx.max(tirx.min(zero, f64(127)), f64(-128)).astype("float32")
    scale = bound(wide.astype("float32"))
    return tirx.Select(empty, one, scale), tirx.Select(empty, none, one / scale), tirx.Select(empty, none, held)


def stored(x: Value, inverse: Value, zero: Value, storing: Storing) -> Value:
    """Return an element's stored integer, int32, in plain TIR."""
    least, most = (tirx.const(v, "int32") for v in (storing.lowest, 127))

    def whole(v: Value) -> Value:
        return (tirx.nearbyint(v) if storing is Storing.LINEAR else rounded(v)).astype("int32")

    return tirx.max(tirx.min(number(x, inverse, zero, storing, whole, lambda v: v), most), least)


def number(
    x: Value,
    inverse: Value,
    zero: Value,
    storing: Storing,
    whole: Callable[[Value], Value],
    alone: Callable[[Value], Value],
) -> Value:
    """Return an element's integer before it is clamped, int32. `whole` rounds a float to an int32 as `storing` does;
    `alone` keeps a product from being joined with a sum.
    """
    if storing is Storing.LINEAR:
        return whole(x / inverse) + zero.astype("int32")
    return whole(alone(x * inverse) + zero)


def rounded(x: Value, bound: Callable[[Value], Value] = lambda term: term) -> Value:
    """Round to the nearest integer, half away from zero, in a float's own type; `bound` as in `factors`."""
    whole, half = bound(tirx.trunc(x)), tirx.const(0.5, x.ty.dtype)
    one, none = (tirx.const(v, x.ty.dtype) for v in (1, 0))
    return whole + tirx.Select(x - whole >= half, one, none) - tirx.Select(x - whole <= -half, one, none)


def f32(value: float) -> Value:
    """Return a constant float32."""
    return tirx.const(value, "float32")


def f64(value: float) -> Value:
    """Return a constant float64."""
    return tirx.const(value, "float64")
