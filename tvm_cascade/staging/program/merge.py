"""Operator merge (IOS): stacks the weights of operators with the same input, and concatenates their epilogues' constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_cascade.graph import Op
from tvm_cascade.operators.table import CONVOLUTIONS
from tvm_cascade.parallel.merging import merged_window
from tvm_cascade.passes.read.relax_names import oihw_axes
from tvm_cascade.staging.program.graph import StageGraph


@dataclass(frozen=True)
class Merge:
    """Operators merged into a single convolution or product, with the common element-wise epilogue."""

    weight: np.ndarray  # OIHW, kernels zero-padded to a common size; or (depth, columns)
    channels: int  # output channels of all operators together
    tail: tuple[Any, ...]  # Relax calls of the epilogue
    constants: tuple[tuple[np.ndarray | None, ...], ...]  # per call and argument; None for the activation
    strides: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()  # top, left, bottom, right
    dilation: tuple[int, ...] = ()
    layout: str = ""

    @property
    def is_convolution(self) -> bool:
        return self.weight.ndim == 4


def merge_units(net: StageGraph, units: Sequence[Sequence[int]]) -> Merge | None:
    """Merge units, each a list of operators starting with the anchor; None if they cannot be merged."""
    heads = [net.graph.ops[u[0]] for u in units]
    weights = [net.constant(net.calls[op.index].args[1]) for op in heads]
    if any(w is None for w in weights) or len({len(u) for u in units}) != 1:
        return None
    call = net.calls[heads[0].index]
    layout = str(call.attrs.data_layout) if heads[0].kind in CONVOLUTIONS else ""
    axis = layout.index("C") if layout else len(net.graph.tensors[heads[0].outputs[0]].shape) - 1
    channels = [net.graph.tensors[op.outputs[0]].shape[axis] for op in heads]
    tail = _tail(net, [u[1:] for u in units], channels, axis)
    if tail is None:
        return None
    calls, constants = tail
    constant_weights = [w for w in weights if w is not None]
    if heads[0].kind not in CONVOLUTIONS:
        return Merge(np.concatenate(constant_weights, axis=1), sum(channels), calls, constants)
    return _convolution(net, heads, constant_weights, calls, constants, layout)


def _convolution(
    net: StageGraph, heads: Sequence[Op], weights: Sequence[np.ndarray], calls: tuple, constants: tuple, layout: str
) -> Merge | None:
    rows = merged_window([w for op in heads if (w := op.windows[0]) is not None])
    columns = merged_window([w for op in heads if (w := op.columns[0]) is not None])
    if rows is None or columns is None:
        return None
    stacked = []
    for k, (op, weight) in enumerate(zip(heads, weights, strict=True)):
        oihw = weight.transpose(oihw_axes(str(net.calls[op.index].attrs.kernel_layout)))
        full = np.zeros((*oihw.shape[:2], rows.extent, columns.extent), oihw.dtype)
        top, left = rows.offsets[k], columns.offsets[k]
        full[:, :, top : top + oihw.shape[2], left : left + oihw.shape[3]] = oihw
        stacked.append(full)
    first = heads[0]
    source, out = net.graph.tensors[first.inputs[0]], net.graph.tensors[first.outputs[0]]
    window, column = first.windows[0], first.columns[0]
    assert window is not None and column is not None

    def after(outputs: int, inputs: int, stride: int, dilation: int, extent: int, before: int) -> int:
        """Compute the padding after the last input row (or column) for exactly `outputs` output rows."""
        return max(0, (outputs - 1) * stride + (extent - 1) * dilation + 1 - inputs - before)

    bottom = after(out.rows, source.rows, window.stride, window.dilation, rows.extent, rows.padding)
    right = after(out.columns, source.columns, column.stride, column.dilation, columns.extent, columns.padding)
    weight = np.concatenate(stacked)
    return Merge(
        weight, weight.shape[0], calls, constants, (window.stride, column.stride),
        (rows.padding, columns.padding, bottom, right), (window.dilation, column.dilation), layout,
    )  # fmt: skip


def _tail(
    net: StageGraph, tails: Sequence[Sequence[int]], channels: Sequence[int], axis: int
) -> tuple[tuple[Any, ...], tuple[tuple[np.ndarray | None, ...], ...]] | None:
    """Return the common epilogue: calls and, per call, constants joined along the channels; None if calls differ."""
    calls, constants = [], []
    for position in zip(*tails, strict=True):
        alike = [net.calls[i] for i in position]
        first = alike[0]
        if any(c.op != first.op or str(c.attrs) != str(first.attrs) for c in alike):
            return None
        row: list[np.ndarray | None] = []
        for k in range(len(first.args)):
            values = [net.constant(c.args[k]) for c in alike]
            row.append(_join(values, channels, axis, net, position[0]))
            if row[-1] is None and any(v is not None for v in values):
                return None
        if sum(value is None for value in row) != 1:
            return None
        calls.append(first)
        constants.append(tuple(row))
    return tuple(calls), tuple(constants)


def _join(
    values: Sequence[np.ndarray | None], channels: Sequence[int], axis: int, net: StageGraph, op: int
) -> np.ndarray | None:
    """Join constants along the channels; None if a constant is missing, or varies along another axis."""
    rank = len(net.graph.tensors[net.graph.ops[op].outputs[0]].shape)
    full = []
    for value, count in zip(values, channels, strict=True):
        if value is None:
            return None
        wide = value.reshape((1,) * (rank - value.ndim) + value.shape)
        if wide.shape[axis] not in (1, count) or any(d != 1 for a, d in enumerate(wide.shape) if a != axis):
            return None
        shape = tuple(count if a == axis else 1 for a in range(rank))
        full.append(np.broadcast_to(wide, shape))
    return np.ascontiguousarray(np.concatenate(full, axis=axis))
