"""Convolutions. Weights are (out, in / groups, height, width), whatever the layout of the activations.

Attributes: `layout` (NCHW or NHWC), `strides`, `dilation` (rows, columns), `padding` (top, left, bottom, right),
`groups`, `act` (an activation's kind, or ''). Operands: activations, weights, and optionally a bias.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tvm_cascade.errors import GraphError
from tvm_cascade.graph import Window
from tvm_cascade.operators.elementwise import activate
from tvm_cascade.operators.record import Array, Attributes, Family, Operator, TensorType, Types, steps_of_products
from tvm_cascade.operators.shapes import from_image, image, window_count

ACCUMULATED = {"int8": "int32", "uint8": "int32"}  # operand type -> accumulator type, where they differ


def infer(read: Types, attrs: Attributes) -> Types:
    """Infer the type of the convolution's output. Raises `GraphError` if channels and weights do not fit."""
    layout, groups = attrs["layout"], attrs["groups"]
    n, c, h, w = image(read[0].shape, layout)
    out, depth, kh, kw = read[1].shape
    if depth * groups != c or out % groups:
        raise GraphError(f"convolution of {c} channels by weights {read[1].shape} in {groups} groups")
    (sh, sw), (dh, dw), (top, left, bottom, right) = attrs["strides"], attrs["dilation"], attrs["padding"]
    oh, ow = window_count(h, kh, sh, top, bottom, dh), window_count(w, kw, sw, left, right, dw)
    return (TensorType(from_image((n, out, oh, ow), layout), ACCUMULATED.get(read[0].dtype, read[0].dtype)),)


def macs(read: Types, made: Types, attrs: Attributes) -> int:
    """Count the multiply-accumulates, padding included."""
    return prod(made[0].shape) * prod(read[1].shape[1:])


def windows(read: Types, made: Types, attrs: Attributes) -> tuple[Window, Window]:
    """Return the windows along the rows and the columns."""
    return sliding_windows(read[1].shape[2:], attrs)


def sliding_windows(kernel: tuple[int, ...], attrs: Attributes) -> tuple[Window, Window]:
    """Return windows of `kernel` (rows, columns) taps with the attributes' strides, dilation and padding."""
    dilation = attrs.get("dilation", (1, 1))
    rows, columns = (
        Window(k, s, d, p) for k, s, d, p in zip(kernel, attrs["strides"], dilation, attrs["padding"][:2], strict=True)
    )
    return rows, columns


def evaluate(attrs: Attributes, x: Array, w: Array, b: Array | None = None) -> Array:
    """Compute the convolution in numpy, with bias and activation."""
    wide = np.int32 if x.dtype.kind in "iu" else x.dtype
    nchw = x if attrs["layout"] == "NCHW" else np.transpose(x, (0, 3, 1, 2))
    top, left, bottom, right = attrs["padding"]
    padded = np.pad(nchw, ((0, 0), (0, 0), (top, bottom), (left, right))).astype(wide)
    (sh, sw), (dh, dw), groups = attrs["strides"], attrs["dilation"], attrs["groups"]
    out, depth, kh, kw = w.shape
    taps = sliding_window_view(padded, ((kh - 1) * dh + 1, (kw - 1) * dw + 1), axis=(2, 3))
    taps = taps[:, :, ::sh, ::sw, ::dh, ::dw]
    n, _, oh, ow = taps.shape[:4]
    columns = taps.reshape(n, groups, depth, oh, ow, kh, kw).transpose(1, 0, 3, 4, 2, 5, 6)
    columns = columns.reshape(groups, n * oh * ow, depth * kh * kw)
    kernels = w.astype(wide).reshape(groups, out // groups, depth * kh * kw).transpose(0, 2, 1)
    y = (columns @ kernels).reshape(groups, n, oh, ow, out // groups).transpose(1, 0, 4, 2, 3).reshape(n, out, oh, ow)
    if b is not None:
        y = y + b.reshape(1, -1, 1, 1)
    y = activate(attrs["act"], y)
    return y if attrs["layout"] == "NCHW" else np.transpose(y, (0, 2, 3, 1))


OPERATORS = (
    Operator(
        "conv2d", Family.CONVOLUTION, infer, evaluate, macs, steps_of_products(macs), windows,
        efficiency=0.6, reduces=True, mergeable=True, takes_parts=True,
    ),
    Operator(
        "depthwise_conv2d", Family.CONVOLUTION, None, None, macs, steps_of_products(macs), windows,
        reduces=True, takes_parts=True, channelwise=True,
    ),
    Operator("conv2d_transpose", Family.CONVOLUTION, efficiency=0.4, reduces=True),
)  # fmt: skip
