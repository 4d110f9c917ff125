"""Lowering of hybrid operators, of float activations and int8 weights, in TFLite's arithmetic.

While the network runs, the input is stored as int8, each part of its first axis (a row of a product, an image of a convolution)
with a scale `s` and a zero point `z` of its own:

    symmetric   s = max |x| / 127                       z = 0                           q = rha(x * (127 / max |x|))
    asymmetric  s = (max(x, 0) - min(x, 0)) / 255       z = -128 - min / s, rounded     q = rha(x * (1 / s) + z)

or `z = 127 - max / s`, where that is the more exact. `rha` rounds half away from zero. With weights `W` of scale `w` the output
is `w s sum W (q - z) + b`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import shape_of
from tvm_cascade.passes.integer.fixed_point import INT32_MAX, i32, te_clamp
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx
from tvm_cascade.program.quant import NotLowered

_SCALE, _INVERSE, _ZERO = range(3)  # columns of the factors of a part
_REACH = 255  # largest |q - z|


@dataclass(frozen=True, slots=True)
class HybridWeights:
    """Weights for a hybrid operator: int8, with one scale or one per output channel (float32), and a float32 bias."""

    data: np.ndarray
    scales: np.ndarray
    bias: np.ndarray  # one an output channel

    @property
    def by_channel(self) -> bool:
        return self.scales.size > 1

    def checked(self, products: int) -> HybridWeights:
        """Return these weights; raises `NotLowered` if sums over so many products might exceed 32 bits."""
        if products * _REACH * 128 > INT32_MAX:
            raise NotLowered("a hybrid operator whose sums exceed 32 bits")
        return self


@dataclass(frozen=True, slots=True)
class Stored:
    """An activation as it is stored while the network runs: int8, and the factors of each part."""

    values: Value
    factors: Value


def lower_stored(emitter: Emitter, x: Value, asymmetric: bool) -> Stored:
    """Emit the float32 factors for every part of `x`, and its stored integers."""
    factors, shape = lower_factors(emitter, x, asymmetric), shape_of(x)

    def compute(a: Tensor, f: Tensor) -> Tensor:
        return te.compute(
            shape, lambda *i: te_stored(a[i], f[i[0], _INVERSE], f[i[0], _ZERO], asymmetric), name="stored"
        )

    clamp = (lowest_stored(asymmetric), 127)
    return Stored(emitter.call("hybrid_quantize", compute, [x, factors], clamp=clamp), factors)


def lower_rounded(emitter: Emitter, x: Value, asymmetric: bool) -> Value:
    """Emits the real numbers, float32, for which the stored values of `x` stand."""
    factors, shape = lower_factors(emitter, x, asymmetric), shape_of(x)

    def compute(a: Tensor, f: Tensor) -> Tensor:
        def at(*i: Index) -> Scalar:
            return te_rounded(a[i], [f[i[0], column] for column in range(3)], asymmetric)

        return te.compute(shape, at, name="rounded")

    return emitter.call("hybrid_round", compute, [x, factors])


def lower_factors(emitter: Emitter, x: Value, asymmetric: bool) -> Value:
    """Emit the float32 factors for each part of `x`, [parts, 3]: scale, multiplier, zero point."""
    parts, *rest = shape_of(x)

    def compute(a: Tensor) -> Tensor:
        def extreme(reduce: Callable[..., Scalar], name: str) -> Tensor:
            axes = [te.reduce_axis((0, extent)) for extent in rest]
            return te.compute((parts,), lambda n: reduce(a[(n, *axes)], axis=axes), name=name)

        low, high = extreme(te.min, "low"), extreme(te.max, "high")

        def at(n: Index, column: Index) -> Scalar:
            scale, inverse, zero = te_factors(low[n], high[n], asymmetric)
            chosen = tirx.if_then_else(column == _INVERSE, inverse, zero)
            return tirx.if_then_else(column == _SCALE, scale, chosen)

        return te.compute((parts, 3), at, name="factors")

    return emitter.call("hybrid_factors", compute, [x], ignores_nan=True)


def te_factors(low: Scalar, high: Scalar, asymmetric: bool) -> tuple[Scalar, Scalar, Scalar]:
    """Scale, inverse and zero point (float32) of a part whose smallest and largest elements are `low` and `high`."""
    none, one = f32(0), f32(1)
    if not asymmetric:
        reach = tirx.max(tirx.abs(low), tirx.abs(high))
        empty = reach == none
        return tirx.Select(empty, one, reach / f32(127)), tirx.Select(empty, none, f32(127) / reach), none
    low, high = tirx.min(low, none), tirx.max(high, none)
    wide = (high - low).astype("float64") / f64(255)  # the reference subtracts in float32, and divides in float64
    empty = low == high
    low, high = low.astype("float64"), high.astype("float64")
    below, above = low / wide, high / wide
    nearer = f64(128) + tirx.abs(below) < f64(127) + tirx.abs(above)
    zero = te_round(tirx.Select(nearer, f64(-128) - below, f64(127) - above))
    held = tirx.max(tirx.min(zero, f64(127)), f64(-128)).astype("float32")
    scale = wide.astype("float32")
    return tirx.Select(empty, one, scale), tirx.Select(empty, none, one / scale), tirx.Select(empty, none, held)


def te_stored(x: Scalar, inverse: Scalar, zero: Scalar, asymmetric: bool) -> Scalar:
    """Return an element's stored integer, int8."""
    return te_clamp(te_round(x * inverse + zero).astype("int32"), lowest_stored(asymmetric), 127, "int8")


def lowest_stored(asymmetric: bool) -> int:
    """Return the least stored number."""
    return -128 if asymmetric else -127


def te_rounded(x: Scalar, factors: Sequence[Scalar], asymmetric: bool) -> Scalar:
    """Return the real number behind an element's stored integer; `factors` are its part's."""
    scale, inverse, zero = factors
    return (te_stored(x, inverse, zero, asymmetric).astype("float32") - zero) * scale


def te_round(x: Scalar) -> Scalar:
    """Round to the nearest integer, half away from zero."""
    whole, half = tirx.trunc(x), tirx.const(0.5, x.ty.dtype)
    one, none = (tirx.const(v, x.ty.dtype) for v in (1, 0))
    return whole + tirx.Select(x - whole >= half, one, none) - tirx.Select(x - whole <= -half, one, none)


def f32(value: float) -> Scalar:
    return tirx.const(value, "float32")


def f64(value: float) -> Scalar:
    return tirx.const(value, "float64")


def lower_dense(emitter: Emitter, x: Stored, weights: HybridWeights) -> Value:
    """Emits the products of rows, `x` int8 [rows, depth], by weights [units, depth]: float32 [rows, units]."""
    (rows, depth), units = shape_of(x.values), len(weights.data)
    given = weights.checked(depth)

    def compute(a: Tensor, f: Tensor, w: Tensor, s: Tensor, b: Tensor) -> Tensor:
        rc = te.reduce_axis((0, depth), "rc")

        def product(n: Index, u: Index) -> Scalar:
            return te.sum(_centred(a[n, rc], f[n, _ZERO]) * w[u, rc].astype("int32"), axis=[rc])

        acc = te.compute((rows, units), product, name="hybrid_dense_acc")

        def real(n: Index, u: Index) -> Scalar:
            return acc[n, u].astype("float32") * (f[n, _SCALE] * s[_channel(u, given)]) + b[u]

        return te.compute((rows, units), real, name="hybrid_dense")

    return emitter.call("hybrid_dense", compute, [x.values, x.factors, given.data, given.scales, given.bias])


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a convolution: rows, then columns."""

    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]  # top, left, bottom, right


def lower_conv(emitter: Emitter, x: Stored, weights: HybridWeights, window: Window, depthwise: bool) -> Value:
    """Emits a convolution of `x`, int8 NHWC, by weights [kh, kw, depth, channels], or [kh, kw, depth, multiplier] where it is
    `depthwise`: float32. Padding adds nothing."""
    n, h, w, depth = shape_of(x.values)
    kh, kw, inner, last = weights.data.shape
    channels = inner * last if depthwise else last
    group = inner  # input channels that a sum reads
    given = weights.checked(kh * kw * (1 if depthwise else inner))
    top, left, bottom, right = window.padding
    (sy, sx), (dy, dx) = window.strides, window.dilation
    rows, columns = (
        (extent + sum(pads) - (size - 1) * step - 1) // stride + 1
        for extent, pads, size, step, stride in ((h, (top, bottom), kh, dy, sy), (w, (left, right), kw, dx, sx))
    )
    shape, kind = (n, rows, columns, channels), "hybrid_depthwise_conv2d" if depthwise else "hybrid_conv2d"
    per_group = channels // (depth // group)

    def compute(a: Tensor, f: Tensor, k: Tensor, s: Tensor, b: Tensor) -> Tensor:
        padded = _padded(a, f, window.padding, kind)
        axes = [te.reduce_axis((0, e), name) for e, name in ((kh, "ry"), (kw, "rx"), (1 if depthwise else inner, "rc"))]
        ry, rx, rc = axes

        def product(m: Index, y: Index, xx: Index, c: Index) -> Scalar:
            if depthwise:
                source, weight = tirx.floordiv(c, last), k[ry, rx, tirx.floordiv(c, last), tirx.floormod(c, last)]
            else:
                source, weight = tirx.floordiv(c, per_group) * group + rc, k[ry, rx, rc, c]
            return te.sum(padded(m, y * sy + ry * dy, xx * sx + rx * dx, source) * weight.astype("int32"), axis=axes)

        acc = te.compute(shape, product, name=f"{kind}_acc")

        def real(m: Index, y: Index, xx: Index, c: Index) -> Scalar:
            total, scale = acc[m, y, xx, c].astype("float32"), s[_channel(c, given)]
            if given.by_channel and not depthwise:  # the reference's order of products
                return total * scale * f[m, _SCALE] + b[c]
            return total * (f[m, _SCALE] * scale) + b[c]

        return te.compute(shape, real, name=kind)

    return emitter.call(kind, compute, [x.values, x.factors, given.data, given.scales, given.bias])


def _centred(stored: Scalar, zero: Scalar) -> Scalar:
    return stored.astype("int32") - zero.astype("int32")


def _channel(channel: Index, weights: HybridWeights) -> Index:
    return channel if weights.by_channel else i32(0)


def _padded(a: Tensor, f: Tensor, padding: Sequence[int], kind: str) -> Callable[..., Scalar]:
    """Return the elements of `a` minus their zero point, int32, by indices into the padded map."""
    if not any(padding):
        return lambda n, y, x, c: _centred(a[n, y, x, c], f[n, _ZERO])
    top, left, bottom, right = padding
    n, h, w, depth = (int(d) for d in a.shape)

    def at(m: Index, y: Index, x: Index, c: Index) -> Scalar:
        inside = tirx.all(y >= top, y < top + h, x >= left, x < left + w)
        value = _centred(a[m, y - top, x - left, c], f[m, _ZERO]).astype("int16")
        return tirx.if_then_else(inside, value, tirx.const(0, "int16"))

    held = te.compute((n, h + top + bottom, w + left + right, depth), at, name=f"{kind}_pad")
    return lambda m, y, x, c: held[m, y, x, c].astype("int32")
