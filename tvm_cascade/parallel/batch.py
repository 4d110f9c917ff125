"""A graph at another batch size."""

from __future__ import annotations

from dataclasses import replace

from tvm_cascade.errors import UsageError
from tvm_cascade.graph import Graph, Op, Tensor


def with_batch(graph: Graph, batch: int) -> Graph:
    """Return the graph at another batch size. Raises `UsageError` below 1, or if some tensor has no leading axis of
    extent 1.
    """
    if batch < 1:
        raise UsageError(f"batch must be at least 1, not {batch}")
    odd = [t.name for t in graph.tensors if not t.shape or t.shape[0] != 1]
    if odd and batch != 1:
        raise UsageError(f"tensor {odd[0]} has no leading batch of 1: load the model with --input-shape instead")

    def wide(t: Tensor) -> Tensor:
        return replace(t, shape=(batch, *t.shape[1:]))

    def heavy(op: Op) -> Op:
        return replace(op, macs=op.macs * batch, view_offsets=tuple(o * batch for o in op.view_offsets))

    return Graph(tuple(map(wide, graph.tensors)), tuple(map(heavy, graph.ops)), graph.inputs, graph.outputs, graph.name)
