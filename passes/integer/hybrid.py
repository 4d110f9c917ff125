"""Lowering for hybrid operators, with float activations and int8 weights.

While the network runs, the input is stored as int8 (`schedules.tir.stored_reals`). Each part of its first axis (a row of a
product, an image of a convolution) has a scale `s` and a zero point `z` of its own, in TFLite's arithmetic; in ONNX's the
whole tensor is one part. With weights `W` of scale `w` the output is `w s sum W (q - z) + b`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import shape_of
from tvm_cascade.passes.integer.fixed_point import INT32_MAX, i32
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx
from tvm_cascade.program.quant import NotLowered
from tvm_cascade.schedules.tir.stored_reals import INVERSE, SCALE, ZERO, Storing, f32, factors, stored

_REACH = 255  # largest |q - z|


@dataclass(frozen=True, slots=True)
class HybridWeights:
    """Weights for a hybrid operator: int8 (int16 where a zero point is subtracted already), with one scale or one per output
    channel (float32), and a float32 bias.
    """

    data: np.ndarray
    scales: np.ndarray
    bias: np.ndarray  # one an output channel

    @property
    def by_channel(self) -> bool:
        return self.scales.size > 1

    def checked(self, products: int) -> HybridWeights:
        """Return these weights; raises `NotLowered` if sums over so many products might exceed 32 bits."""
        largest = max(abs(int(self.data.min())), abs(int(self.data.max())))
        if products * _REACH * largest > INT32_MAX:
            raise NotLowered("a hybrid operator whose sums exceed 32 bits")
        return self


@dataclass(frozen=True, slots=True)
class Stored:
    """An activation as it is stored while the network runs: int8, and the factors of each part."""

    values: Value
    factors: Value
    storing: Storing

    @property
    def zero_point(self) -> int | None:
        """Return the zero point of all parts; None if it is known at run time."""
        return 0 if self.storing is Storing.SYMMETRIC else None

    def part(self, index: Index) -> Index:
        """Return the part that holds index `index` of the first axis."""
        return index if shape_of(self.factors)[0] > 1 else i32(0)


def lower_stored(emitter: Emitter, x: Value, storing: Storing) -> Stored:
    """Emit the float32 factors for every part of `x`, and its stored integers."""
    held, shape = lower_factors(emitter, x, storing), shape_of(x)
    result = Stored(x, held, storing)

    def compute(a: Tensor, f: Tensor) -> Tensor:
        def at(*i: Index) -> Scalar:
            part = result.part(i[0])
            return stored(a[i], f[part, INVERSE], f[part, ZERO], storing).astype("int8")

        return te.compute(shape, at, name="stored")

    clamp = (storing.lowest, 127)
    values = emitter.call("hybrid_quantize", compute, [x, held], clamp=clamp, storing=storing.value)
    return replace(result, values=values)


def lower_rounded(emitter: Emitter, x: Value, storing: Storing) -> Value:
    """Emits the real numbers, float32, for which the stored values of `x` stand."""
    held, shape = lower_factors(emitter, x, storing), shape_of(x)

    def compute(a: Tensor, f: Tensor) -> Tensor:
        def at(*i: Index) -> Scalar:
            return te_rounded(a[i], [f[i[0], column] for column in range(3)], storing)

        return te.compute(shape, at, name="rounded")

    return emitter.call("hybrid_round", compute, [x, held])


def lower_factors(emitter: Emitter, x: Value, storing: Storing) -> Value:
    """Emit the float32 factors for each part of `x`, [parts, 3]: scale, multiplier, zero point."""
    shape = shape_of(x)
    parts = 1 if storing is Storing.LINEAR else shape[0]

    def compute(a: Tensor) -> Tensor:
        def extreme(reduce: Callable[..., Scalar], name: str) -> Tensor:
            axes = [te.reduce_axis((0, extent)) for extent in (shape[1:] if parts > 1 else shape)]
            own = slice(0, 1) if parts > 1 else slice(0)
            return te.compute((parts,), lambda n: reduce(a[(*(n,)[own], *axes)], axis=axes), name=name)

        low, high = extreme(te.min, "low"), extreme(te.max, "high")

        def at(n: Index, column: Index) -> Scalar:
            scale, inverse, zero = factors(low[n], high[n], storing)
            chosen = tirx.if_then_else(column == INVERSE, inverse, zero)
            return tirx.if_then_else(column == SCALE, scale, chosen)

        return te.compute((parts, 3), at, name="factors")

    return emitter.call("hybrid_factors", compute, [x], ignores_nan=True, storing=storing.value)


def te_rounded(x: Scalar, factors: Sequence[Scalar], storing: Storing) -> Scalar:
    """Return the real number behind an element's stored integer; `factors` are its part's."""
    scale, inverse, zero = factors
    return (stored(x, inverse, zero, storing).astype("float32") - zero) * scale


_UNBOUNDED = -inf, inf


def te_bounded(value: Scalar, bounds: tuple[float, float]) -> Scalar:
    """Bound a float; infinite bounds are none."""
    low, high = bounds
    value = tirx.min(value, f32(high)) if isfinite(high) else value
    return tirx.max(value, f32(low)) if isfinite(low) else value


def lower_dense(emitter: Emitter, x: Stored, weights: HybridWeights, bounds: tuple[float, float] = _UNBOUNDED) -> Value:
    """Emits the products of rows, `x` int8 [rows, depth], by weights [units, depth]: float32 [rows, units], within `bounds`."""
    (rows, depth), units = shape_of(x.values), len(weights.data)
    given = weights.checked(depth)

    def compute(a: Tensor, f: Tensor, w: Tensor, s: Tensor, b: Tensor) -> Tensor:
        rc = te.reduce_axis((0, depth), "rc")

        def product(n: Index, u: Index) -> Scalar:
            return te.sum(_centred(a[n, rc], f[x.part(n), ZERO]) * w[u, rc].astype("int32"), axis=[rc])

        acc = te.compute((rows, units), product, name="hybrid_dense_acc")

        def real(n: Index, u: Index) -> Scalar:
            value = acc[n, u].astype("float32") * (f[x.part(n), SCALE] * s[_channel(u, given)]) + b[u]
            return te_bounded(value, bounds)

        return te.compute((rows, units), real, name="hybrid_dense")

    operands = [x.values, x.factors, given.data, given.scales, given.bias]
    return emitter.call("hybrid_dense", compute, operands, input_zero_point=x.zero_point, **_bounds(bounds))


def _bounds(bounds: tuple[float, float]) -> dict[str, tuple[float, float]]:
    return {} if bounds == _UNBOUNDED else {"bounds": bounds}


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a convolution: rows, then columns."""

    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]  # top, left, bottom, right


def lower_conv(
    emitter: Emitter,
    x: Stored,
    weights: HybridWeights,
    window: Window,
    depthwise: bool,
    bounds: tuple[float, float] = _UNBOUNDED,
) -> Value:
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
    # LiteRT's order of products
    in_turn = given.by_channel and not depthwise and x.storing is not Storing.LINEAR

    def compute(a: Tensor, f: Tensor, k: Tensor, s: Tensor, b: Tensor) -> Tensor:
        padded = _padded(a, f, window.padding, kind, x.part)
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
            if in_turn:
                return te_bounded(total * scale * f[x.part(m), SCALE] + b[c], bounds)
            return te_bounded(total * (f[x.part(m), SCALE] * scale) + b[c], bounds)

        return te.compute(shape, real, name=kind)

    operands = [x.values, x.factors, given.data, given.scales, given.bias]
    return emitter.call(
        kind,
        compute,
        operands,
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilation,
        groups=1 if depthwise else depth // group,
        input_zero_point=x.zero_point,
        scales_in_turn=in_turn,
        **_bounds(bounds),
        layout="NHWC",
    )


def _centred(stored: Scalar, zero: Scalar) -> Scalar:
    return stored.astype("int32") - zero.astype("int32")


def _channel(channel: Index, weights: HybridWeights) -> Index:
    return channel if weights.by_channel else i32(0)


def _padded(
    a: Tensor, f: Tensor, padding: Sequence[int], kind: str, part: Callable[[Index], Index]
) -> Callable[..., Scalar]:
    """Return the elements of `a` minus their zero point, int32, by indices into the padded map."""
    if not any(padding):
        return lambda n, y, x, c: _centred(a[n, y, x, c], f[part(n), ZERO])
    top, left, bottom, right = padding
    n, h, w, depth = (int(d) for d in a.shape)

    def at(m: Index, y: Index, x: Index, c: Index) -> Scalar:
        inside = tirx.all(y >= top, y < top + h, x >= left, x < left + w)
        value = _centred(a[m, y - top, x - left, c], f[part(m), ZERO]).astype("int16")
        return tirx.if_then_else(inside, value, tirx.const(0, "int16"))

    if n == 1:  # no stage of its own: it would take RAM, and would not go row by row
        return lambda m, y, x, c: at(m, y, x, c).astype("int32")
    held = te.compute((n, h + top + bottom, w + left + right, depth), at, name=f"{kind}_pad")
    return lambda m, y, x, c: held[m, y, x, c].astype("int32")
