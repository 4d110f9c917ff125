"""Copy elimination for concats: producers write their parts directly into the concat's output, which becomes a join.

In a concat along the rows a part is contiguous in the output. Along an NHWC tensor's channels a part is strided, a run
in every output pixel, so its producer writes with the output's pitch (`schedules.kernels.pitch`). A concat can be
joined if its parts need no requantization, have no further reader and start at multiples of 4 bytes, and if the
producers' kernels have a form with that pitch. The operator stays in the graph, as a view with `part_offsets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from tvm_cascade.cascading.geometry import goes_by_pixels, has_pixels
from tvm_cascade.graph import Graph, Op
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.pitch import NotPitchedError, pitched
from tvm_cascade.schedules.rules.moves import read_move

Made = TypeVar("Made", bound=PreparedGraph)
FEW_CONCATS = 4  # up to so many concats are tried one by one, and listed by name in messages


def joinable(prepared: PreparedGraph) -> dict[str, tuple[int, ...]]:
    """Find the concats that can become joins, since all parts can be written in place: by name, each part's start."""
    pitches = _Pitches(prepared)
    return {op.name: offsets for op in prepared.graph.ops if (offsets := _offsets(prepared, op, pitches))}


def listed(names: tuple[str, ...]) -> str:
    """Format concats for messages: names, or their number if there are more than `FEW_CONCATS`."""
    return ", ".join(names) if len(names) <= FEW_CONCATS else f"{len(names)} concats"


def joined(prepared: Made, joins: Mapping[str, tuple[int, ...]]) -> Made:
    """Turn the concats in `joins`, from `joinable`, into joins, which need no kernel."""
    ops, kernels, computed = list(prepared.graph.ops), list(prepared.kernels), list(prepared.extracted.operators)
    for op in prepared.graph.ops:
        if op.name in joins:
            own = replace(op.kernels, row_tables=())
            joined = replace(op, view=True, part_offsets=joins[op.name], in_place=(), scratch_bytes=0, kernels=own)
            ops[op.index], kernels[op.index], computed[op.index] = joined, None, None
    extracted = replace(prepared.extracted, operators=tuple(computed))
    return replace(prepared, graph=replace(prepared.graph, ops=tuple(ops)), extracted=extracted, kernels=tuple(kernels))


def _offsets(prepared: PreparedGraph, op: Op, pitches: _Pitches) -> tuple[int, ...]:
    """Return each part's offset in bytes, in the output or (along the channels) in its pixels; empty if not joinable."""
    graph, made = prepared.graph, prepared.extracted.operators[op.index]
    if _along_rows(graph, op):
        rows = [graph.tensors[t].rows * graph.tensors[t].row_bytes for t in op.inputs]
        starts = tuple(sum(rows[:k]) for k in range(len(rows)))
        return starts if all(s % 4 == 0 and _free(graph, op, t) for s, t in zip(starts, op.inputs, strict=True)) else ()
    move = read_move(made.spec) if op.kind == "concat" and made is not None else None
    whole = graph.tensors[op.outputs[0]]
    if move is None or move.ends or not has_pixels(whole) or len(set(op.inputs)) < len(op.inputs):
        return ()
    units = tuple(graph.tensors[t].row_bytes // max(graph.tensors[t].columns, 1) for t in op.inputs)
    if move.blocks != whole.columns or tuple(r.bytes for r in move.runs) != units:
        return ()
    pitch = whole.row_bytes // whole.columns
    if not all(_free(graph, op, t) and pitches.apart(graph.producer[t], u, pitch)
               for t, u in zip(op.inputs, units, strict=True)):  # fmt: skip
        return ()
    offsets = tuple(sum(units[:k]) for k in range(len(units)))
    return offsets if all(o % 4 == 0 for o in (*offsets, pitch)) else ()


def _along_rows(graph: Graph, op: Op) -> bool:
    """Test that `op` is a concat along the rows, with distinct parts and without requantization."""
    whole, tables = graph.tensors[op.outputs[0]], op.attrs.get("table_of_input")
    plain = op.kind == "concat" and isinstance(tables, tuple) and set(tables) == {-1} and has_pixels(whole)
    return plain and op.attrs.get("axis") == whole.row_axis and len(set(op.inputs)) == len(op.inputs)


def _free(graph: Graph, op: Op, part: int) -> bool:
    """Test a part for being read by the concat alone, and being the only output of a non-view operator with pixel
    kernels.
    """
    maker = graph.producer[part]
    if maker is None or graph.consumers[part] != (op.index,) or part in graph.outputs:
        return False
    node = graph.ops[maker]
    return not node.view and len(node.outputs) == 1 and goes_by_pixels(graph, maker)


class _Pitches:
    """The kernels with a form for pixels that lie apart; kernels that share a function are examined once."""

    def __init__(self, prepared: PreparedGraph) -> None:
        self._prepared = prepared
        self._known: dict[tuple[int, bool, int, int], tuple[RowKernel, bool]] = {}  # the kernel keeps its function's id

    def apart(self, maker: int | None, unit: int, pitch: int) -> bool:
        """Test that all kernels of operator `maker` have a form with `unit`-byte pixels `pitch` bytes apart."""
        assert maker is not None
        return all(self._able(kernel, unit, pitch) for kernel in self._prepared.row_and_pixel_kernels(maker))

    def _able(self, kernel: RowKernel, unit: int, pitch: int) -> bool:
        key = id(kernel.code), kernel.whole, unit, pitch
        if key not in self._known:
            try:
                pitched(kernel, unit, pitch)
                able = True
            except NotPitchedError:
                able = False
            self._known[key] = kernel, able
        return self._known[key][1]
