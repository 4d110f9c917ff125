"""Data movement operators, which compute nothing: concat, split, transpose, reshape, pad.

Attributes: `axis` (concatenation) and, with `sizes`, (split), `perm` (transpose), `shape` (reshape), `widths` (before,
after) per axis (pad with zeros).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tvm_cascade.errors import GraphError
from tvm_cascade.operators.record import Array, Attributes, Family, Operator, TensorType, Types


def _concat_type(read: Types, attrs: Attributes) -> Types:
    axis = attrs["axis"]
    first = read[0]
    for t in read[1:]:
        if len(t.shape) != len(first.shape) or t.dtype != first.dtype:
            raise GraphError(f"concatenation of {first} and {t}")
        if any(a != b for i, (a, b) in enumerate(zip(t.shape, first.shape, strict=True)) if i != axis):
            raise GraphError(f"concatenation of {first.shape} and {t.shape} along axis {axis}")
    extent = sum(t.shape[axis] for t in read)
    return (TensorType((*first.shape[:axis], extent, *first.shape[axis + 1 :]), first.dtype),)


def _concat(attrs: Attributes, *parts: Array) -> Array:
    return np.concatenate(parts, axis=attrs["axis"])


def _split_types(read: Types, attrs: Attributes) -> Types:
    axis, shape = attrs["axis"], read[0].shape
    if sum(attrs["sizes"]) != shape[axis]:
        raise GraphError(f"split of {shape} along axis {axis} into {attrs['sizes']}")
    return tuple(TensorType((*shape[:axis], n, *shape[axis + 1 :]), read[0].dtype) for n in attrs["sizes"])


def _split(attrs: Attributes, x: Array) -> tuple[Array, ...]:
    return tuple(np.split(x, np.cumsum(attrs["sizes"])[:-1], axis=attrs["axis"]))


def _transpose_type(read: Types, attrs: Attributes) -> Types:
    return (TensorType(tuple(read[0].shape[i] for i in attrs["perm"]), read[0].dtype),)


def _reshape_type(read: Types, attrs: Attributes) -> Types:
    if prod(attrs["shape"]) != prod(read[0].shape):
        raise GraphError(f"reshape of {read[0].shape} to {attrs['shape']}")
    return (TensorType(attrs["shape"], read[0].dtype),)


def _pad_type(read: Types, attrs: Attributes) -> Types:
    shape = tuple(n + low + high for n, (low, high) in zip(read[0].shape, attrs["widths"], strict=True))
    return (TensorType(shape, read[0].dtype),)


def _no_steps(read: Types, made: Types, attrs: Attributes) -> int:
    return 0


def _movement(kind: str, infer: Any, evaluate: Any, *also: str, view: bool = False) -> Operator:
    return Operator(kind, Family.MOVEMENT, infer, evaluate, steps=_no_steps, also=also, view=view)


OPERATORS = (
    _movement("concat", _concat_type, _concat),
    _movement("split", _split_types, _split),
    _movement("transpose", _transpose_type, lambda a, x: np.transpose(x, a["perm"]), "permute_dims"),
    _movement(
        "reshape", _reshape_type, lambda a, x: x.reshape(a["shape"]), "flatten", "squeeze", "expand_dims", "view",
        view=True,
    ),
    _movement("pad", _pad_type, lambda a, x: np.pad(x, a["widths"])),
)  # fmt: skip
