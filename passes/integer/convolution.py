"""conv2d, in groups too, and depthwise_conv2d.

`acc = sum (x - xz)(w - wz) + bias`, padding contributes nothing, then MBQM by channel. The padded stage holds the
input's zero point, so that a scheduler may skip it: the update with it leaves the accumulator as it is. Multipliers:
int8 in double, `QM(D(sx) D(sw) / D(so))`; uint8 with the product in float32, as the reference prepares them. The
bias's own scale is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_cascade.passes.integer.expressions import NotLowered, name_of, shape_of
from tvm_cascade.passes.integer.fixed_point import (
    INT32_MAX,
    i32,
    once_rounded,
    quantize_multipliers,
    te_clamp,
    te_rescale_channel,
    te_rescale_once,
)
from tvm_cascade.passes.integer.island import Island, Quantized, Reader
from tvm_cascade.passes.integer.registry import ISLANDS
from tvm_cascade.passes.integer.untyped import Call, Index, Tensor, Value, te, tirx
from tvm_cascade.schedules.kernels.spec import Attributes


@dataclass(frozen=True, slots=True)
class _Geometry:
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]  # top, left, bottom, right
    dilation: tuple[int, int]
    height: int  # of the output
    width: int


@ISLANDS.lowers("nn.conv2d")
def lower_conv2d(island: Island) -> Value:
    """Convolution without bias."""
    return _lower(island, island.core, None)


def lower_biased(island: Island, core: Call, bias: np.ndarray) -> Value:
    """Convolution `core` plus a constant bias of stored int32."""
    return _lower(island, core, bias)


def _lower(island: Island, core: Call, bias: np.ndarray | None) -> Value:
    attrs = core.attrs
    if str(attrs.data_layout) != "NHWC" or str(attrs.kernel_layout) not in ("HWIO", "HWOI"):
        raise NotLowered(f"the layout {attrs.data_layout}/{attrs.kernel_layout}")
    x = island.reader.dequantized(core.args[0])
    if x is None or x.constant is not None:
        raise NotLowered("its input is not dequantized from integers")
    groups = int(attrs.groups)
    kernel, data = _kernel(island.reader, core, str(attrs.kernel_layout), groups)
    depthwise = str(attrs.kernel_layout) == "HWOI" or (groups > 1 and data.shape[2] == 1)
    if depthwise:
        data = data.reshape(*data.shape[:2], groups, -1)
    channels = data.shape[2] * data.shape[3] if depthwise else data.shape[3]
    source, padding = fold_pad(island.reader, x, tuple(int(p) for p in attrs.padding))
    geometry = _geometry(core, island.output.shape, padding)
    bias = np.zeros(channels, "int32") if bias is None else bias.reshape(-1).astype("int32")
    multiplier, shift = channel_multipliers(x, kernel, island.output.scale, channels)
    bound = accumulator_bound(data, kernel.zero_point, x, bias, depthwise)
    is_int16 = x.dtype == "int16"
    if is_int16:
        multiplier = once_rounded(multiplier)
        if int(shift.max()) > 14:
            raise NotLowered("scales that the reference's 64-bit rounding cannot shift by")
    compute = _Computation(island, geometry, x.zero_point, kernel.zero_point, shift, bound, depthwise, groups, is_int16)
    return island.emitter.call(
        "depthwise_conv2d" if depthwise else "conv2d",
        compute,
        [source],
        [data, bias, multiplier, shift],
        Attributes(
            strides=geometry.strides,
            padding=geometry.padding,
            dilation=geometry.dilation,
            groups=groups,
            accumulator=compute.accumulator,
            input_zero_point=x.zero_point,
            weight_zero_point=kernel.zero_point,
            output_zero_point=island.output.zero_point,
            clamp=(island.output.lo, island.output.hi),
            layout="NHWC",
            kernel_layout="HWCM" if depthwise else "HWIO",
        ),
    )


@dataclass(frozen=True, slots=True)
class _Computation:
    """The TE of one convolution: placeholders in, output tensor out."""

    island: Island
    geometry: _Geometry
    input_zero: int
    weight_zero: int
    shifts: np.ndarray
    bound: int  # of the accumulator with its bias
    depthwise: bool
    groups: int
    is_int16: bool  # int16 activations: no zero points, one rounding in 64 bits

    @property
    def accumulator(self) -> str:
        return "int64" if self.bound > INT32_MAX else "int32"

    def __call__(self, x: Tensor, w: Tensor, b: Tensor, m: Tensor, s: Tensor) -> Tensor:
        kind = "depthwise_conv2d" if self.depthwise else "conv2d"
        out = self.island.output
        padded = te_pad2d(x, self.geometry.padding, self.input_zero, f"{kind}_pad")
        acc = self._depthwise(padded, w, kind) if self.depthwise else self._dense(padded, w, kind)

        def finish(n: Index, y: Index, xx: Index, c: Index) -> object:
            if self.is_int16:
                total = acc[n, y, xx, c].astype("int64") + b[c].astype("int64")
                return te_clamp(te_rescale_once(total, m[c], s[c]), out.lo, out.hi, out.dtype)
            scaled = te_rescale_channel(acc[n, y, xx, c] + b[c], m[c], s[c], self.shifts, self.bound)
            return te_clamp(scaled + i32(out.zero_point), out.lo, out.hi, out.dtype)

        return te.compute(out.shape, finish, name=kind)

    def _dense(self, x: Tensor, w: Tensor, kind: str) -> Tensor:
        kh, kw, depth, outputs = (int(d) for d in w.shape)
        ry, rx, rc = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx"), te.reduce_axis((0, depth), "rc")
        at, each = self._at, outputs // self.groups

        def product(n: Index, y: Index, xx: Index, c: Index) -> object:
            channel = rc if self.groups == 1 else tirx.floordiv(c, each) * depth + rc
            value = x[(n, *at(y, xx, ry, rx), channel)].astype("int32") - i32(self.input_zero)
            weight = w[ry, rx, rc, c].astype("int32") - i32(self.weight_zero)
            return te.sum((value * weight).astype(self.accumulator), axis=[ry, rx, rc])

        return te.compute(self.island.output.shape, product, name=f"{kind}_acc")

    def _depthwise(self, x: Tensor, w: Tensor, kind: str) -> Tensor:
        kh, kw, _, times = (int(d) for d in w.shape)
        ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")
        at = self._at

        def product(n: Index, y: Index, xx: Index, c: Index) -> object:
            channel, copy = (c, 0) if times == 1 else (tirx.floordiv(c, times), tirx.floormod(c, times))
            value = x[(n, *at(y, xx, ry, rx), channel)].astype("int32") - i32(self.input_zero)
            weight = w[ry, rx, channel, copy].astype("int32") - i32(self.weight_zero)
            return te.sum((value * weight).astype(self.accumulator), axis=[ry, rx])

        return te.compute(self.island.output.shape, product, name=f"{kind}_acc")

    def _at(self, y: Index, x: Index, ry: Index, rx: Index) -> tuple[object, object]:
        (sy, sx), (dy, dx) = self.geometry.strides, self.geometry.dilation
        return y * sy + ry * dy, x * sx + rx * dx


def te_pad2d(x: Tensor, padding: tuple[int, int, int, int], value: int, name: str) -> Tensor:
    """`x` (NHWC) with rows and columns of `value` around it; `x` itself where there are none."""
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


def fold_pad(reader: Reader, x: Quantized, padding: tuple[int, ...]) -> tuple[Value, tuple[int, int, int, int]]:
    """Source and padding of a convolution whose input may be an explicit pad by its zero point.

    Such a pad contributes nothing to any sum, so it becomes the convolution's own padding.
    """
    top, left, bottom, right = padding if len(padding) == 4 else (*padding, *padding)
    source = x.value
    call = reader.define(source)
    if name_of(call) == "relax.nn.pad" and str(call.attrs.pad_mode) == "constant":
        widths = [int(p) for p in call.attrs.pad_width]
        inner = call.args[0]
        only_rows_and_columns = len(widths) == 8 and not any(widths[:2]) and not any(widths[6:])
        if only_rows_and_columns and min(widths) >= 0 and pad_value(call) == x.zero_point:
            return inner, (top + widths[2], left + widths[4], bottom + widths[3], right + widths[5])
    return source, (top, left, bottom, right)


def pad_value(call: Call) -> int:
    """The stored value that a constant pad fills with."""
    return int(float(call.attrs.pad_value))


def _kernel(reader: Reader, core: Call, layout: str, groups: int) -> tuple[Quantized, np.ndarray]:
    """Weights with their quantization, as [kh, kw, in (of one group), out], HWOI as [kh, kw, channel, multiplier]."""
    expr, shape = reader.define(core.args[1]), shape_of(core.args[1])
    if name_of(expr) == "relax.reshape":
        expr = reader.define(expr.args[0])
    kernel = reader.dequantized(expr)
    if kernel is None or kernel.constant is None:
        raise NotLowered("its weights are not constant integers")
    data = kernel.constant
    if layout == "HWIO":
        return kernel, data.reshape(shape)
    channels = shape[2] * shape[3]
    if channels % groups or shape[3] not in (1, channels // groups):
        raise NotLowered(f"depthwise weights of shape {shape}")
    return kernel, data.reshape(shape[0], shape[1], groups, channels // groups)


def _geometry(core: Call, out: tuple[int, ...], padding: tuple[int, int, int, int]) -> _Geometry:
    attrs = core.attrs
    sy, sx = (int(v) for v in attrs.strides)
    dy, dx = (int(v) for v in attrs.dilation)
    return _Geometry((sy, sx), padding, (dy, dx), out[1], out[2])


def channel_multipliers(x: Quantized, w: Quantized, out: np.float32, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """`QM` of every output channel, as two int32 arrays."""
    scales = np.broadcast_to(w.scale.reshape(-1), channels)
    if w.dtype == "uint8":
        real = (x.step * scales).astype("float64") / np.float64(out)
    else:
        real = np.float64(x.step) * scales.astype("float64") / np.float64(out)
    multiplier, shift = quantize_multipliers(real)
    if shift.max() > 30:
        raise NotLowered(f"the scales multiply to {real.max():g}")
    return multiplier, shift


def accumulator_bound(w: np.ndarray, wz: int, x: Quantized, bias: np.ndarray, depthwise: bool) -> int:
    """Bound on any partial sum of any channel, bias included."""
    weights = np.abs(w.astype("int64") - wz).sum((0, 1) if depthwise else (0, 1, 2)).reshape(-1)
    return int((weights * x.reach + np.abs(bias.astype("int64"))).max())
