"""conv2d_transpose, as a convolution of stride 1 over an input spread apart.

The padded stage holds the input with `stride - 1` rows and columns of its zero point between neighbours, which
contribute nothing; the weights are flipped when the layer is compiled, and spread likewise where it is dilated.
Multipliers and rounding are the convolution's.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.passes.integer.channel_scaling import channel_bias
from tvm_cascade.passes.integer.convolution import Sums, scaling_of
from tvm_cascade.passes.integer.expressions import NotLowered
from tvm_cascade.passes.integer.island import FLOAT, ISLANDS, Island
from tvm_cascade.passes.integer.untyped import Call, Index, Scalar, Tensor, Value, relax, te, tirx


@ISLANDS.lowers("nn.conv2d_transpose")
def lower_conv2d_transpose(island: Island) -> Value:
    """Transposed convolution without bias."""
    return lower_biased(island, island.core, None)


def lower_biased(island: Island, core: Call, bias: np.ndarray | None) -> Value:
    """Transposed convolution `core`, plus a constant bias of stored int32 where there is one."""
    attrs, out, groups = core.attrs, island.output, int(core.attrs.groups)
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NHWC", "IOHW"):
        raise NotLowered(f"the layout {attrs.data_layout}/{attrs.kernel_layout}")
    x, kernel = island.reader.dequantized(core.args[0]), island.reader.dequantized(core.args[1])
    if x is None or x.constant is not None or kernel is None or kernel.constant is None:
        raise NotLowered("its input is not dequantized from integers, or its weights are not constant")
    axis = int(island.reader.define(core.args[1]).attrs.axis)
    if kernel.scale.size > 1 and (axis % 4 != 1 or groups > 1):
        raise NotLowered("weights without one scale an output channel")
    flipped = _flipped(kernel.constant, groups, [int(d) for d in attrs.dilation], kernel.zero_point)
    kh, kw, _, channels = flipped.shape
    scaling = scaling_of(island, x, kernel, flipped, channel_bias(bias, channels), depthwise=False)
    strides, padding = [int(s) for s in attrs.strides], [int(p) for p in attrs.padding]
    top, left = kh - 1 - padding[0], kw - 1 - padding[1]
    extents = out.shape[1] + kh - 1, out.shape[2] + kw - 1
    sums = Sums("conv2d_transpose", x, kernel, scaling, groups)

    def compute(a: Tensor, *constants: Tensor) -> Tensor:
        return sums.stored(_te_spread(a, strides, (top, left), extents, x.zero_point), *constants)

    return island.emitter.call(
        "conv2d_transpose",
        compute,
        [x.value, flipped, *scaling.constants],
        strides=tuple(strides),
        padding=tuple(padding),
        groups=groups,
        input_zero_point=x.zero_point,
        weight_zero_point=kernel.zero_point,
        **out.described,
        layout="NHWC",
        kernel_layout="HWIO, flipped",
    )


@FLOAT.lowers("nn.conv2d_transpose")
def lower_float(island: Island) -> Value | None:
    """What stays float, in NCHW: Relax has no legal form of channels that are last."""
    core, bb = island.core, island.emitter.builder
    attrs = core.attrs
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NHWC", "IOHW"):
        return None
    planes = bb.emit(relax.op.permute_dims(island.emitter.new(core.args[0]), [0, 3, 1, 2]))
    result = relax.op.nn.conv2d_transpose(
        planes,
        island.emitter.new(core.args[1]),
        **{k: [int(v) for v in attrs[k]] for k in ("strides", "padding", "output_padding", "dilation")},
        groups=int(attrs.groups),
        data_layout="NCHW",
        kernel_layout="IOHW",
    )
    return bb.emit(relax.op.permute_dims(bb.emit(result), [0, 2, 3, 1]), name_hint=island.emitter.name)


def _flipped(weights: np.ndarray, groups: int, dilation: list[int], zero_point: int) -> np.ndarray:
    """`[in, out / groups, kh, kw]` as `[kh, kw, in / groups, out]` back to front, dilated by taps of zero."""
    depth, group, *extents = weights.shape
    spread: np.ndarray = np.full(
        (depth, group, *((k - 1) * d + 1 for k, d in zip(extents, dilation, strict=True))), zero_point
    )
    spread[:, :, :: dilation[0], :: dilation[1]] = weights[:, :, ::-1, ::-1]
    rows, columns = spread.shape[2], spread.shape[3]
    parts = spread.reshape(groups, depth // groups, group, rows, columns).transpose(3, 4, 1, 0, 2)
    return np.ascontiguousarray(parts.reshape(rows, columns, depth // groups, -1).astype(weights.dtype))


def _te_spread(a: Tensor, strides: list[int], before: tuple[int, int], extents: tuple[int, int], value: int) -> Tensor:
    """Row i of `a` at row `before + i * stride`, `value` elsewhere."""
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
