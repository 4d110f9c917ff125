"""Narrow numbers for tensors between kernels: `--precision fp16` and `bf16` of staged programs.

Tensors inside the network are stored as float16 or bfloat16; the network's inputs and outputs keep their type. Kernels
compute in float32 and round on writing. Convolutions without groups and matrix products multiply such values, weights
included, and accumulate in float32, as tensor cores do (`staging.kernels.cuda_default`). With `tf32` all tensors stay
float32, and products round their factors, on tensor cores.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

from tvm_cascade.cost.precision import BF16, FP16, FP32, PRECISIONS, TF32, find_precision
from tvm_cascade.errors import UsageError
from tvm_cascade.graph import Graph, Op
from tvm_cascade.operators.table import CONVOLUTIONS
from tvm_cascade.staging.program.graph import WIDE, StageGraph

__all__ = ["BF16", "FP16", "FP32", "PRECISIONS", "TF32", "in_precision", "is_product", "precision_of"]

_ONE_TYPE = ("concat",)  # its operands may lie in its result, and then are stored as that is


def in_precision(net: StageGraph, precision: str) -> StageGraph:
    """Convert tensors between kernels, and weights of products, to `precision`.

    Raises `UsageError` for a network with tensors of that type already.
    """
    stored = find_precision(precision).stored
    if stored == WIDE:
        return replace(net, tf32=True) if precision == TF32 else net
    if any(t.dtype == stored for t in net.graph.tensors):
        raise UsageError(f"--precision {precision} is for networks of float32, and this one has tensors of {stored}")
    kept = _kept(net.graph)
    narrow = {t.index for t in net.graph.tensors if t.dtype == WIDE} - kept
    tensors = tuple(replace(t, dtype=stored) if t.index in narrow else t for t in net.graph.tensors)
    graph = replace(net.graph, tensors=tensors, ops=tuple(_stored(net, op, narrow) for op in net.graph.ops))
    return replace(net, graph=graph, multiplied=stored)


def precision_of(net: StageGraph) -> str:
    """Return the name of a network's precision."""
    return next(p.name for p in PRECISIONS.values() if p.multiplied == net.arithmetic)


def is_product(net: StageGraph, op: int) -> bool:
    """Test whether an operator is a float matrix product, or a convolution without groups: work for tensor cores."""
    node, name = net.graph.ops[op], getattr(net.calls[op].op, "name", "")
    if not {net.graph.tensors[t].dtype for t in (*node.inputs, *node.outputs)} <= {WIDE, net.multiplied}:
        return False
    if node.kind in CONVOLUTIONS and name:
        return node.attrs.get("groups") == 1
    return name == "relax.matmul"


def _kept(graph: Graph) -> Set[int]:
    """Return the tensors with unchanged type: inputs, outputs, and tensors sharing bytes with these or parts of them."""
    kept = {*graph.inputs, *graph.outputs}
    together = [{*op.inputs, *op.outputs} for op in graph.ops if op.view or op.kind in _ONE_TYPE]
    while more := {t for group in together if group & kept for t in group} - kept:
        kept |= more
    return kept


def _stored(net: StageGraph, op: Op, narrow: Set[int]) -> Op:
    """Return an operator with the offsets and weights of narrow tensors."""
    changes: dict[str, Any] = {}
    if op.view and op.outputs[0] in narrow:
        changes["view_offsets"] = tuple(offset // 2 for offset in op.view_offsets)
    if is_product(net, op.index):
        changes["weight_bytes"] = op.weight_bytes // 2
    return replace(op, **changes) if changes else op
