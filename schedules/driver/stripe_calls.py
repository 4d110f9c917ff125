"""The calls of one row of one stripe: pointers moved to a stripe's columns, and what two stripes share copied."""

# TVM's nodes get their fields and operators at run time, where no type checker sees them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportIndexIssue=false, reportReturnType=false
from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import tvm
from tvm import tirx
from tvm.ir import Call
from tvm.tirx import BufferStore, Evaluate, For, IfThenElse

from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import ITEM_BYTES, Op
from tvm_cascade.schedules.driver.places import Place, first_of, i32, row_slot, sequence
from tvm_cascade.schedules.forms.stripe_patch import NONE, StripePatch
from tvm_cascade.schedules.kernels.accumulate import Accumulating
from tvm_cascade.schedules.kernels.kernel import Param, Role, RowKernel

if TYPE_CHECKING:
    from tvm_cascade.schedules.driver.calls import Calls
    from tvm_cascade.schedules.forms.choose import Kernel

Expr = tvm.ir.Expr


class StripeCalls:
    """Calls of the kernels of a plan's segments in stripes."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.plan, self.graph, self.places = calls.plan, calls.graph, calls.places
        self.memory, self.offsets = calls.memory, calls.offsets
        self.stripes: dict[int, tuple[Expr, int]] = {}  # by segment: the stripe, and its table in the uint16 view
        located = [k.located for k in calls.kernels if isinstance(k, StripePatch)]
        taps = max((n for own in located for n in own), default=0)
        self.table = tirx.decl_buffer((taps,), "int32", "rows") if taps else None

    def columns(self, actor: int, segment: int) -> tuple[Expr, Expr]:
        """The columns that an operator makes (or sums up) in the stripe at hand."""
        stripe, table = self.stripes[segment]
        ops = self.plan.segments[segment].ops
        bounds = self.memory.view("flash", "uint16")
        at = stripe * (2 * len(ops)) + (table + 2 * ops.index(actor))
        return bounds[at].astype("int32"), bounds[at + 1].astype("int32")

    def _lane(self, t: int, segment: int) -> tuple[Place, int, int, Expr]:
        """Place of a tensor, elements of a pixel, columns of a row in its storage, and the column that lies first."""
        place, tensor, storage = self.places[t], self.graph.tensors[t], self.plan.storages[t]
        unit = place.row_bytes // tensor.columns // ITEM_BYTES[tensor.dtype]
        if not storage.columns:
            return place, unit, tensor.columns, i32(0)
        maker = self.graph.producer[t]
        assert maker is not None
        return place, unit, storage.columns, self._first(t, self.columns(maker, segment)[0], segment)

    def _first(self, t: int, x: Expr, segment: int) -> Expr:
        """The first column of a tensor that a stripe has whose own begin at `x`: kept ones lie before them."""
        kept, maker = self.plan.storages[t].halo_columns, self.graph.producer[t]
        if not kept:
            return x
        ranges = self.plan.segments[segment]
        return tirx.max(x - kept, i32(ranges.stripes[0][ranges.ops.index(maker)][0]))

    def _kept(self, t: int, y: Expr, x: Expr, segment: int, back: bool) -> list[tirx.Stmt]:
        """Copy the columns before `x` that two stripes share of row `y` out of their store, or with `back` into it."""
        if not self.plan.storages[t].halo_columns:
            return []
        place, unit, pitch, first = self._lane(t, segment)
        tensor, item = self.graph.tensors[t], ITEM_BYTES[place.dtype]
        slot = y if place.height >= tensor.rows else tirx.truncmod(y, i32(place.height))
        start = self._first(t, x, segment)
        arena = self.memory.view("arena", place.dtype)
        i = tirx.Var(f"{'keep' if back else 'take'}_{t}", "int32")
        ring = place.offset // item + (slot * pitch + start - first) * unit + i
        store = self.offsets[f"kept {t}"] // item + y * (self.plan.storages[t].halo_columns * unit) + i
        source, target = (ring, store) if back else (store, ring)
        return [For(i, 0, (x - start) * unit, tirx.ForKind.SERIAL, BufferStore(arena, arena[source], [target]))]

    def step(self, op: Op, kernel: Kernel, y: Expr, segment: int) -> tirx.Stmt:
        """One row of a stripe: pointers are moved so that column 0 of a tensor lies where a kernel looks for it."""
        x0, x1 = self.columns(op.index, segment)
        if isinstance(kernel, Accumulating):
            t = op.inputs[0]
            place, unit, pitch, first = self._lane(t, segment)
            columns = self.graph.tensors[t].columns
            slot = y if place.height >= self.graph.tensors[t].rows else tirx.truncmod(y, i32(place.height))
            at = place.offset // ITEM_BYTES[place.dtype] + (slot * pitch + x0 - first) * unit
            return self.calls.piece(op, kernel, at, (y * columns + x0) * unit, (y * columns + x1) * unit, segment)
        if isinstance(kernel, StripePatch):
            call = self._fast(op, kernel, y, segment)
        else:
            assert isinstance(kernel, RowKernel)
            args = [self._stripe_argument(op, kernel, param, y, x0, x1, segment) for param in kernel.params]
            if self.calls.macs is not None:
                args.append(self.calls.macs)
            call = Evaluate(Call(self.calls.functions[op.index][0], args, ret_ty="int32"))
        taken = [s for t in op.outputs for s in self._kept(t, y, x0, segment, back=False)]
        given = [s for t in op.outputs for s in self._kept(t, y, x1, segment, back=True)]
        return sequence([*taken, call, *given])

    def _stripe_argument(
        self, op: Op, kernel: RowKernel, param: Param, y: Expr, x0: Expr, x1: Expr, segment: int
    ) -> Expr:
        match param.role:
            case Role.INPUT:
                place, unit, _, first = self._lane(op.inputs[param.index], segment)
                return self.memory.address("arena", place.dtype, place.offset // ITEM_BYTES[place.dtype] - first * unit)
            case Role.ROW_STRIDE:
                _, unit, pitch, _ = self._lane(op.inputs[param.index], segment)
                return i32(pitch * unit)
            case Role.PLANE:
                return i32(0)
            case Role.OUTPUT:
                t = op.outputs[param.index]
                place, unit, pitch, first = self._lane(t, segment)
                slot = y if place.height >= self.graph.tensors[t].rows else tirx.truncmod(y, i32(place.height))
                at = place.offset // ITEM_BYTES[place.dtype] + (slot * pitch - first) * unit
                return self.memory.address("arena", place.dtype, at)
            case _:
                return self.calls.argument(op, kernel, param, y, x0, x1, segment)

    def _fast(self, op: Op, patch: StripePatch, y: Expr, segment: int) -> tirx.Stmt:
        """The call of the row kernel that serves the stripe at hand."""
        stripe, _ = self.stripes[segment]
        body = self._variant(op, patch, patch.stripes[-1][1], y, segment)
        for (_, which), (stop, _) in reversed(list(pairwise(patch.stripes))):
            body = IfThenElse(tirx.LT(stripe, i32(stop)), self._variant(op, patch, which, y, segment), body)
        return body

    def _variant(self, op: Op, patch: StripePatch, which: int, y: Expr, segment: int) -> tirx.Stmt:
        if which == NONE:
            return Evaluate(i32(0))
        x0, _ = self.columns(op.index, segment)
        calls: list[tirx.Stmt] = []
        args: list[Expr] = []
        for param in patch.variants[which].kernel.params:
            match param.role:
                case Role.INPUT if patch.located[param.index]:
                    calls.append(self._locate(op, patch, param.index, (y, x0), segment))
                    place = self.places[op.inputs[param.index]]
                    args.append(self.memory.address("arena", place.dtype, place.offset))
                case Role.INPUT:
                    args.append(self._pixel(op.inputs[param.index], y, x0, segment))
                case Role.ROWS:
                    assert self.table is not None
                    args.append(tirx.address_of(self.table[i32(0)]))
                case Role.OUTPUT:
                    args.append(self._pixel(op.outputs[param.index], y, x0, segment))
                case Role.Y:
                    args.append(y if any(patch.located) else i32(0))
                case Role.SLOT:
                    args.append(i32(0))
                case Role.HEIGHT:
                    args.append(i32(1))
                case Role.SCRATCH:
                    args.append(self.memory.address("arena", "int8", self.offsets[f"scratch {segment}"]))
                case Role.CONSTANT:
                    offset = self.calls.constants[op.index][which][param.index]
                    args.append(self.memory.address("flash", param.dtype, offset))
                case _:
                    raise ValidationError(f"{op.name}: a row kernel in a stripe has no parameter {param.role.value}")
        return sequence([*calls, Evaluate(Call(self.calls.functions[op.index][which], args, ret_ty="int32"))])

    def _pixel(self, t: int, y: Expr, x: Expr, segment: int) -> Expr:
        """Pointer to column `x` of row `y` of a tensor."""
        place, unit, pitch, first = self._lane(t, segment)
        slot = y if place.height >= self.graph.tensors[t].rows else tirx.truncmod(y, i32(place.height))
        at = place.offset // ITEM_BYTES[place.dtype] + (slot * pitch + x - first) * unit
        return self.memory.address("arena", place.dtype, at)

    def _locate(self, op: Op, patch: StripePatch, position: int, at: tuple[Expr, Expr], segment: int) -> tirx.Stmt:
        """Write where the rows of the window of row and column `at` begin, from its first column inside of the tensor."""
        assert self.table is not None
        t, window, across = op.inputs[position], op.windows[position], op.columns[position]
        assert window is not None and across is not None
        place, unit, pitch, first = self._lane(t, segment)
        column = first_of(across, at[1]) - across.padding
        column = tirx.max(column, i32(0)) if across.padding > 0 else column
        slot = row_slot(window, at[0], place, self.graph.tensors[t].rows)
        table = tirx.address_of(self.table[i32(0)])
        args = [
            table,
            i32(patch.located[position]),
            slot,
            i32(place.height),
            i32(pitch * unit),
            (column - first) * unit,
        ]
        return Evaluate(Call(self.calls.functions[op.index][-1], args, ret_ty="int32"))
