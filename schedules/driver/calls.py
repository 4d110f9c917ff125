"""The call of one step of an operator: what each parameter of its kernel gets.

By rows, step k is output row k, or the k-th rows of a step's height. By pixels, with n = ceil(columns / tile.columns), it
is row k // n, columns from (k % n) * tile.columns.
"""

# TVM's nodes get their fields and operators at run time, where no type checker sees them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportIndexIssue=false, reportReturnType=false
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import tvm
from tvm import tirx
from tvm.ir import Call, GlobalVar
from tvm.tirx import Evaluate, For, IfThenElse, SeqStmt

from tvm_cascade.cascading.flow import has_pixels
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import ITEM_BYTES, Op, Window
from tvm_cascade.schedules.driver.places import Memory, Place, first_of, i32, places, row_slot, sequence, strides
from tvm_cascade.schedules.driver.stripe_calls import StripeCalls
from tvm_cascade.schedules.forms.choose import Kernel, together, wrapping
from tvm_cascade.schedules.forms.patch import Patch
from tvm_cascade.schedules.kernels.accumulate import Accumulating
from tvm_cascade.schedules.kernels.kernel import Param, Role, RowKernel

Expr = tvm.ir.Expr
Constants = Sequence[Sequence[Sequence[int]]]  # by operator and kernel: offsets of its constants in flash


class Calls:
    """Calls of a plan's kernels, for its driver."""

    def __init__(
        self,
        plan: Plan,
        kernels: Sequence[Kernel | None],
        functions: Sequence[Sequence[GlobalVar]],
        constants: Constants,
        memory: Memory,
        macs: tirx.Var | None,
        fetch: str | None,
        host_fetch: GlobalVar,
    ) -> None:
        self.plan, self.graph = plan, plan.graph
        self.kernels, self.functions, self.constants = kernels, functions, constants
        self.memory, self.macs = memory, macs
        self.fetch, self.host_fetch = fetch, host_fetch
        self.places = places(plan)
        self.offsets = dict(zip(plan.buffers, plan.allocation.offsets, strict=True))
        self.striped = StripeCalls(self)

    def operator(self, index: int, step: Expr, segment: int) -> tirx.Stmt:
        """Step `step` of an operator (all of it, with a whole kernel)."""
        op, kernel = self.graph.ops[index], self.kernels[index]
        assert kernel is not None
        if segment in self.striped.stripes:
            return self.striped.step(op, kernel, step, segment)
        if isinstance(kernel, Patch):
            return self._patch(op, kernel, step, segment)
        if isinstance(kernel, Accumulating):
            return self._accumulate(op, kernel, step, segment)
        self._check(op, kernel)
        height, rows = self.plan.segments[segment].tile.rows, self.graph.tensors[op.outputs[0]].rows
        if kernel.whole or height == 1:
            return self._call(op, kernel, step, segment)
        if kernel.rows == min(height, rows):
            return self._call(op, kernel, step * kernel.rows, segment)
        row = tirx.Var(f"row_{index}", "int32")
        count = i32(min(height, rows)) if rows % height in (0, rows) else tirx.min(i32(height), rows - step * height)
        return For(row, 0, count, tirx.ForKind.SERIAL, self._call(op, kernel, step * height + row, segment))

    def _call(self, op: Op, kernel: RowKernel, step: Expr, segment: int) -> tirx.Stmt:
        """The call for one output row (the first of several, with a kernel of several), some pixels or the whole."""
        bound, y, x0, x1 = self._position(op, step, segment) if kernel.pixels else ([], step, i32(0), i32(0))
        args = [self.argument(op, kernel, param, y, x0, x1, segment) for param in kernel.params]
        if self.macs is not None:
            args.append(self.macs)
        return sequence([*bound, Evaluate(Call(self.functions[op.index][0], args, ret_ty="int32"))])

    def _accumulate(self, op: Op, sums: Accumulating, step: Expr, segment: int) -> tirx.Stmt:
        """Consume the next row, or run of pixels, of the input; in two parts where a run wraps around its ring."""
        t = op.inputs[0]
        while self.plan.storages[t].root is not None:
            t = self.plan.storages[t].root
        owner, place, chunk = self.graph.tensors[t], self.places[t], self.plan.segments[segment].tile.columns
        pixels = owner.columns if chunk and has_pixels(owner) else 1
        unit = owner.row_bytes // ITEM_BYTES[owner.dtype] // pixels
        bound, y, x0, x1 = self._tile(f"{op.index}", step, pixels, chunk if pixels > 1 else 1)
        slots = place.pixels if pixels > 1 else place.height
        first = y * pixels + x0
        whole = slots >= owner.rows * pixels
        slot = first if whole else tirx.truncmod(first, i32(slots))
        begin, end = first * unit, (y * pixels + x1) * unit
        base = place.offset // ITEM_BYTES[place.dtype]
        if whole or pixels == 1 or together(self.plan, t, chunk):
            return sequence([*bound, self.piece(op, sums, base + slot * unit, begin, end, segment)])
        wraps = tirx.GT(slot + (x1 - x0), i32(slots))
        middle = begin + (i32(slots) - slot) * unit
        parts = [
            self.piece(op, sums, base + slot * unit, begin, middle, segment),
            self.piece(op, sums, i32(base), middle, end, segment),
        ]
        single = self.piece(op, sums, base + slot * unit, begin, end, segment)
        return sequence([*bound, IfThenElse(wraps, SeqStmt(parts), single)])

    def piece(self, op: Op, sums: Accumulating, at: Expr, begin: Expr, end: Expr, segment: int) -> tirx.Stmt:
        args: list[Expr] = []
        for param in sums.kernel.params:
            match param.role:
                case Role.INPUT:
                    args.append(self.memory.address("arena", param.dtype, at))
                case Role.ACCUMULATOR:
                    args.append(self.memory.address("arena", param.dtype, self.offsets[f"accumulator {op.index}"]))
                case Role.BEGIN:
                    args.append(begin)
                case Role.END:
                    args.append(end)
                case Role.OUTPUT:
                    args.append(self.memory.address("arena", param.dtype, self.places[op.outputs[param.index]].offset))
                case _:
                    args.append(self.argument(op, sums.kernel, param, i32(0), i32(0), i32(0), segment))
        if self.macs is not None:
            args.append(self.macs)
        return Evaluate(Call(self.functions[op.index][0], args, ret_ty="int32"))

    def _patch(self, op: Op, patch: Patch, step: Expr, segment: int) -> tirx.Stmt:
        """Locate the window of a step's pixels, then run the row kernel on it."""
        bound, y, x0, x1 = self._position(op, step, segment)
        body = self._serving(op, patch, patch.steps, (y, x0), segment)
        wraps: list[Expr] = []
        for position, t in wrapping(self.plan, op.index, patch):
            slot = self._out_slot(t, y, x0) if position is None else self._pixel_input(op, position, y, x0)[1]
            wraps.append(tirx.GT(slot + (x1 - x0), i32(self.places[t].pixels)))
        if wraps:
            offset = tirx.Var(f"pixel_{op.index}", "int32")
            single = self._serving(op, patch, patch.singles, (y, x0 + offset), segment)
            each = For(offset, 0, x1 - x0, tirx.ForKind.SERIAL, single)
            body = IfThenElse(tirx.any(*wraps) if len(wraps) > 1 else wraps[0], each, body)
        return sequence([*bound, body])

    def _serving(
        self, op: Op, patch: Patch, runs: Sequence[tuple[int, int]], at: tuple[Expr, Expr], segment: int
    ) -> tirx.Stmt:
        """The calls of a step from row and column `at` on, by the variant that serves the column."""
        body = self._variant(op, patch, runs[-1][1], at, segment)
        for (_, which), (stop, _) in reversed(list(pairwise(runs))):
            body = IfThenElse(tirx.LT(at[1], i32(stop)), self._variant(op, patch, which, at, segment), body)
        return body

    def _variant(self, op: Op, patch: Patch, which: int, at: tuple[Expr, Expr], segment: int) -> tirx.Stmt:
        """The calls of a step from row and column `at` on by one of the variants."""
        locators = list(self.functions[op.index][len(patch.variants) :])
        scratch = self.offsets.get(f"scratch {segment}", 0)
        calls: list[tirx.Stmt] = []
        for position, located in enumerate(patch.located):
            if located is None:
                continue
            place, slot = self._pixel_input(op, position, *at)
            item = ITEM_BYTES[place.dtype]
            table = scratch + patch.located_offset(position)
            away = table // item + located.table // item - place.offset // item
            ends = [
                self.memory.address("arena", place.dtype, place.offset),
                self.memory.address("arena", "int32", table),
            ]
            valid = i32(patch.variants[which].form.valid)
            args = [ends[0], slot, i32(place.pixels), ends[1], i32(away), valid, at[0]]
            calls.append(Evaluate(Call(locators.pop(0), args, ret_ty="int32")))
        calls.append(self._on_patch(op, patch, which, at, segment))
        return sequence(calls)

    def _on_patch(self, op: Op, patch: Patch, which: int, at: tuple[Expr, Expr], segment: int) -> tirx.Stmt:
        args: list[Expr] = []
        for param in patch.variants[which].kernel.params:
            match param.role:
                case Role.INPUT:
                    place, slot = self._pixel_input(op, param.index, *at)
                    item = ITEM_BYTES[place.dtype]
                    pixel = place.row_bytes // self.graph.tensors[op.inputs[param.index]].columns // item
                    start = place.offset // item
                    where = start + slot * pixel if patch.located[param.index] is None else i32(start)
                    args.append(self.memory.address("arena", place.dtype, where))
                case Role.ROWS:
                    table = self.offsets[f"scratch {segment}"] + patch.located_offset(param.index)
                    args.append(self.memory.address("arena", "int32", table))
                case Role.OUTPUT:
                    args.append(self._pixel_output(op.outputs[param.index], *at))
                case Role.Y:
                    args.append(at[0] if any(patch.located) else i32(0))
                case Role.SLOT:
                    args.append(i32(0))
                case Role.HEIGHT:
                    args.append(i32(1))
                case Role.SCRATCH:
                    offset = self.offsets[f"scratch {segment}"] + patch.own_offset
                    args.append(self.memory.address("arena", "int8", offset))
                case Role.CONSTANT:
                    args.append(self.memory.address("flash", param.dtype, self.constants[op.index][which][param.index]))
                case _:
                    raise ValidationError(f"{op.name}: a row kernel on a patch has no parameter {param.role.value}")
        return Evaluate(Call(self.functions[op.index][which], args, ret_ty="int32"))

    def _pixel_input(self, op: Op, position: int, y: Expr, x0: Expr) -> tuple[Place, Expr]:
        t = op.inputs[position]
        place, tensor = self.places[t], self.graph.tensors[t]
        return place, _pixel_slot(op.windows[position], op.columns[position], y, x0, tensor.columns, place, tensor.rows)

    def _pixel_output(self, t: int, y: Expr, x0: Expr) -> Expr:
        place, tensor = self.places[t], self.graph.tensors[t]
        item = ITEM_BYTES[place.dtype]
        at = place.offset // item + self._out_slot(t, y, x0) * (place.row_bytes // tensor.columns // item)
        return self.memory.address("arena", place.dtype, at)

    def _out_slot(self, t: int, y: Expr, x0: Expr) -> Expr:
        """Slot of a pixel that is written."""
        place, tensor = self.places[t], self.graph.tensors[t]
        pixel = y * tensor.columns + x0
        return pixel if place.pixels >= tensor.rows * tensor.columns else tirx.truncmod(pixel, i32(place.pixels))

    def source(self, t: int, row: Expr) -> Expr:
        """Ask the caller for a row of a streamed input."""
        place, tensor = self.places[t], self.graph.tensors[t]
        slot = row if place.height >= tensor.rows else tirx.truncmod(row, i32(place.height))
        to = self.memory.address("arena", "int8", place.offset + slot * place.row_bytes)
        args = [self.memory.context, i32(self.graph.inputs.index(t)), row, to]
        if self.fetch is None:
            return Call(self.host_fetch, args, ret_ty="int32")
        return tirx.call_extern("int32", self.fetch, *args)

    def _check(self, op: Op, kernel: RowKernel) -> None:
        if kernel.pixels:
            return
        for t in (*op.inputs, *op.outputs):
            if self.places[t].by_pixels:
                raise ValidationError(f"{op.name} runs by rows and {self.graph.tensors[t].name} is kept by pixels")

    def _position(self, op: Op, step: Expr, segment: int) -> tuple[list[tirx.Stmt], Expr, Expr, Expr]:
        columns, chunk = self.graph.tensors[op.outputs[0]].columns, self.plan.segments[segment].tile.columns
        return self._tile(f"{op.index}", step, columns, chunk)

    def _tile(self, name: str, step: Expr, columns: int, chunk: int) -> tuple[list[tirx.Stmt], Expr, Expr, Expr]:
        """Statements that bind, and then: row, first column, first column after the last of a step by pixels."""
        per_row = -(-columns // chunk)
        if per_row == 1:
            return [], step, i32(0), i32(columns)
        y, x0 = tirx.Var(f"y_{name}", "int32"), tirx.Var(f"x_{name}", "int32")
        bound: list[tirx.Stmt] = [
            tirx.Bind(y, tirx.truncdiv(step, i32(per_row))),
            tirx.Bind(x0, (step - y * per_row) * chunk),
        ]
        return bound, y, x0, x0 + chunk if columns % chunk == 0 else tirx.min(x0 + chunk, i32(columns))

    def argument(self, op: Op, kernel: RowKernel, param: Param, y: Expr, x0: Expr, x1: Expr, segment: int) -> Expr:
        match param.role:
            case Role.Y:
                return y
            case Role.X0:
                return x0
            case Role.X1:
                return x1
            case Role.SCRATCH:
                fits = kernel.scratch_bytes <= self.plan.segments[segment].scratch_bytes
                spare = -(-self.plan.peak // 8) * 8
                return self.memory.address("arena", "int8", self.offsets[f"scratch {segment}"] if fits else spare)
            case Role.CONSTANT:
                return self.memory.address("flash", param.dtype, self.constants[op.index][0][param.index])
            case Role.OUTPUT | Role.OUTPUT_PLANE | Role.OUTPUT_BASE | Role.OUTPUT_SLOT | Role.OUTPUT_PIXELS:
                return self._output(op.outputs[param.index], kernel, param, y, x0)
            case _:
                return self._input(op, kernel, param, y, x0)

    def _input(self, op: Op, kernel: RowKernel, param: Param, y: Expr, x0: Expr) -> Expr:
        t = op.inputs[param.index]
        place, tensor = self.places[t], self.graph.tensors[t]
        if param.role is Role.INPUT:
            return self.memory.address("arena", place.dtype, place.offset)
        if param.role is Role.HEIGHT:
            return i32(place.height)
        if param.role is Role.PIXELS:
            return i32(place.pixels)
        window = op.windows[param.index] if op.windows and not kernel.whole else None
        if param.role is Role.SLOT:
            return row_slot(window, y, place, tensor.rows)
        if param.role is Role.PIXEL_SLOT:
            across = op.columns[param.index] if op.columns else None
            return _pixel_slot(window, across, y, x0, tensor.columns, place, tensor.rows)
        plane, stride = strides(tensor, place)
        return i32(plane if param.role is Role.PLANE else stride)

    def _output(self, t: int, kernel: RowKernel, param: Param, y: Expr, x0: Expr) -> Expr:
        place, tensor = self.places[t], self.graph.tensors[t]
        if param.role is Role.OUTPUT_PIXELS:
            return i32(place.pixels)
        if param.role is Role.OUTPUT_SLOT:
            pixel = y * tensor.columns + x0
            return pixel if place.pixels >= tensor.rows * tensor.columns else tirx.truncmod(pixel, i32(place.pixels))
        plane, stride = strides(tensor, place)
        if param.role is Role.OUTPUT_PLANE:
            return i32(plane)
        if kernel.whole or param.role is Role.OUTPUT_BASE:
            return self.memory.address("arena", place.dtype, place.offset)
        slot = y if place.height >= tensor.rows else tirx.truncmod(y, i32(place.height))
        return self.memory.address("arena", place.dtype, place.offset // ITEM_BYTES[place.dtype] + slot * stride)


def _pixel_slot(
    window: Window | None, across: Window | None, y: Expr, x0: Expr, columns: int, place: Place, rows: int
) -> Expr:
    """Slot of the first pixel that can be read: the window's, or the tensor's edge where that is padding."""
    if window is None or window.stride == 0:
        return i32(0)
    row = first_of(window, y) - window.padding
    row = tirx.max(row, i32(0)) if window.padding > 0 else row
    pixel = row * columns
    if across is not None and across.stride > 0:
        column = first_of(across, x0) - across.padding
        pixel = pixel + (tirx.max(column, i32(0)) if across.padding > 0 else column)
    return pixel if place.pixels >= rows * columns else tirx.truncmod(pixel, i32(place.pixels))
