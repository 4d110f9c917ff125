"""Matrix products: `matmul` of any two tensors, `dense` with constant weights. Attribute: `act`; an optional bias is the
third operand."""

from __future__ import annotations

from math import prod

import numpy as np

from tvm_cascade.errors import GraphError
from tvm_cascade.operators.convolutions import ACCUMULATED
from tvm_cascade.operators.elementwise import activate
from tvm_cascade.operators.record import Array, Attributes, Family, Operator, TensorType, Types, steps_of_products
from tvm_cascade.operators.shapes import broadcast


def _infer(read: Types, attrs: Attributes) -> Types:
    a, b = read[0].shape, read[1].shape
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise GraphError(f"product of {a} and {b}")
    shape = (*broadcast((a[:-2], b[:-2])), a[-2], b[-1]) if len(a) > 2 or len(b) > 2 else (a[-2], b[-1])
    return (TensorType(shape, ACCUMULATED.get(read[0].dtype, read[0].dtype)),)


def macs(read: Types, made: Types, attrs: Attributes) -> int:
    """Count the multiply-accumulates."""
    return prod(made[0].shape) * read[0].shape[-1]


def _evaluate(attrs: Attributes, a: Array, b: Array, bias: Array | None = None) -> Array:
    wide = np.int32 if a.dtype.kind in "iu" else a.dtype
    y = a.astype(wide) @ b.astype(wide)
    return activate(attrs["act"], y if bias is None else y + bias)


def _product(kind: str) -> Operator:
    return Operator(
        kind, Family.PRODUCT, _infer, _evaluate, macs, steps_of_products(macs), efficiency=0.6, reduces=True,
        splits_reduction=True, mergeable=True,
    )  # fmt: skip


OPERATORS = (_product("matmul"), _product("dense"))
