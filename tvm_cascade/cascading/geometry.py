"""Contiguity of rows and pixels in memory, and which operators can compute or read these separately."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.graph import ITEM_BYTES, Graph, Op, Tensor

Units = NDArray[np.int64]  # counts or indices of rows, or of pixels


def has_rows(graph: Graph, op: int) -> bool:
    """Test whether an operator can compute row by row: all outputs have equally many rows, and some input a known
    window.

    Inputs with a window of None are read whole.
    """
    node = graph.ops[op]
    rows = {graph.tensors[t].rows for t in node.outputs}
    return node.opaque is None and len(rows) == 1 and any(w is not None for w in node.windows)


def goes_by_pixels(graph: Graph, op: int) -> bool:
    """Test whether an operator can compute some pixels of an output row in one step.

    Conditions: the operator goes by rows (`has_rows`), the windows along the columns are known, and the outputs' pixels
    are contiguous.
    """
    node = graph.ops[op]
    widths = {graph.tensors[t].columns for t in node.outputs}
    known = any(w is not None for w in node.columns) and node.kernels.channel_tiling is None
    return (
        has_rows(graph, op) and known and len(widths) == 1 and all(has_pixels(graph.tensors[t]) for t in node.outputs)
    )


def outermost(t: Tensor) -> bool:
    """Test whether each row of a tensor is one contiguous range of bytes; true also for a tensor without a row axis."""
    return t.row_axis is None or all(d == 1 for d in t.shape[: t.row_axis])


def streamable(graph: Graph, tensor: int) -> bool:
    """Test whether the caller can deliver a graph input row by row.

    A ring stores the parts of a row from several planes (NCHW, batches) together, even a ring of all rows. Such a
    tensor never has the usual layout, so no operator may read the whole tensor.
    """
    t = graph.tensors[tensor]
    if tensor in {state for state, _ in graph.states}:
        return False  # it is there before the call, and after it
    if t.row_axis is None or outermost(t):
        return t.row_axis is not None
    reads = [(op, k) for op in graph.ops for k, read in enumerate(op.inputs) if read == tensor]
    return tensor not in graph.outputs and all(reads_rows(graph, op, k) for op, k in reads)


def reads_rows(graph: Graph, op: Op, k: int) -> bool:
    """Test whether an operator reads input k row by row, so each row may lie anywhere."""
    window = op.windows[k] if k < len(op.windows) else None
    by_rows = window is not None and window.stride > 0
    return by_rows and has_rows(graph, op.index) and not op.view and not op.part_offsets


def has_pixels(t: Tensor) -> bool:
    """Test whether each row in a tensor, and each pixel in a row, is a contiguous byte range."""
    return t.row_axis is not None and t.col_axis == t.row_axis + 1 and outermost(t)


def front_bytes(t: Tensor, units: Units, columns: int) -> Units:
    """Compute the bytes of a whole tensor's longest prefix with only the first `units` units.

    The result is all bytes if `units` are all units. A row has `columns` units.
    """
    return np.where(units >= t.rows * columns, t.bytes, units * _plane_row(t) // max(columns, 1))


def end_bytes(t: Tensor, units: Units, columns: int) -> Units:
    """Compute the bytes of the shortest prefix of a whole tensor with the first `units` units, `columns` per row."""
    row, planes = _plane_row(t), 1 if t.row_axis is None else prod(t.shape[: t.row_axis])
    return np.where(units > 0, (planes - 1) * t.rows * row + units * row // max(columns, 1), 0)


def _plane_row(t: Tensor) -> int:
    """Compute the bytes of a row in a single plane; the whole tensor's without rows."""
    return t.bytes if t.row_axis is None else prod(t.shape[t.row_axis + 1 :]) * ITEM_BYTES[t.dtype]
