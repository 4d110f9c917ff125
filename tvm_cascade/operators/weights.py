"""Operators on constant weights, inserted by substitutions and removed by constant folding, and the `opaque` operator.

Attributes: `types` of the outputs, `value` of a `full`, `at` (row, column) of the tap of an `eye_kernel`, `merge` and
`groups` of a `block_diagonal`, `depth` and `groups` of `compose_kernels`.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tvm_cascade.operators.record import Array, Attributes, Family, Operator, TensorType, Types


def _given(read: Types, attrs: Attributes) -> Types:
    return tuple(TensorType(*t) for t in attrs["types"])


def _opaque_steps(read: Types, made: Types, attrs: Attributes) -> int:
    return int(attrs.get("flops", 0) or prod(made[0].shape))


def _full(attrs: Attributes) -> Array:
    shape, dtype = attrs["types"][0]
    return np.full(shape, attrs["value"], dtype)


def _copying_kernel(attrs: Attributes) -> Array:
    """Build a kernel that copies channel i to output i: ones at (i, i) and the given tap."""
    (shape, dtype), (row, col) = attrs["types"][0], attrs["at"]
    w = np.zeros(shape, dtype)
    for o in range(shape[0]):
        w[o, o % shape[1], row, col] = 1
    return w


def _block_diagonal_type(read: Types, attrs: Attributes) -> Types:
    out, depth, kh, kw = read[0].shape
    return (TensorType((out, depth * attrs["merge"], kh, kw), read[0].dtype),)


def _block_diagonal(attrs: Attributes, w: Array) -> Array:
    """Expand the weights of a convolution with `groups` groups to `groups / merge` groups, filled up with zeros."""
    merge, groups = attrs["merge"], attrs["groups"]
    out, depth, kh, kw = w.shape
    wide = np.zeros((out, depth * merge, kh, kw), w.dtype)
    for o in range(out):
        place = (o // (out // groups)) % merge
        wide[o, place * depth : (place + 1) * depth] = w[o]
    return wide


def _composed_type(read: Types, attrs: Attributes) -> Types:
    inner, outer = read[0].shape, read[1].shape
    return (TensorType((outer[0], attrs["depth"], *inner[2:]), read[0].dtype),)


def _composed(attrs: Attributes, inner: Array, outer: Array) -> Array:
    """Compute the weights of the dense convolution equal to a convolution `inner` with `groups` groups, then a 1x1
    `outer`.
    """
    groups, depth = attrs["groups"], attrs["depth"]
    out, per_group, kh, kw = inner.shape
    dense = np.zeros((out, depth, kh, kw), inner.dtype)
    for o in range(out):
        g = o // (out // groups)
        dense[o, g * per_group : (g + 1) * per_group] = inner[o]
    return np.einsum("om,mikl->oikl", outer[:, :, 0, 0], dense).astype(inner.dtype)


OPERATORS = (
    Operator("full", Family.CONSTANT, _given, _full),
    Operator("eye_kernel", Family.CONSTANT, _given, _copying_kernel),
    Operator("block_diagonal", Family.CONSTANT, _block_diagonal_type, _block_diagonal),
    Operator("compose_kernels", Family.CONSTANT, _composed_type, _composed),
    Operator("opaque", Family.OPAQUE, _given, steps=_opaque_steps),
)
