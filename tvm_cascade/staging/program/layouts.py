"""The packed tensors in a staged program for CPUs: `[1][C/v][H][W][v]` instead of `[1][C][H][W]`, v lanes of a vector.

A kernel that computes vectors of channels writes a packed tensor vector by vector, and readers find a pixel's channels
beside each other; a plain tensor is scattered and gathered. (NCHWc in NeoCPU, Liu et al., USENIX ATC 2019, section
3.1.) If the channels are whole vectors, a packed tensor has the plain tensor's bytes, and a part of whole vectors is
the same memory range in both, so places and views of tensors follow the plain layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from math import prod

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tvm_cascade.graph import ITEM_BYTES, Graph, Op, Tensor
from tvm_cascade.operators.table import CHANNELWISE, CONVOLUTIONS, ELEMENTWISE, SLIDING
from tvm_cascade.staging.kernels.cpu_compute import LANES, takes_pixels
from tvm_cascade.staging.program.graph import StageGraph

_ANY_LAYOUT = SLIDING | {"adaptive_avg_pool2d", "mean"}
_ONE_LAYOUT = ("concat", "split")  # their parts lie inside of the whole
_FINITE = frozenset(
    (
        "add", "sub", "subtract", "mul", "multiply", "bias_add", "minimum", "maximum", "clip", "relu", "relu6",
        "leaky_relu", "leakyrelu", "lrelu", "sigmoid", "tanh", "silu", "hard_swish", "hardswish", "gelu",
    )
)  # fmt: skip # of finite numbers: channels that fill a vector up stay finite, and weights of zero drop them
_MOST_FILLED = 4 / 3  # times as many bytes that a tensor may take whose last vector is filled up


def packed_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the packed shape for the plain shape `shape`."""
    n, channels, high, wide = shape
    return (n, -(-channels // LANES), high, wide, LANES)


def packed_bytes(graph: Graph, packed: Set[int], t: int) -> int:
    """Return a tensor's size in bytes, packed if in `packed`."""
    tensor = graph.tensors[t]
    return prod(packed_shape(tensor.shape)) * ITEM_BYTES[tensor.dtype] if t in packed else tensor.bytes


def packed_tensors(net: StageGraph) -> frozenset[int]:
    """Choose the packed tensors, by index.

    Candidates are float32 tensors used only by operators with kernels for both layouts. All tensors joined by
    element-wise operators, concatenations and splits get the same layout. Partial vectors are filled up if only kernels
    for any number of channels use the tensor, and the padding is multiplied by zero weights alone. Pointwise
    convolutions from plain tensors write plain tensors if vectors of pixels are faster (`cpu_compute.takes_pixels`), unless a
    convolution of several taps or a pool reads them.
    """
    graph = net.graph
    joined: list[tuple[int, int]] = []
    barred = {*graph.inputs, *graph.outputs, *(t.index for t in graph.tensors if not _packable(t))}
    for op in graph.ops:
        first, *others = touched = (*op.outputs, *op.inputs)
        filled = any(not _whole(graph.tensors[t].shape) for t in touched)
        if getattr(net.calls[op.index].op, "name", "") == "relax.call_tir":
            barred.update(touched)
        elif op.kind in ELEMENTWISE:
            alike = [t for t in others if graph.tensors[t].shape == graph.tensors[first].shape]
            joined += ((first, t) for t in alike)
            if filled and (op.kind not in _FINITE or len(alike) < len(others)):
                barred.update(touched)
        elif op.kind in _ONE_LAYOUT and _along_channels(net, op) and not filled:
            joined += ((first, t) for t in others)
        elif op.kind not in _ANY_LAYOUT or not _channels_first(net, op):
            barred.update(touched)
        elif filled and op.kind in CHANNELWISE:
            joined += ((first, t) for t in others)
        elif filled and op.kind not in CONVOLUTIONS:
            barred.update(touched)
    rows, columns = np.array(joined, int).reshape(-1, 2).T
    edges = coo_array((np.ones(len(joined), np.int8), (rows, columns)), shape=(len(graph.tensors),) * 2)
    _, sets = connected_components(edges, directed=False)
    plain = {sets[t] for t in barred}
    wanted = {sets[t] for op in graph.ops for t in _packed_by_wish(net, op)}
    for op in graph.ops:
        given, made = sets[op.inputs[0]], sets[op.outputs[0]]
        if given in plain and made not in wanted and _takes_pixels(net, op):
            plain.add(made)
    return frozenset(t for t, s in enumerate(sets) if s not in plain)


def may_merge(graph: Graph, packed: Set[int], tensors: Iterable[int]) -> bool:
    """Test whether `tensors` may lie side by side in a merged tensor: all packed in whole vectors, or none packed."""
    held = list(tensors)
    inside = [t for t in held if t in packed]
    return not inside or (len(inside) == len(held) and all(_whole(graph.tensors[t].shape) for t in held))


def _whole(shape: tuple[int, ...]) -> bool:
    return len(shape) < 2 or shape[1] % LANES == 0


def _packable(tensor: Tensor) -> bool:
    shape = tensor.shape
    return (
        tensor.dtype == "float32"
        and (tensor.row_axis, tensor.col_axis) == (2, 3)
        and shape[0] == 1
        and -(-shape[1] // LANES) * LANES <= _MOST_FILLED * shape[1]
        and shape[2] * shape[3] > 1
    )


def _takes_pixels(net: StageGraph, op: Op) -> bool:
    """Test whether an operator is a convolution of one tap, best done by pixel vectors if its input is plain."""
    window = (*op.windows, *op.columns)
    taps = all(w is not None and (w.extent, w.stride, w.padding) == (1, 1, 0) for w in window)
    if op.kind not in CONVOLUTIONS or not taps or not _channels_first(net, op):
        return False
    (source, *_), (out, *_) = op.inputs, op.outputs
    return takes_pixels(net.graph.tensors[source].shape, net.graph.tensors[out].shape[1])


def _packed_by_wish(net: StageGraph, op: Op) -> tuple[int, ...]:
    """Return the tensors an operator prefers packed: kernels with windows read vectors of channels."""
    if op.kind in CONVOLUTIONS:
        return () if _takes_pixels(net, op) else op.inputs
    return (*op.inputs, *op.outputs) if op.kind in ("max_pool2d", "avg_pool2d") else ()


def _along_channels(net: StageGraph, op: Op) -> bool:
    rank, axis = len(net.graph.tensors[op.outputs[0]].shape), net.calls[op.index].attrs.axis
    return rank == 4 and axis is not None and int(axis) % rank == 1


def _channels_first(net: StageGraph, op: Op) -> bool:
    """Test whether the operator has a kernel for packed tensors."""
    attrs, tensors = net.calls[op.index].attrs, net.graph.tensors
    if op.kind == "mean":
        return bool(attrs.keepdims) and attrs.axis is not None and [int(a) % 4 for a in attrs.axis] == [2, 3]
    if op.kind in CONVOLUTIONS and (op.attrs.get("groups") != 1 or len(op.inputs) != 1):
        return False
    if op.kind == "depthwise_conv2d" and (
        len(op.inputs) != 1 or tensors[op.inputs[0]].shape[1] != tensors[op.outputs[0]].shape[1]
    ):
        return False
    return str(getattr(attrs, "data_layout", getattr(attrs, "layout", ""))) == "NCHW"
