"""Row tables: where each kernel row of a step's window begins, and the functions that write them.

By pixels, each kernel row of a window is one run of pixels in the input's ring, and as a ring is larger than the window,
its end falls into one of these runs at most. The offset of every run goes into a table in scratch, and the run that wraps
around is copied behind the table. So a fast row kernel reads rows from where the table says, and scratch holds one kernel
row, not the window. A row of a stripe's ring has all the columns that the stripe needs: no run wraps, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm_cascade.cores import KernelTarget
from tvm_cascade.graph import ITEM_BYTES, Tensor, Window
from tvm_cascade.schedules.rules.emit import best_step
from tvm_cascade.schedules.tir import Expr, PrimFunc, Stmt, Var, for_range, i32, ir, pointer_var, sequence, tirx


@dataclass(frozen=True)
class RowTable:
    """The row table of one input in steps by pixels."""

    fill: PrimFunc  # (x, slot, pixels, to, away, valid, y): writes the table, and copies the run that wraps behind it
    table_bytes: int  # of the table; the copied run lies behind it
    fixed_bytes: int  # of scratch for a step of n pixels: fixed_bytes + n * pixel_bytes
    pixel_bytes: int

    def bytes(self, pixels: int) -> int:
        return self.fixed_bytes + pixels * self.pixel_bytes


def row_table(tensor: Tensor, rows: int, row: Window, column: Window, core: KernelTarget) -> RowTable:
    """The row table of an input of which an output of `rows` rows reads windows."""
    pixel = tensor.shape[3] * ITEM_BYTES[tensor.dtype]
    table = -(-row.span // 4) * 16  # rows are copied up to sixteen bytes at a time
    fill = _fill(tensor, rows, row, table, core)
    return RowTable(fill, table, table + (column.span - column.stride) * pixel, column.stride * pixel)


def _fill(tensor: Tensor, rows: int, row: Window, table_bytes: int, core: KernelTarget) -> PrimFunc:
    """The function that writes the table, and copies the run of `valid` pixels that wraps to `away` elements from `x`.

    It copies pixel by pixel, four words or one at a time where pixels are whole ones.
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
    # in memory, not bound: TVM puts the value of a binding in its place wherever it is read, of all taps into one another
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


def _move(source: Var, target: Var, quads: bool, core: KernelTarget) -> Callable[[Expr, Expr], Stmt]:
    """A copy of one unit of `source` to one of `target`: of an element, or of four words."""
    if not quads:
        return lambda to, at: tirx.BufferStore(target, source[at], [to])
    if core.backend == "c":
        return lambda to, at: tirx.Evaluate(
            tirx.call_extern("int32", "tc_copy16", tirx.address_of(target[to * 4]), tirx.address_of(source[at * 4]))
        )

    def four(at: Expr) -> Expr:
        return tirx.Ramp(at * 4, i32(1), 4)

    return lambda to, at: tirx.BufferStore(target, tirx.BufferLoad(source, [four(at)]), [four(to)])


_UNROLL = 8  # units a pass


def _units(count: int, store: Callable[[Expr], Stmt]) -> Stmt:
    """`store` for every unit, some of them a pass."""
    step = best_step(count, _UNROLL)
    k = tirx.Var("k", "int32")
    stores: list[Stmt] = [store((k * step if count > step else i32(0)) + u) for u in range(step)]
    body = sequence(stores)
    return for_range(k, count // step, body) if count > step else body


def ring_row_table() -> PrimFunc:
    """`fill(table, taps, slot, height, pitch, start) -> 0`: the elements at which `taps` kernel rows of a ring begin.

    The first lies in slot `slot` of a ring of `height` rows, `pitch` elements from row to row, from element `start` on.
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
