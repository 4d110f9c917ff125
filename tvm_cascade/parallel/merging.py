"""Operator merge: conditions under which operators can be merged into one exactly, and the merged operator's features.

IOS, section 3, merges convolutions on one input by stacking their kernels, the smaller padded with zeros. That is exact
only under conditions missing in the paper: the operators agree in input, groups (1 here), dilation, type, layout and
stride; and on each axis kernel i lies at offset `P - p_i >= 0` of the merged kernel, P being the merged padding and p_i
the kernel's own (centring, as in the published code, is wrong at stride 2 with mixed parity and at stride 3). So `P =
max p_i` and `K = max(P - p_i + k_i)`. With a dilation d the offset must be a multiple of d.

Products with a common left operand merge by stacking columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm_cascade.cost.interface import OpFeatures
from tvm_cascade.graph import Graph, Op, Window
from tvm_cascade.operators.table import CONVOLUTIONS, MERGEABLE
from tvm_cascade.parallel.units import UnitGraph


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """One axis of merged convolutions: kernel `extent`, `padding` before the first tap, and each kernel's first tap."""

    extent: int
    padding: int
    offsets: tuple[int, ...]  # in taps


def merged_window(windows: Sequence[Window]) -> BuildOptions | None:
    """Compute the merged window along an axis; None if no merged kernel computes the same as the single kernels."""
    first = windows[0]
    if any((w.stride, w.dilation, w.denominator) != (first.stride, first.dilation, 1) for w in windows):
        return None
    padding = max(w.padding for w in windows)
    gaps = [padding - w.padding for w in windows]
    if any(gap % first.dilation for gap in gaps):
        return None
    offsets = tuple(gap // first.dilation for gap in gaps)
    return BuildOptions(max(o + w.extent for o, w in zip(offsets, windows, strict=True)), padding, offsets)


def merge_key(graph: Graph, op: Op) -> tuple[object, ...] | None:
    """Return a key, equal for operators with a common merge; None for operators without a merge."""
    if not op.attrs.get("mergeable", True):
        return None
    if op.kind not in MERGEABLE or len(set(op.inputs)) != 1 or len(op.outputs) != 1 or op.attrs.get("groups", 1) != 1:
        return None
    tensor, out = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    base = (op.kind, op.inputs[0], op.attrs.get("act"), out.dtype, out.row_axis, out.col_axis)
    if op.kind not in CONVOLUTIONS:
        return (*base, out.shape[:-1])
    if not op.windows or not op.columns or op.windows[0] is None or op.columns[0] is None:
        return None
    rows, columns = op.windows[0], op.columns[0]
    if rows.stride == 0 or columns.stride == 0 or tensor.row_axis is None or tensor.col_axis is None:
        return None
    return (*base, rows.stride, rows.dilation, columns.stride, columns.dilation, out.rows, out.columns)


def merge_classes(graph: UnitGraph) -> tuple[tuple[int, ...], ...]:
    """Find the units that may be merged with one another, ascending; any subset of a class is exact as well.

    The units' anchors are merged, and each has to be the unit's first operator; the operators after run on their slice
    of the merged output.
    """
    classes: dict[tuple[object, ...], list[int]] = {}
    for unit in graph.units:
        moving = [i for i in unit.ops if not graph.graph.ops[i].view]
        op = graph.graph.ops[unit.anchor]
        if not moving or moving[0] != unit.anchor or len(graph.kernels[unit.index]) != 1:
            continue
        key = merge_key(graph.graph, op)
        if key is not None:
            classes.setdefault((*key, _tail(graph, unit.ops[1:])), []).append(unit.index)
    several = (tuple(c) for c in classes.values() if len(c) > 1)
    return tuple(c for c in several if _placeable(graph, c))


def _tail(graph: UnitGraph, ops: Sequence[int]) -> tuple[tuple[str, str], ...]:
    """Return the kinds of the operators after the anchor, and the types they write.

    Merged units must agree: a common epilogue serves all, and a single tensor is written.
    """
    tensors = graph.graph.tensors
    return tuple((op.kind, tensors[op.outputs[0]].dtype) for op in (graph.graph.ops[i] for i in ops))


def _placeable(graph: UnitGraph, members: Sequence[int]) -> bool:
    ops = [graph.graph.ops[graph.units[m].anchor] for m in members]
    if ops[0].kind not in CONVOLUTIONS:
        return True
    return merged_window(_axis(ops, "windows")) is not None and merged_window(_axis(ops, "columns")) is not None


def _axis(ops: Sequence[Op], field: str) -> list[Window]:
    return [w for op in ops if (w := getattr(op, field)[0]) is not None]


def merged_features(graph: UnitGraph, members: Sequence[int]) -> OpFeatures:
    """Compute the features of the members merged into a single operator; work on zeros in enlarged kernels counts."""
    ops = [graph.graph.ops[graph.units[m].anchor] for m in members]
    single = [graph.features[m][0] for m in members]
    grown = [1.0] * len(ops)
    extent = (1, 1)
    if ops[0].kind in CONVOLUTIONS:
        rows, columns = merged_window(_axis(ops, "windows")), merged_window(_axis(ops, "columns"))
        assert rows is not None and columns is not None
        extent = rows.extent, columns.extent
        taps = [op.windows[0].extent * op.columns[0].extent for op in ops]  # type: ignore[union-attr]
        grown = [prod(extent) / t for t in taps]
    elements = sum(f.output_elements for f in single)
    macs = int(sum(f.macs * g for f, g in zip(single, grown, strict=True)))
    return OpFeatures(
        kind=single[0].kind,
        macs=macs,
        bytes_in=single[0].bytes_in,
        bytes_out=sum(f.bytes_out for f in single),
        weight_bytes=int(sum(f.weight_bytes * g for f, g in zip(single, grown, strict=True))),
        output_elements=elements,
        reduction=max(1, macs // max(elements, 1)),
        parallel_rows=sum(f.parallel_rows for f in single),
        shape=(-4, *extent, *(x for f in single for x in f.shape)),
    )
