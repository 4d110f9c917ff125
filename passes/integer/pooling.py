"""Lower average and max pooling, and mean and sum over any axes.

Average: `(S + n/2) / n` for a positive sum S, `(S - n/2) / n` otherwise, in C's division, with n the window's pixels
inside the map; scales are ignored. Max: clamped. Mean: the multiplier is divided by the count, at the highest precision
within 64 bits. Averages unknown to the reference (different input and output scales, or padding counted in n) are
rescaled too, by one multiplier per n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from tvm_cascade.passes.integer.channel_scaling import rescaled_channel
from tvm_cascade.passes.integer.convolution import te_pad2d
from tvm_cascade.passes.integer.expressions import shape_of
from tvm_cascade.passes.integer.fixed_point import (
    INT32_MAX,
    i32,
    quantize_multiplier,
)
from tvm_cascade.passes.integer.task import STORED, Output, Task, bounded_multiplier, lowers
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx
from tvm_cascade.program.operator import Operator, Quantized
from tvm_cascade.program.quant import NotLowered
from tvm_cascade.schedules.kernels.spec import HALF_UP, ONCE

_NONE = (0, 0, 0, 0)
_HEAD_ROOM = 8  # left shift of an average's sum, so that the first of MBQM's two roundings does not change the result
_OUTSIDE = "an average with a window outside of its map"


@lowers("max_pool2d", results=STORED)
def lower_max_pool2d(task: Task) -> Value:
    """Lower a max pool of stored values; padding counts as the least value."""
    out = task.output
    (kh, kw), (sy, sx), (dy, dx), padding = _window(task)

    def compute(a: Tensor) -> Tensor:
        padded = te_pad2d(a, padding, np.iinfo(out.dtype).min, "max_pool2d_pad")
        ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")
        acc = te.compute(
            out.shape,
            lambda n, y, xx, c: te.max(padded[n, y * sy + ry * dy, xx * sx + rx * dx, c], axis=[ry, rx]),
            name="max_pool2d_acc",
        )
        return te.compute(out.shape, lambda *i: out.clamped(acc[i].astype("int32")), name="max_pool2d")

    return task.emitter.call("max_pool2d", compute, [task.source(0)], **_attributes(task, padding))


@lowers("avg_pool2d")
def lower_average_island(task: Task) -> Value:
    """Average pooling of real numbers: the reference's form if the quantizations are equal."""
    x = task.operator.quantized(0)
    out, padded = task.output, any(_declared_padding(task.operator)) and bool(task.attributes["count_include_pad"])
    if x.step == out.scale and x.zero_point == out.zero_point and not out.once and not padded:
        return _average(task, x.source)
    return _scaled_average(task, x)


@lowers("stored_average", results=STORED)
def lower_average_pool2d(task: Task) -> Value:
    """Lower average pooling of stored values."""
    return _average(task, task.source(0))


def _average(task: Task, source: Value) -> Value:
    out = task.output
    (kh, kw), (sy, sx), dilation, padding = _window(task)
    if dilation != (1, 1):
        raise NotLowered("a dilated average")
    _, height, width, _ = shape_of(source)
    top, left = padding[:2]
    ends = [int(inside(i32(y), sy, top, kh, 0, height)) for y in (0, out.shape[1] - 1)]
    ends += [int(inside(i32(x), sx, left, kw, 0, width)) for x in (0, out.shape[2] - 1)]
    if min(ends) < 1:
        raise NotLowered(_OUTSIDE)

    def compute(a: Tensor) -> Tensor:
        acc = _window_sums(task, a)

        def finish(n: Index, y: Index, xx: Index, c: Index) -> Scalar:
            rows = inside(y, sy, top, kh, 0, height) if padding[0] or padding[2] else i32(kh)
            columns = inside(xx, sx, left, kw, 0, width) if padding[1] or padding[3] else i32(kw)
            return te_average(out, acc[n, y, xx, c], rows * columns)

        return te.compute(out.shape, finish, name="avg_pool2d")

    rounding = {"rounding": HALF_UP} if out.offset else {}
    return task.emitter.call("avg_pool2d", compute, [source], **_attributes(task, padding), **rounding)


def te_average(out: Output, total: Scalar, count: Scalar) -> Scalar:
    """Return the stored average for `count` stored values with the sum `total`."""
    half = tirx.truncdiv(count, i32(2))
    if out.offset:  # the reference rounds the sum of the file's values, which is not negative
        return out.clamped(tirx.truncdiv(total + count * i32(out.offset) + half, count) - i32(out.offset))
    return out.clamped(tirx.truncdiv(total + tirx.Select(total > i32(0), half, i32(0) - half), count))


def _window_sums(task: Task, a: Tensor) -> Tensor:
    """Sum the stored values in every window, int32; padding counts as 0."""
    (kh, kw), (sy, sx), _, padding = _window(task)
    padded = te_pad2d(a, padding, 0, "avg_pool2d_pad")
    ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")
    return te.compute(
        task.output.shape,
        lambda n, y, xx, c: te.sum(padded[n, y * sy + ry, xx * sx + rx, c].astype("int32"), axis=[ry, rx]),
        name="avg_pool2d_acc",
    )


def _scaled_average(task: Task, x: Quantized) -> Value:
    """Compute `MBQM` of `sum (x - z)` by `s / (s_out n)`, n the window's pixels inside the map or, with
    `count_include_pad`, inside the padded map. For several n, tables hold each multiplier and shift.
    """
    out = task.output
    (kh, kw), (sy, sx), dilation, padding = _window(task)
    if dilation != (1, 1) or x.constant is not None:
        raise NotLowered("a dilated average, or one of a constant")
    bound = kh * kw * x.span
    if bound > INT32_MAX:
        raise NotLowered("an average whose sum exceeds 32 bits")
    head_room = _HEAD_ROOM if bound << _HEAD_ROOM <= INT32_MAX >> 1 else 0
    bound <<= head_room
    _, height, width, _ = x.shape
    declared = _declared_padding(task.operator) if bool(task.attributes["count_include_pad"]) else _NONE

    def rows(y: Index, counted: tuple[int, int, int, int]) -> Scalar:
        return inside(y, sy, padding[0], kh, -counted[0], height + counted[2])

    def columns(xx: Index, counted: tuple[int, int, int, int]) -> Scalar:
        return inside(xx, sx, padding[1], kw, -counted[1], width + counted[3])

    counts = {
        int(rows(i32(y), declared)) * int(columns(i32(xx), declared))
        for y in range(out.shape[1])
        for xx in range(out.shape[2])
    }
    if min(counts) < 1:
        raise NotLowered(_OUTSIDE)
    ratio = np.float64(x.step) / np.float64(out.scale) / (1 << head_room)
    pairs = {n: bounded_multiplier(ratio / n) for n in sorted(counts)}
    tables = _multiplier_tables(pairs)
    taken = np.array([m for m, _ in pairs.values()]), np.array([s for _, s in pairs.values()])

    def compute(a: Tensor, *given: Tensor) -> Tensor:
        acc = _window_sums(task, a)

        def finish(n: Index, y: Index, xx: Index, c: Index) -> Scalar:
            taps = rows(y, _NONE) * columns(xx, _NONE) if any(padding) else i32(kh * kw)
            centred = (acc[n, y, xx, c] - taps * i32(x.zero_point)) * i32(1 << head_room)
            if not given:
                return out.stored(out.rescaled(centred, *next(iter(pairs.values())), bound))
            at = rows(y, declared) * columns(xx, declared)
            return out.stored(rescaled_channel(out, centred, given[0][at], given[1][at], taken, bound))

        return te.compute(out.shape, finish, name="avg_pool2d")

    (m, s), single = next(iter(pairs.values())), len(pairs) == 1
    return task.emitter.call(
        "scaled_avg_pool2d",
        compute,
        [x.source, *(() if single else tables)],
        input_zero_point=x.zero_point,
        output_zero_point=out.zero_point,
        head_room=head_room,
        **({"counted": declared} if any(declared) else {}),
        **({"rounding": ONCE} if out.once else {}),
        **_attributes(task, padding),
        **({"multiplier": m, "shift": s} if single else {}),
    )


def _multiplier_tables(pairs: Mapping[int, tuple[int, int]]) -> np.ndarray:
    """Return multipliers and shifts, int32 [2, largest count + 1], by an average's pixel count."""
    tables = np.zeros((2, max(pairs) + 1), "int32")
    for count, pair in pairs.items():
        tables[:, count] = pair
    return tables


@lowers("mean", "sum")
def lower_sum(task: Task) -> Value:
    """Lower a mean or a sum. Mean: the multiplier, shifted up as far as possible, is divided by the count. Sum: the
    reference's uint8 form. (The reference reads int8 and int16 inputs as unsigned bytes; this does not.)
    """
    found, kind = rescaled_sum(task), task.operator.kind

    def compute(a: Tensor) -> Tensor:
        acc = te_reduced(task, a, te.sum, lambda element: element.astype("int32"), f"{kind}_acc")
        return te.compute(task.output.shape, lambda *index: found.stored(acc[index]), name=kind)

    return task.emitter.call(
        kind,
        compute,
        [found.x.source],
        axes=tuple(reduced_axes(task.operator)),
        input_zero_point=found.x.zero_point,
        multiplier=found.multiplier,
        shift=found.shift,
        **task.output.described,
    )


@dataclass(frozen=True, slots=True)
class RescaledSum:
    """The rescaling of an int32 sum over `count` stored elements, for a mean or a sum."""

    x: Quantized
    output: Output
    count: int
    multiplier: int
    shift: int

    def stored(self, total: Scalar) -> Scalar:
        """Return the stored output for a sum."""
        bound = self.count * self.x.span
        centred = total - i32(self.x.zero_point * self.count)
        return self.output.stored(self.output.rescaled(centred, self.multiplier, self.shift, bound))


def rescaled_sum(task: Task) -> RescaledSum:
    """Return the arithmetic for a mean or a sum. Raises `NotLowered` beyond 32 bits."""
    x, kind = task.operator.quantized(0), task.operator.kind
    count = prod(x.shape[a] for a in reduced_axes(task.operator))
    ratio, once = np.float64(x.step) / np.float64(task.output.scale), task.output.once
    m, s = quantize_multiplier(float(ratio / count if once and kind == "mean" else ratio))
    if kind == "mean" and not once:
        bits = min(count.bit_length() - 1, 32, 31 + s)
        m, s = (m << bits) // count, s - bits
    if s > 30 or count * x.span > INT32_MAX:
        raise NotLowered(f"a {kind} whose sum or multiplier exceeds 32 bits")
    return RescaledSum(x, task.output, count, m, s)


def reduced_axes(operator: Operator) -> list[int]:
    """Return the reduced axes, ascending."""
    rank, given = len(operator.quantized(0).shape), operator.attributes["axis"]
    return sorted({a % rank for a in given} if given is not None else range(rank))


def te_reduced(
    task: Task, a: Tensor, reduce: Callable[..., Scalar], element: Callable[[Scalar], Scalar], name: str
) -> Tensor:
    """Add a TE stage with the output's shape: `reduce` over `element(a[...])` along the task's reduced axes."""
    axes, rank = reduced_axes(task.operator), len(a.shape)
    keepdims = bool(task.attributes["keepdims"])
    reduced = {axis: te.reduce_axis((0, int(a.shape[axis])), f"r{axis}") for axis in axes}

    def at(*index: Index) -> Scalar:
        own = iter(index)
        left = list(index) if keepdims else [0 if axis in axes else next(own) for axis in range(rank)]
        indices = tuple(reduced.get(axis, left[axis]) for axis in range(rank))
        return reduce(element(a[indices]), axis=list(reduced.values()))

    return te.compute(task.output.shape, at, name=name)


def inside(y: Index, stride: int, before: int, kernel: int, low: int, high: int) -> Scalar:
    """Count the input rows in `[low, high)` under output row `y`'s window."""
    first = y * stride - before
    return tirx.min(first + kernel, i32(high)) - tirx.max(first, i32(low))


def _window(
    task: Task,
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int, int, int]]:
    """Return kernel, strides, dilation and padding (top, left, bottom, right), enlarged to the windows' reach in ceil
    mode.
    """
    attrs = task.attributes
    if attrs["layout"] != "NHWC":
        raise NotLowered(f"a pool in the layout {attrs['layout']}")
    (kh, kw), (sy, sx), (dy, dx) = attrs["pool_size"], attrs["strides"], attrs["dilation"]
    top, left, bottom, right = _declared_padding(task.operator)
    _, height, width, _ = task.operator.value(0).shape
    _, rows, columns, _ = task.output.shape
    bottom = max(bottom, (rows - 1) * sy + (kh - 1) * dy + 1 - height - top)
    right = max(right, (columns - 1) * sx + (kw - 1) * dx + 1 - width - left)
    return (kh, kw), (sy, sx), (dy, dx), (top, left, bottom, right)


def _declared_padding(pool: Operator) -> tuple[int, int, int, int]:
    """Return the padding in the pool's attributes: top, left, bottom, right."""
    top, left, *rest = pool.attributes["padding"]
    bottom, right = rest or (top, left)
    return top, left, bottom, right


def _attributes(task: Task, padding: tuple[int, ...]) -> dict[str, object]:
    window = {k: task.attributes[k] for k in ("pool_size", "strides", "dilation")}
    return {**window, "padding": padding, "clamp": task.output.clamp, "layout": "NHWC"}
