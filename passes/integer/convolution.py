"""Lower conv2d (grouped too), depthwise_conv2d and conv2d_transpose.

`acc = sum (x - xz)(w - wz) + bias`, without contributions from padding, then MBQM per channel. The padded TE stage
holds the input's zero point, so a schedule may skip padded elements. Multipliers follow the reference: for int8 weights
in double, `QM(D(sx) D(sw) / D(so))`, for uint8 with the product in float32. The bias is in sum units
(`channel_scaling.stored_bias`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tvm_cascade.passes.integer.channel_scaling import ChannelScaling, channel_bias
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import shape_of
from tvm_cascade.passes.integer.fixed_point import INT32_MAX
from tvm_cascade.passes.integer.task import Elementwise, Task, as_signed, lowers, weight_type
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, relax, te, tirx, topi
from tvm_cascade.passes.phases import Phases
from tvm_cascade.program.operator import Operator, Quantized, computed, quantized
from tvm_cascade.program.quant import NotLowered


def lower_biased(task: Task, bias: np.ndarray | None) -> Value:
    """Lowers the convolution, plus a constant int32 bias or None."""
    attrs = task.attributes
    kernel, data = as_signed(*kernel_of(task.operator))
    x, groups = task.operator.activation(), attrs["groups"]
    depthwise = attrs["kernel_layout"] == "HWOI" or (groups > 1 and data.shape[2] == 1)
    if depthwise:
        data = data.reshape(*data.shape[:2], groups, -1)
    channels = data.shape[2] * data.shape[3] if depthwise else data.shape[3]
    source, padding = fold_pad(x, attrs["padding"])
    (sy, sx), (dy, dx) = attrs["strides"], attrs["dilation"]
    scaling = scaling_of(task, x, kernel, data, channel_bias(bias, channels), depthwise)
    return _convolved(task, x, source, kernel, data, scaling, depthwise, groups, padding, (dy, dx), (sy, sx))


def _convolved(
    task: Task,
    x: Quantized,
    source: Value,
    kernel: Quantized,
    data: np.ndarray,
    scaling: ChannelScaling,
    depthwise: bool,
    groups: int,
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
) -> Value:
    """Emit a convolution of `source`, the integers of `x`, with the scaling's output; `data` are the weights, [kh, kw, in,
    out], or [kh, kw, channel, multiplier] for a depthwise one.
    """
    kind = "depthwise_conv2d" if depthwise else "conv2d"
    sums = Sums(kind, x, kernel, scaling, groups, strides, dilation)

    def compute(a: Tensor, *constants: Tensor) -> Tensor:
        return sums.stored(te_pad2d(a, padding, x.zero_point, f"{kind}_pad"), *constants)

    return task.emitter.call(
        kind,
        compute,
        [source, data, *scaling.constants],
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=groups,
        accumulator=sums.accumulator,
        input_zero_point=x.zero_point,
        weight_zero_point=kernel.zero_point,
        **weight_type(kernel),
        **scaling.output.described,
        layout="NHWC",
        kernel_layout="HWCM" if depthwise else "HWIO",
    )


@dataclass(frozen=True, slots=True)
class Sums:
    """TE for a convolution on its padded input: sums of products, and the stored output."""

    kind: str
    x: Quantized
    kernel: Quantized
    scaling: ChannelScaling
    groups: int
    strides: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)

    @property
    def accumulator(self) -> str:
        """Return the sums' element type."""
        return "int64" if self.scaling.bound > INT32_MAX else "int32"

    def stored(self, padded: Tensor, w: Tensor, b: Tensor, m: Tensor, s: Tensor) -> Tensor:
        """Return the stored output. Weights `w` are [kh, kw, in / groups, out], or [kh, kw, channel, multiplier] for
        depthwise; `b`, `m` and `s` as in `ChannelScaling.stored`.
        """
        shape, scaling = self.scaling.output.shape, self.scaling
        sums = self._depthwise if self.kind == "depthwise_conv2d" else self._dense
        acc = te.compute(shape, sums(padded, w), name=f"{self.kind}_acc")
        return te.compute(shape, lambda n, y, xx, c: scaling.stored(acc[n, y, xx, c], c, b, m, s), name=self.kind)

    def _dense(self, x: Tensor, w: Tensor) -> Callable[[Index, Index, Index, Index], Scalar]:
        kh, kw, depth, outputs = (int(d) for d in w.shape)
        ry, rx, rc = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx"), te.reduce_axis((0, depth), "rc")
        group = outputs // self.groups  # output channels that share their inputs

        def product(n: Index, y: Index, xx: Index, c: Index) -> Scalar:
            channel = rc if self.groups == 1 else tirx.floordiv(c, group) * depth + rc
            value = self.x.centred(x[(n, *self._at(y, xx, ry, rx), channel)])
            weight = self.kernel.centred(w[ry, rx, rc, c])
            return te.sum((value * weight).astype(self.accumulator), axis=[ry, rx, rc])

        return product

    def _depthwise(self, x: Tensor, w: Tensor) -> Callable[[Index, Index, Index, Index], Scalar]:
        kh, kw, _, times = (int(d) for d in w.shape)
        ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")

        def product(n: Index, y: Index, xx: Index, c: Index) -> Scalar:
            channel, copy = (c, 0) if times == 1 else (tirx.floordiv(c, times), tirx.floormod(c, times))
            value = self.x.centred(x[(n, *self._at(y, xx, ry, rx), channel)])
            weight = self.kernel.centred(w[ry, rx, channel, copy])
            return te.sum((value * weight).astype(self.accumulator), axis=[ry, rx])

        return product

    def _at(self, y: Index, x: Index, ry: Index, rx: Index) -> tuple[Scalar, Scalar]:
        (sy, sx), (dy, dx) = self.strides, self.dilation
        return y * sy + ry * dy, x * sx + rx * dx


def te_pad2d(x: Tensor, padding: tuple[int, int, int, int], value: float, name: str) -> Tensor:
    """Pad `x` (NHWC) with `value` by (top, left, bottom, right); return `x` itself if all are 0."""
    if not any(padding):
        return x
    n, h, w, c = (int(d) for d in x.shape)
    top, left, bottom, right = padding

    def at(b: Index, y: Index, xx: Index, k: Index) -> object:
        inside = [
            *([y >= top] if top else []),
            *([y < top + h] if bottom else []),
            *([xx >= left] if left else []),
            *([xx < left + w] if right else []),
        ]
        condition = tirx.all(*inside)
        return tirx.if_then_else(condition, x[b, y - top, xx - left, k], tirx.const(value, str(x.dtype)))

    return te.compute((n, h + top + bottom, w + left + right, c), at, name=name)


def fold_pad(x: Quantized, padding: tuple[int, ...]) -> tuple[Value, tuple[int, int, int, int]]:
    """Return input and padding of a convolution, with an explicit pad by the zero point before it folded into the padding.

    Such a pad contributes nothing to any sum.
    """
    top, left, bottom, right = padding if len(padding) == 4 else (*padding, *padding)
    pad = x.producer
    if pad is not None and (pad.kind, pad.quant) == ("pad", None) and pad.attributes["pad_mode"] == "constant":
        widths = pad.attributes["pad_width"]
        only_rows_and_columns = len(widths) == 8 and not any(widths[:2]) and not any(widths[6:])
        if only_rows_and_columns and min(widths) >= 0 and pad_value(pad) - x.offset == x.zero_point:
            inner = pad.value(0).source
            return inner, (top + widths[2], left + widths[4], bottom + widths[3], right + widths[5])
    return x.source, (top, left, bottom, right)


def pad_value(pad: Operator) -> int:
    """Return the file's value with which a constant pad fills."""
    return int(float(pad.attributes["pad_value"]))


def kernel_of(operator: Operator) -> tuple[Quantized, np.ndarray]:
    """Return the weights' quantization and data: [kh, kw, in / groups, out], or [kh, kw, channel, multiplier] for HWOI.

    Raises `NotLowered` for other layouts, and unless constants are dequantized by one scale, or one per output channel.
    """
    attrs = operator.attributes
    layout, groups, shape = attrs["kernel_layout"], attrs["groups"], operator.value(1).shape
    if attrs["data_layout"] != "NHWC" or layout not in ("HWIO", "HWOI"):
        raise NotLowered(f"the layout {attrs['data_layout']}/{layout}")
    view = computed(operator.operands[1], "reshape")
    kernel = quantized(operator.operands[1] if view is None else view.operands[0])
    data = None if kernel is None else kernel.constant
    if kernel is None or data is None:
        raise NotLowered("its weights are not constant integers")
    if layout == "HWOI":
        channels = shape[2] * shape[3]
        if channels % groups or shape[3] not in (1, channels // groups):
            raise NotLowered(f"depthwise weights of shape {shape}")
        shape = (shape[0], shape[1], groups, channels // groups)
    if not _scaled_by_outputs(kernel, shape, 3 if layout == "HWIO" else 2):
        raise NotLowered("weights without one scale an output channel")
    return kernel, data.reshape(shape)


def _scaled_by_outputs(kernel: Quantized, shape: Sequence[int], first: int) -> bool:
    """Return True if stored weights have a single scale per output channel, axes `first` and on of `shape`."""
    count, outputs = kernel.scale.size, tuple(shape[first:])
    if count == 1:
        return True
    along, axis = [1] * len(kernel.shape), kernel.quant.axis
    along[axis] = kernel.shape[axis]
    if kernel.shape[axis] != count or prod(outputs) != count:
        return False
    scales = np.broadcast_to(np.arange(count).reshape(along), kernel.shape).reshape(shape)  # which one each weight has
    return bool((scales == np.arange(count).reshape(outputs)).all())


def scaling_of(
    task: Task, x: Quantized, w: Quantized, data: np.ndarray, bias: np.ndarray, depthwise: bool
) -> ChannelScaling:
    """Return the `ChannelScaling` for a convolution with weights `data`, [kh, kw, in, out], or [kh, kw, channel,
    multiplier].
    """
    scales = np.broadcast_to(w.scale.reshape(-1), bias.size)
    if w.declared == "uint8" and not task.output.once:
        real = (x.step * scales).astype("float64") / np.float64(task.output.scale)
    else:
        real = np.float64(x.step) * scales.astype("float64") / np.float64(task.output.scale)
    weights = np.abs(data.astype("int32") - w.zero_point).sum((0, 1) if depthwise else (0, 1, 2), "int64").reshape(-1)
    bound = int((weights * x.reach + np.abs(bias.astype("int64"))).max())
    return ChannelScaling.of(task.output, real, bias, bound, x.dtype == "int16")


def lower_biased_transpose(task: Task, bias: np.ndarray | None) -> Value:
    """Lower the transposed convolution, plus a constant int32 bias or None.

    It becomes a convolution for every place within a stride (`passes.phases`). If the task says so, it becomes a stride-1
    convolution over a dilated input: the padded stage puts `stride - 1` zero-point rows and columns between neighbours.
    Weights are flipped and dilated at compile time. Multipliers and rounding are the convolution's.
    """
    attrs, out, groups = task.attributes, task.output, task.attributes["groups"]
    if (attrs["data_layout"], attrs["kernel_layout"]) != ("NHWC", "IOHW"):
        raise NotLowered(f"the layout {attrs['data_layout']}/{attrs['kernel_layout']}")
    x, kernel = (quantized(o) for o in task.operator.operands[:2])
    data = None if kernel is None else kernel.constant
    if x is None or x.is_constant or kernel is None or data is None:
        raise NotLowered("its input is not dequantized from integers, or its weights are not constant")
    if kernel.scale.size > 1 and (kernel.quant.axis % 4 != 1 or groups > 1):
        raise NotLowered("weights without one scale an output channel")
    kernel, data = as_signed(kernel, data)
    flipped = _flipped(data, groups, attrs["dilation"], kernel.zero_point)
    kh, kw, _, channels = flipped.shape
    scaling = scaling_of(task, x, kernel, flipped, channel_bias(bias, channels), depthwise=False)
    strides, padding = attrs["strides"], attrs["padding"]
    top, left = kh - 1 - padding[0], kw - 1 - padding[1]
    extents = out.shape[1] + kh - 1, out.shape[2] + kw - 1
    if not task.spread:
        sizes = x.shape[1:3], out.shape[1:3]
        phases = Phases.of(data, *sizes, strides, padding, attrs["dilation"], groups, kernel.zero_point)
        return _lower_phases(task, x, kernel, scaling, phases)
    sums = Sums("conv2d_transpose", x, kernel, scaling, groups)

    def compute(a: Tensor, *constants: Tensor) -> Tensor:
        return sums.stored(_te_spread(a, strides, (top, left), extents, x.zero_point), *constants)

    return task.emitter.call(
        "conv2d_transpose",
        compute,
        [x.source, flipped, *scaling.constants],
        strides=strides,
        padding=padding,
        groups=groups,
        input_zero_point=x.zero_point,
        weight_zero_point=kernel.zero_point,
        **out.described,
        layout="NHWC",
        kernel_layout="HWIO, flipped",
    )


def _lower_phases(task: Task, x: Quantized, kernel: Quantized, scaling: ChannelScaling, phases: Phases) -> Value:
    """Emit a convolution for every place within a stride, and concats and views that put the places side by side."""
    out, (sy, sx), (height, width) = task.output, phases.strides, phases.counts
    n, _, _, channels = out.shape
    part = replace(scaling, output=replace(out, shape=(n, height, width, channels)))
    depthwise = phases.groups > 1 and phases.groups == x.shape[3]

    def of_phase(place: tuple[int, int]) -> Value:
        data, sides = phases.weights(place), phases.padding(place)
        data = data.reshape(*data.shape[:2], phases.groups, -1) if depthwise else data
        source = _cropped(task.emitter, x.source, [max(-side, 0) for side in sides])
        top, left, bottom, right = (max(side, 0) for side in sides)
        padding = (top, left, bottom, right)
        return _convolved(task, x, source, kernel, data, part, depthwise, phases.groups, padding, phases.dilation)

    def beside(parts: list[Value], shape: list[int]) -> Value:
        joined = (
            parts[0]
            if len(parts) == 1
            else task.emitter.call("concatenate", lambda *given: topi.concatenate(given, 3), parts, axis=3)
        )
        return task.emitter.emit(relax.op.reshape(joined, shape))

    rows = [beside([of_phase((j, i)) for i in range(sx)], [n, height, 1, width * sx * channels]) for j in range(sy)]
    whole = beside(rows, [n, height * sy, width * sx, channels])
    behind = height * sy - out.shape[1], width * sx - out.shape[2]
    return _cropped(task.emitter, whole, (0, 0, *behind))


def _cropped(emitter: Emitter, source: Value, sides: Sequence[int]) -> Value:
    """Return a tensor in NHWC without rows and columns at its top, left, bottom and right."""
    if not any(sides):
        return source
    top, left, bottom, right = sides
    n, h, w, channels = shape_of(emitter.new(source))
    shape = (n, h - top - bottom, w - left - right, channels)
    moved = Elementwise(shape, lambda i, a: a[i[0], i[1] + top, i[2] + left, i[3]], "strided_slice")
    return emitter.call("strided_slice", moved, [source], begin=(0, top, left, 0), strides=(1, 1, 1, 1))


@lowers("conv2d_transpose", results="float32")
def lower_float_transpose(task: Task) -> Value | None:
    """Lower a float transposed convolution, from NHWC to NCHW because Relax cannot legalize NHWC."""
    attrs, emitter = task.attributes, task.emitter
    if (attrs["data_layout"], attrs["kernel_layout"]) != ("NHWC", "IOHW"):
        return None
    planes = emitter.emit(relax.op.permute_dims(emitter.new(task.source(0)), [0, 3, 1, 2]), "")
    result = relax.op.nn.conv2d_transpose(
        planes,
        emitter.new(task.source(1)),
        **{k: list(attrs[k]) for k in ("strides", "padding", "output_padding", "dilation")},
        groups=attrs["groups"],
        data_layout="NCHW",
        kernel_layout="IOHW",
    )
    return emitter.emit(relax.op.permute_dims(emitter.emit(result, ""), [0, 2, 3, 1]))


def _flipped(weights: np.ndarray, groups: int, dilation: Sequence[int], zero_point: int) -> np.ndarray:
    """Return weights [in, out / groups, kh, kw] as [kh, kw, in / groups, out], flipped along kh and kw, dilated with
    zero points.
    """
    depth, group, *extents = weights.shape
    spread: np.ndarray = np.full(
        (depth, group, *((k - 1) * d + 1 for k, d in zip(extents, dilation, strict=True))), zero_point
    )
    spread[:, :, :: dilation[0], :: dilation[1]] = weights[:, :, ::-1, ::-1]
    rows, columns = spread.shape[2], spread.shape[3]
    parts = spread.reshape(groups, depth // groups, group, rows, columns).transpose(3, 4, 1, 0, 2)
    return np.ascontiguousarray(parts.reshape(rows, columns, depth // groups, -1).astype(weights.dtype))


def _te_spread(
    a: Tensor, strides: Sequence[int], before: tuple[int, int], extents: tuple[int, int], value: int
) -> Tensor:
    """Dilate `a` (NHWC) to `extents`: row i of `a` at row `before + i * stride`, columns alike, `value` elsewhere."""
    n, h, w, c = (int(d) for d in a.shape)
    (sy, sx), (top, left) = strides, before

    def at(b: Index, y: Index, x: Index, k: Index) -> Scalar:
        i, j = y - top, x - left
        inside = tirx.all(i >= 0, i < h * sy, j >= 0, j < w * sx)
        if sy > 1:
            inside = tirx.all(inside, (i % sy).equal(0))
        if sx > 1:
            inside = tirx.all(inside, (j % sx).equal(0))
        return tirx.if_then_else(inside, a[b, i // sy, j // sx, k], tirx.const(value, str(a.dtype)))

    return te.compute((n, *extents, c), at, name="conv2d_transpose_pad")
