"""The operators that substitutions know: their attributes, and the types that they produce.

Weights of convolutions are always (out, in / groups, height, width), whatever the layout of the activations; padding is
(top, left, bottom, right). `conv2d` and `matmul` take an optional bias as third operand and an activation `act`, as one
kernel computes all of it. `qconv2d`, `qmatmul` and `qadd` are quantized (rules_quantized.py). `fused` runs
a small program of element-wise operators in one kernel. `opaque` is an operator that no rule looks into; its types come
from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

from tvm_cascade.errors import GraphError


class TensorType(NamedTuple):
    shape: tuple[int, ...]
    dtype: str = "float32"


COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum"})
BINARY = frozenset({"add", "sub", "mul", "div", "maximum", "minimum"})
UNARY = frozenset({"relu", "relu6", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "neg", "clip"})
ELEMENTWISE = BINARY | UNARY | {"fused"}
ACTIVATIONS = frozenset({"relu", "relu6", "sigmoid", "tanh"})  # that a convolution's or product's kernel can apply
POOLS = frozenset({"max_pool2d", "avg_pool2d"})
# Operators whose kernel can write its result into a part of a larger tensor.
WRITERS = frozenset({"conv2d", "qconv2d", "matmul", "qmatmul", "qadd", "fused", "opaque"}) | POOLS | BINARY | UNARY
_WIDE = {"int8": "int32", "uint8": "int32"}

Types = tuple[TensorType, ...]


def infer(kind: str, read: Types, attrs: Mapping[str, Any]) -> Types:
    """Types of the outputs. Raises `GraphError` for an unknown kind or operands that do not fit."""
    rule = _RULES.get(kind)
    if rule is None:
        if kind in BINARY:
            rule = _binary
        elif kind in UNARY:
            rule = _same
        else:
            raise GraphError(f"unknown operator {kind} in a substitution graph: make it opaque")
    return rule(read, attrs)


def channel_axis(layout: str) -> int:
    return 1 if layout == "NCHW" else 3


def image(shape: tuple[int, ...], layout: str) -> tuple[int, int, int, int]:
    """(batch, channels, height, width) of an activation."""
    a, b, c, d = shape
    return (a, b, c, d) if layout == "NCHW" else (a, d, b, c)


def broadcast(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """numpy's broadcasting of shapes."""
    rank = max(len(s) for s in shapes)
    out = []
    for i in range(-rank, 0):
        extents = {s[i] for s in shapes if len(s) >= -i and s[i] != 1}
        if len(extents) > 1:
            raise GraphError(f"shapes {shapes} do not broadcast")
        out.append(extents.pop() if extents else 1)
    return tuple(out)


def _binary(read: Types, attrs: Mapping[str, Any]) -> Types:
    return (TensorType(broadcast(tuple(t.shape for t in read)), read[0].dtype),)


def _same(read: Types, attrs: Mapping[str, Any]) -> Types:
    return (read[0],)


def _taps(size: int, kernel: int, stride: int, low: int, high: int, dilation: int, ceil: bool = False) -> int:
    room = size + low + high - (kernel - 1) * dilation - 1
    return (-(-room // stride) if ceil else room // stride) + 1


def _conv2d(read: Types, attrs: Mapping[str, Any]) -> Types:
    layout, groups = attrs["layout"], attrs["groups"]
    n, c, h, w = image(read[0].shape, layout)
    out, depth, kh, kw = read[1].shape
    if depth * groups != c or out % groups:
        raise GraphError(f"convolution of {c} channels by weights {read[1].shape} in {groups} groups")
    (sh, sw), (dh, dw), (top, left, bottom, right) = attrs["strides"], attrs["dilation"], attrs["padding"]
    oh, ow = _taps(h, kh, sh, top, bottom, dh), _taps(w, kw, sw, left, right, dw)
    shape = (n, out, oh, ow) if layout == "NCHW" else (n, oh, ow, out)
    return (TensorType(shape, _WIDE.get(read[0].dtype, read[0].dtype)),)


def _qconv2d(read: Types, attrs: Mapping[str, Any]) -> Types:
    (made,) = _conv2d(read[:2], attrs)
    if any(t.shape != (read[1].shape[0],) for t in read[2:]):
        raise GraphError(
            f"scales and biases {[t.shape for t in read[2:]]} of a convolution to {read[1].shape[0]} channels"
        )
    return (TensorType(made.shape, attrs["dtype"]),)


def _qmatmul(read: Types, attrs: Mapping[str, Any]) -> Types:
    (rows, depth), (inner, out) = read[0].shape, read[1].shape
    if depth != inner or any(t.shape != (out,) for t in read[2:]):
        raise GraphError(f"product of {read[0].shape} and {read[1].shape}, per output {[t.shape for t in read[2:]]}")
    return (TensorType((rows, out), attrs["dtype"]),)


def _qadd(read: Types, attrs: Mapping[str, Any]) -> Types:
    if read[0].shape != read[1].shape:
        raise GraphError(f"quantized sum of {read[0].shape} and {read[1].shape}")
    return (TensorType(read[0].shape, attrs["dtype"]),)


def _pool(read: Types, attrs: Mapping[str, Any]) -> Types:
    layout = attrs["layout"]
    n, c, h, w = image(read[0].shape, layout)
    (kh, kw), (sh, sw), (top, left, bottom, right) = attrs["kernel"], attrs["strides"], attrs["padding"]
    oh = _taps(h, kh, sh, top, bottom, 1, attrs["ceil"])
    ow = _taps(w, kw, sw, left, right, 1, attrs["ceil"])
    return (TensorType((n, c, oh, ow) if layout == "NCHW" else (n, oh, ow, c), read[0].dtype),)


def _matmul(read: Types, attrs: Mapping[str, Any]) -> Types:
    a, b = read[0].shape, read[1].shape
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise GraphError(f"product of {a} and {b}")
    shape = (*broadcast((a[:-2], b[:-2])), a[-2], b[-1]) if len(a) > 2 or len(b) > 2 else (a[-2], b[-1])
    return (TensorType(shape, _WIDE.get(read[0].dtype, read[0].dtype)),)


def _concat(read: Types, attrs: Mapping[str, Any]) -> Types:
    axis = attrs["axis"]
    first = read[0]
    for t in read[1:]:
        if len(t.shape) != len(first.shape) or t.dtype != first.dtype:
            raise GraphError(f"concatenation of {first} and {t}")
        if any(a != b for i, (a, b) in enumerate(zip(t.shape, first.shape, strict=True)) if i != axis):
            raise GraphError(f"concatenation of {first.shape} and {t.shape} along axis {axis}")
    extent = sum(t.shape[axis] for t in read)
    return (TensorType((*first.shape[:axis], extent, *first.shape[axis + 1 :]), first.dtype),)


def _split(read: Types, attrs: Mapping[str, Any]) -> Types:
    axis, shape = attrs["axis"], read[0].shape
    if sum(attrs["sizes"]) != shape[axis]:
        raise GraphError(f"split of {shape} along axis {axis} into {attrs['sizes']}")
    return tuple(TensorType((*shape[:axis], n, *shape[axis + 1 :]), read[0].dtype) for n in attrs["sizes"])


def _transpose(read: Types, attrs: Mapping[str, Any]) -> Types:
    return (TensorType(tuple(read[0].shape[i] for i in attrs["perm"]), read[0].dtype),)


def _reshape(read: Types, attrs: Mapping[str, Any]) -> Types:
    if prod(attrs["shape"]) != prod(read[0].shape):
        raise GraphError(f"reshape of {read[0].shape} to {attrs['shape']}")
    return (TensorType(attrs["shape"], read[0].dtype),)


def _pad(read: Types, attrs: Mapping[str, Any]) -> Types:
    shape = tuple(n + low + high for n, (low, high) in zip(read[0].shape, attrs["widths"], strict=True))
    return (TensorType(shape, read[0].dtype),)


def _mean(read: Types, attrs: Mapping[str, Any]) -> Types:
    axes = attrs["axes"]
    kept = [(1 if i in axes else n) for i, n in enumerate(read[0].shape) if attrs["keepdims"] or i not in axes]
    return (TensorType(tuple(kept), read[0].dtype),)


def _fused(read: Types, attrs: Mapping[str, Any]) -> Types:
    return (TensorType(broadcast(tuple(t.shape for t in read)), read[0].dtype),)


def _given(read: Types, attrs: Mapping[str, Any]) -> Types:
    return tuple(TensorType(*t) for t in attrs["types"])


def _block_diagonal(read: Types, attrs: Mapping[str, Any]) -> Types:
    out, depth, kh, kw = read[0].shape
    return (TensorType((out, depth * attrs["merge"], kh, kw), read[0].dtype),)


def _compose(read: Types, attrs: Mapping[str, Any]) -> Types:
    inner, outer = read[0].shape, read[1].shape
    return (TensorType((outer[0], attrs["depth"], *inner[2:]), read[0].dtype),)


_RULES: Mapping[str, Callable[[Types, Mapping[str, Any]], Types]] = {
    "conv2d": _conv2d,
    "qconv2d": _qconv2d,
    "matmul": _matmul,
    "qmatmul": _qmatmul,
    "qadd": _qadd,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "batch_norm": _same,
    "softmax": _same,
    "mean": _mean,
    "concat": _concat,
    "split": _split,
    "transpose": _transpose,
    "reshape": _reshape,
    "pad": _pad,
    "fused": _fused,
    "opaque": _given,
    "full": _given,
    "eye_kernel": _given,
    "block_diagonal": _block_diagonal,
    "compose_kernels": _compose,
}
