"""Kernels that write a part of a larger tensor: a concat's operands, in the result."""

# TVM has no stubs.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Range, TensorLoad, TensorRegion
from tvm.tirx import PrimFunc

from tvm_cascade.schedules.tir import tvm_ffi
from tvm_cascade.staging.program.specs import Slice


def write_part(func: PrimFunc, position: int, part: Slice) -> PrimFunc:
    """Replace the parameter at `position`, which `func` writes, by the larger tensor with the slice `part`."""
    old: Any = func.params[position]
    new = tirx.decl_buffer(part.shape, old.ty.dtype, name=old.name)

    def indices(at: Any) -> list[Any]:
        return [i + part.begin if axis == part.axis else i for axis, i in enumerate(at)]

    def store(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        return tirx.BufferStore(new, node.value, indices(node.indices)) if node.buffer.same_as(old) else node

    def load(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        return tirx.BufferLoad(new, indices(node.indices)) if node.source.same_as(old) else node

    def region(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if not node.source.same_as(old):
            return node
        at = indices([r.min for r in node.region])
        return tirx.BufferRegion(
            new, [Range.from_min_extent(i, r.extent) for i, r in zip(at, node.region, strict=True)]
        )

    visitors = [(tirx.BufferStore, store), (TensorLoad, load), (TensorRegion, region)]
    body = tvm_ffi.structural_mutate(func.body, visitors)
    params = [new if k == position else p for k, p in enumerate(func.params)]
    return PrimFunc(params, body, func.ret_type, attrs=func.attrs)
