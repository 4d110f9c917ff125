"""Row tables: the start of each kernel row of a step's window in the input's storage, and the filling functions.

In a ring of pixels, each kernel row of a window is a run of pixels, and as the ring is larger than the window, at most
a run wraps around the ring's end. Every run's offset goes into a table in scratch; the wrapping run is copied behind
the table, in one piece. So a row kernel reads each kernel row contiguously, and scratch holds at most one kernel row
instead of the window (`cascading.row_tables`). A row in a stripe's ring has all columns the stripe needs: no run wraps,
nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm_cascade.cores import KernelTarget
from tvm_cascade.footprints import RowTable as RowTableFootprint
from tvm_cascade.graph import ITEM_BYTES, Tensor, Window
from tvm_cascade.schedules.kernels.kernel import Deferred
from tvm_cascade.schedules.rules.emit import best_step
from tvm_cascade.schedules.tir import Expr, PrimFunc, Stmt, Var, for_range, i32, ir, pointer_var, sequence, tirx


@dataclass(frozen=True)
class RowTable:
    """The row table of an input, for pixel tile steps."""

    fill: Deferred  # (x, slot, pixels, to, away, valid, y): writes the table, and copies the run that wraps behind it
    fill_whole: Deferred  # of an input that is whole, where nothing wraps
    footprint: RowTableFootprint

    @property
    def run_offset(self) -> int:
        """Return the bytes from the table's start to the copied run."""
        return self.footprint.bytes_with_run(0)


def row_table(tensor: Tensor, rows: int, row: Window, column: Window, core: KernelTarget) -> RowTable:
    """Build the row table of an input, read through windows `row` and `column` by an output of `rows` rows."""
    pixel = tensor.shape[3] * ITEM_BYTES[tensor.dtype]
    footprint = RowTableFootprint(row.extent, pixel, column.span, column.stride)
    behind = footprint.bytes_with_run(0)
    form = _fill, tensor.shape, tensor.dtype, rows, row, behind, core.backend, core.mve
    return RowTable(
        Deferred.of(lambda: _fill(tensor, rows, row, behind, core), form),
        Deferred.of(lambda: _fill_whole(tensor, row), (_fill_whole, tensor.shape, tensor.dtype, row)),
        footprint,
    )


def _fill(tensor: Tensor, rows: int, row: Window, table_bytes: int, core: KernelTarget) -> PrimFunc:
    """Build `fill(x, slot, pixels, to, away, valid, y) -> 0`, which writes the table of output row y to `to`.

    `x` is a ring of `pixels` pixels; the window's first pixel inside the tensor is at slot `slot`. A run has `valid`
    pixels. The wrapping run is copied to `away` elements from `x`, by the largest unit that divides a pixel: 16 bytes
    (with the C back end or MVE), 4 bytes or an element.
    """
    height, width, channels = tensor.shape[1:]
    item = ITEM_BYTES[tensor.dtype]
    words = channels * item % 4 == 0
    dtype = "int32" if words else tensor.dtype
    quads = channels * item % 16 == 0 and (core.backend == "c" or core.mve)
    lanes = 4 if quads else 1
    unit = (channels * item // 4 if words else channels) // lanes
    x, to = pointer_var("x", tensor.dtype), pointer_var("to", "int32")
    slot, pixels, away, valid, y = (tirx.Var(v, "int32") for v in ("slot", "pixels", "away", "valid", "y"))
    source = tirx.decl_buffer((prod(tensor.shape[1:3]) * unit * lanes,), dtype, "source", data=x)
    table = tirx.decl_buffer((row.extent,), "int32", "table", data=to)
    target = tirx.decl_buffer((1 << 30,), dtype, "target", data=to)
    first, base, i = (tirx.Var(v, "int32") for v in ("first", "base", "i"))
    # memory cells, not bindings: TVM would substitute each binding's value into its uses, one tap's into the next
    at, torn, place = (tirx.decl_buffer((1,), "int32", v) for v in ("at", "torn", "place"))

    def store(cell: Any, value: Expr) -> Stmt:
        return tirx.BufferStore(cell, value, [i32(0)])

    def turned(pixel: Expr) -> Expr:
        return pixel - tirx.Select(pixel >= pixels, pixels, i32(0))

    entries: list[Stmt] = [store(torn, i32(-1))]  # the first pixel of the run that wraps
    for tap in range(row.extent):
        wraps = at[0] + valid > pixels
        if (rows - 1) * row.stride - row.padding + tap >= height:
            wraps = tirx.all(wraps, first + tap < height)
        entries += [
            store(at, turned(base + tap * width)),
            tirx.BufferStore(table, tirx.Select(wraps, away, at[0] * channels), [i32(tap)]),
            store(torn, tirx.Select(wraps, at[0], torn[0])),
        ]
    move = _move(source, target, quads, core)
    behind = table_bytes // (4 if words else item) // lanes
    pixel = tirx.SeqStmt(
        [
            store(place, turned(torn[0] + i)),
            _units(unit, lambda k: move(i * unit + behind + k, place[0] * unit + k)),
        ]
    )
    stmts = [
        *(tirx.DeclBuffer(buffer, data=data) for buffer, data in ((source, x), (table, to), (target, to))),
        *(tirx.AllocBuffer(cell) for cell in (at, torn, place)),
        tirx.Bind(first, y * row.stride - row.padding),
        tirx.Bind(base, slot - (tirx.max(first, i32(0)) - first) * width if row.padding else slot),
        *entries,
        tirx.IfThenElse(torn[0] >= 0, for_range(i, valid, pixel), None),
        tirx.Return(i32(0)),
    ]
    func = tirx.PrimFunc([x, slot, pixels, to, away, valid, y], tirx.SeqStmt(stmts), ir.PrimType("int32"))
    return func.with_attr("tirx.noalias", True)


def _fill_whole(tensor: Tensor, row: Window) -> PrimFunc:
    """Build the function of `_fill` for an input that is whole: kernel rows lie as far apart as rows of the input."""
    _, width, channels = tensor.shape[1:]
    x, to = pointer_var("x", tensor.dtype), pointer_var("to", "int32")
    slot, pixels, away, valid, y = (tirx.Var(v, "int32") for v in ("slot", "pixels", "away", "valid", "y"))
    table = tirx.decl_buffer((row.extent,), "int32", "table", data=to)
    first, base = (tirx.Var(v, "int32") for v in ("first", "base"))
    above = tirx.max(first, i32(0)) - first if row.padding else i32(0)  # rows of padding: the table's first rows
    stmts = [
        tirx.DeclBuffer(table, data=to),
        tirx.Bind(first, y * row.stride - row.padding),
        tirx.Bind(base, (slot - above * width) * channels),
        *(tirx.BufferStore(table, base + tap * width * channels, [i32(tap)]) for tap in range(row.extent)),
        tirx.Return(i32(0)),
    ]
    func = tirx.PrimFunc([x, slot, pixels, to, away, valid, y], tirx.SeqStmt(stmts), ir.PrimType("int32"))
    return func.with_attr("tirx.noalias", True)


def _move(source: Var, target: Var, quads: bool, core: KernelTarget) -> Callable[[Expr, Expr], Stmt]:
    """Write the copy of a unit from `source` to `target`: an element, or four words."""
    if not quads:
        return lambda to, at: tirx.BufferStore(target, source[at], [to])
    if core.backend == "c":
        return lambda to, at: tirx.Evaluate(
            tirx.call_extern("int32", "tc_copy16", tirx.address_of(target[to * 4]), tirx.address_of(source[at * 4]))
        )

    def four(at: Expr) -> Expr:
        return tirx.Ramp(at * 4, i32(1), 4)

    return lambda to, at: tirx.BufferStore(target, tirx.BufferLoad(source, [four(at)]), [four(to)])


_UNROLL = 8  # most units per loop iteration


def _units(count: int, store: Callable[[Expr], Stmt]) -> Stmt:
    """Write `store(unit)` for each of `count` units, in a partly unrolled loop."""
    step = best_step(count, _UNROLL)
    k = tirx.Var("k", "int32")
    stores: list[Stmt] = [store((k * step if count > step else i32(0)) + u) for u in range(step)]
    body = sequence(stores)
    return for_range(k, count // step, body) if count > step else body


def ring_row_table() -> PrimFunc:
    """Build `fill(table, taps, slot, height, pitch, start) -> 0`: writes the element offsets of `taps` successive ring
    rows.

    The first row is in slot `slot` of a ring of `height` rows, `pitch` elements apart; each begins at element `start`.
    """
    table = pointer_var("table", "int32")
    names = ("taps", "slot", "height", "pitch", "start")
    taps, slot, height, pitch, start = (tirx.Var(n, "int32") for n in names)
    target = tirx.decl_buffer((1 << 20,), "int32", "target", data=table)
    row, tap = tirx.decl_buffer((1,), "int32", "row"), tirx.Var("tap", "int32")
    after = tirx.Var("after", "int32")
    body = [
        tirx.BufferStore(target, row[0] * pitch + start, [tap]),
        tirx.Bind(after, row[0] + 1),
        tirx.BufferStore(row, tirx.Select(after >= height, i32(0), after), [i32(0)]),
    ]
    stmts = [
        tirx.DeclBuffer(target, data=table),
        tirx.AllocBuffer(row),
        tirx.BufferStore(row, slot, [i32(0)]),
        for_range(tap, taps, tirx.SeqStmt(body)),
        tirx.Return(i32(0)),
    ]
    return tirx.PrimFunc([table, taps, slot, height, pitch, start], tirx.SeqStmt(stmts), ir.PrimType("int32"))
