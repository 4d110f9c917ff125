"""Streamed inputs, which arrive row by row: the order of row requests, and a `fetch` function that serves whole inputs.

The driver requests the rows of an input in ascending order, each once (once per stripe in a segment in stripes), when
the input's ring has room. For NCHW a request delivers that row from every plane, planes one behind another.
"""

from __future__ import annotations

from math import prod

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.graph import ITEM_BYTES, Tensor
from tvm_cascade.schedules.tir import PrimFunc, Stmt, for_range, ir, pointer_var, tirx
from tvm_cascade.schedules.tir.aliasing import NOALIAS

HOST_FETCH = "fetch_row"


def streamed_inputs(plan: Plan) -> tuple[int, ...]:
    """List the streamed graph inputs (tensor numbers), in the order of the graph's inputs."""
    found = {t for segment in plan.segments for t in segment.streamed}
    return tuple(t for t in plan.graph.inputs if t in found)


def request_order(plan: Plan) -> tuple[int, ...]:
    """List for every row request, in order, the input's position among the graph's inputs.

    A segment in stripes requests all rows once per stripe.
    """
    times = [(s.trace, max(len(s.stripes), 1)) for s in plan.segments]
    return tuple(plan.graph.inputs.index(-1 - o) for trace, n in times for o in trace * n if o < 0)


def row_shape(tensor: Tensor) -> tuple[int, int]:
    """Return a tensor's plane count, and a row's bytes in a single plane."""
    assert tensor.row_axis is not None
    planes = prod(tensor.shape[: tensor.row_axis])
    return planes, prod(tensor.shape[tensor.row_axis + 1 :]) * ITEM_BYTES[tensor.dtype]


def host_fetch(plan: Plan) -> PrimFunc:
    """Build `fetch_row(context, input, row, to) -> 0`: copies a row from whole inputs stored one behind another at
    `context`.
    """
    context, to = (pointer_var(n, "int8") for n in ("context", "to"))
    which, row = tirx.Var("input", "int32"), tirx.Var("row", "int32")
    tensors = [plan.graph.tensors[t] for t in streamed_inputs(plan)]
    total = sum(t.bytes for t in tensors)
    source = tirx.decl_buffer((total,), "int8", "source", data=context)
    target = tirx.decl_buffer((max(t.row_bytes for t in tensors),), "int8", "target", data=to)
    body: list[Stmt] = [tirx.DeclBuffer(source, data=context), tirx.DeclBuffer(target, data=to)]
    start = 0
    for k, tensor in enumerate(tensors):
        planes, across = row_shape(tensor)
        p, i = tirx.Var(f"plane{k}", "int32"), tirx.Var(f"i{k}", "int32")
        at = start + p * (tensor.rows * across) + row * across + i
        copy = for_range(i, across, tirx.BufferStore(target, source[at], [p * across + i]))
        position = tirx.const(plan.graph.inputs.index(tensor.index), "int32")
        body.append(tirx.IfThenElse(tirx.EQ(which, position), for_range(p, planes, copy), None))
        start += tensor.bytes
    body.append(tirx.Return(tirx.const(0, "int32")))
    func = tirx.PrimFunc([context, which, row, to], tirx.SeqStmt(body), ir.PrimType("int32"))
    return func.with_attr(NOALIAS, True)
