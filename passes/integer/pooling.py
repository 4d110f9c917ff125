"""Average and max pooling, and mean over any axes.

Average: `(S + n/2) / n` for a positive sum, `(S - n/2) / n` otherwise, in C's division, n the pixels inside of the
map; no rescale, whatever the scales say. Max: clamped. Mean: the multiplier absorbs the count, with as many bits as
64 allow.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tvm_cascade.passes.integer.convolution import te_pad2d
from tvm_cascade.passes.integer.fixed_point import INT32_MAX, i32, quantize_multiplier, te_clamp, te_rescale
from tvm_cascade.passes.integer.island import (
    DIRECT,
    ISLANDS,
    STORED_TYPES,
    Island,
    NotLowered,
    Quantized,
    dtype_of,
    name_of,
)
from tvm_cascade.passes.integer.untyped import Call, Index, Scalar, Tensor, Value, te, tirx


@DIRECT.lowers("nn.max_pool2d")
def lower_max_pool2d(island: Island) -> Value:
    x = island.core.args[0]
    out = island.output
    (kh, kw), (sy, sx), (dy, dx), padding = _window(island.core)

    def compute(a: Tensor) -> Tensor:
        padded = te_pad2d(a, padding, np.iinfo(out.dtype).min, "max_pool2d_pad")
        ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")
        acc = te.compute(
            out.shape,
            lambda n, y, xx, c: te.max(padded[n, y * sy + ry * dy, xx * sx + rx * dx, c], axis=[ry, rx]),
            name="max_pool2d_acc",
        )
        return te.compute(
            out.shape,
            lambda *i: te_clamp(acc[i].astype("int32"), out.lo, out.hi, out.dtype),
            name="max_pool2d",
        )

    return island.emitter.call("max_pool2d", compute, [x], attrs=_attrs(island, padding))


@ISLANDS.lowers("nn.avg_pool2d")
def lower_average_island(island: Island) -> Value:
    """An average between two tensors of one quantization."""
    x = island.operand(0)
    if x.step != island.output.scale or x.zero_point != island.output.zero_point:
        raise NotLowered("an average pool between unequal scales")
    if bool(island.core.attrs.count_include_pad) and any(_window(island.core)[3]):
        raise NotLowered("an average pool that counts its padding")
    return _average(island, x.value)


def lower_average_pool2d(island: Island) -> Value:
    """`astype int32 -> avg_pool2d -> astype`, of which only the window matters."""
    widened = island.reader.define(island.core.args[0])
    if name_of(widened) != "relax.astype" or dtype_of(widened.args[0]) not in STORED_TYPES:
        raise NotLowered("an average of values that are not stored integers")
    return _average(island, widened.args[0])


def _average(island: Island, source: Value) -> Value:
    out = island.output
    (kh, kw), (sy, sx), dilation, padding = _window(island.core)
    if dilation != (1, 1):
        raise NotLowered("a dilated average")
    _, height, width, _ = (int(d) for d in source.ty.shape.values)
    top, left = padding[:2]

    def compute(a: Tensor) -> Tensor:
        padded = te_pad2d(a, padding, 0, "avg_pool2d_pad")  # 0 adds nothing to a sum of stored values
        ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")
        acc = te.compute(
            out.shape,
            lambda n, y, xx, c: te.sum(padded[n, y * sy + ry, xx * sx + rx, c].astype("int32"), axis=[ry, rx]),
            name="avg_pool2d_acc",
        )

        def finish(n: Index, y: Index, xx: Index, c: Index) -> Scalar:
            rows = _inside(y, sy, top, kh, height) if padding[0] or padding[2] else i32(kh)
            columns = _inside(xx, sx, left, kw, width) if padding[1] or padding[3] else i32(kw)
            count, total = rows * columns, acc[n, y, xx, c]
            half = tirx.truncdiv(count, i32(2))
            average = tirx.truncdiv(total + tirx.Select(total > i32(0), half, i32(0) - half), count)
            return te_clamp(average, out.lo, out.hi, out.dtype)

        return te.compute(out.shape, finish, name="avg_pool2d")

    return island.emitter.call("avg_pool2d", compute, [source], attrs=_attrs(island, padding))


@ISLANDS.lowers("mean")
def lower_mean(island: Island) -> Value:
    """The count divides the multiplier, shifted up by as many bits as leave it in 31."""
    x, axes = island.operand(0), _axes(island)
    count = prod(x.shape[a] for a in axes)
    m, s = quantize_multiplier(float(np.float64(x.step) / np.float64(island.output.scale)))
    bits = min(count.bit_length() - 1, 32, 31 + s)
    return _rescaled_sum(island, "mean", x, axes, (m << bits) // count, s - bits)


@ISLANDS.lowers("sum")
def lower_sum(island: Island) -> Value:
    """As the reference sums uint8. (Its sums of int8 and int16 read their input as unsigned bytes; this one does not.)"""
    x = island.operand(0)
    m, s = quantize_multiplier(float(np.float64(x.step) / np.float64(island.output.scale)))
    return _rescaled_sum(island, "sum", x, _axes(island), m, s)


def _rescaled_sum(island: Island, kind: str, x: Quantized, axes: list[int], m: int, s: int) -> Value:
    out, rank = island.output, len(x.shape)
    count = prod(x.shape[a] for a in axes)
    info = np.iinfo(x.dtype)
    bound = count * (info.max - info.min)
    if s > 30 or bound > INT32_MAX:
        raise NotLowered(f"a {kind} whose sum or multiplier exceeds 32 bits")
    kept = bool(island.core.attrs.keepdims)

    def compute(a: Tensor) -> Tensor:
        reduced = {axis: te.reduce_axis((0, x.shape[axis]), f"r{axis}") for axis in axes}

        def total(*index: Index) -> Scalar:
            left = list(index) if kept else _with_gaps(index, axes, rank)
            at = [reduced.get(axis, left[axis]) for axis in range(rank)]
            return te.sum(a[tuple(at)].astype("int32"), axis=list(reduced.values()))

        acc = te.compute(out.shape, total, name=f"{kind}_acc")

        def finish(*index: Index) -> Scalar:
            scaled = te_rescale(acc[index] - i32(x.zero_point * count), m, s, bound)
            return te_clamp(scaled + i32(out.zero_point), out.lo, out.hi, out.dtype)

        return te.compute(out.shape, finish, name=kind)

    attrs = {
        "axes": axes,
        "input_zero_point": x.zero_point,
        "output_zero_point": out.zero_point,
        "multiplier": m,
        "shift": s,
        "clamp": [out.lo, out.hi],
    }
    return island.emitter.call(kind, compute, [x.value], attrs=attrs)


def _axes(island: Island) -> list[int]:
    """The axes that a reduction reduces, ascending."""
    rank, given = len(island.operand(0).shape), island.core.attrs.axis
    return sorted({int(a) % rank for a in given} if given is not None else range(rank))


def _with_gaps(index: tuple[Index, ...], axes: list[int], rank: int) -> list[Index | int]:
    """The index of an output without its reduced axes, spread over the input's axes."""
    own = iter(index)
    return [0 if axis in axes else next(own) for axis in range(rank)]


def _inside(y: Index, stride: int, before: int, kernel: int, extent: int) -> Scalar:
    """Taps of output row `y` that are not padding."""
    first = y * stride - before
    return tirx.min(first + kernel, i32(extent)) - tirx.max(first, i32(0))


def _window(
    call: Call,
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int, int, int]]:
    attrs = call.attrs
    if str(attrs.layout) != "NHWC" or bool(attrs.ceil_mode):
        raise NotLowered(f"a pool in the layout {attrs.layout}, or with ceil_mode")
    (kh, kw), (sy, sx), (dy, dx) = (tuple(int(v) for v in t) for t in (attrs.pool_size, attrs.strides, attrs.dilation))
    padding = tuple(int(p) for p in attrs.padding)
    top, left, bottom, right = padding if len(padding) == 4 else (*padding, *padding)
    return (kh, kw), (sy, sx), (dy, dx), (top, left, bottom, right)


def _attrs(island: Island, padding: tuple[int, ...]) -> dict[str, object]:
    attrs = island.core.attrs
    return {
        "pool_size": [int(v) for v in attrs.pool_size],
        "strides": [int(v) for v in attrs.strides],
        "dilation": [int(v) for v in attrs.dilation],
        "padding": list(padding),
        "clamp": [island.output.lo, island.output.hi],
        "layout": "NHWC",
    }
