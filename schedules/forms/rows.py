"""Whole-row steps by a one-row kernel, or by a kernel of the whole operator. Every operator has this form."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.errors import ValidationError
from tvm_cascade.schedules.driver.calls import BuiltKernel, Caller
from tvm_cascade.schedules.forms.form import KernelForm, Site, Use, Way
from tvm_cascade.schedules.tir import Expr, Stmt, for_range, i32, tirx


class Rows(KernelForm):
    """Form common to all operators: the row kernel, called for each row of a step."""

    way, fallback = Way.ROWS, True

    def build(self, site: Site, use: Use) -> BuiltKernel | str:
        return RowSteps((site.row,))


FORM = Rows()


@dataclass(frozen=True)
class RowSteps(BuiltKernel):
    """Steps that call a one-row kernel for each row of the tile, or a kernel for the whole operator once."""

    def step(self, caller: Caller, step: Expr) -> Stmt:
        check_rows(caller)
        tile, rows = caller.segment.tile.rows, caller.output()[1].rows
        if self.variants[0].whole or min(tile, rows) == 1:
            return caller.call(step)
        row = tirx.Var(f"row_{caller.op.index}", "int32")
        count = i32(min(tile, rows)) if rows % tile in (0, rows) else tirx.min(i32(tile), rows - step * tile)
        return for_range(row, count, caller.call(step * tile + row))


def check_rows(caller: Caller) -> None:
    """Raise `ValidationError` if a tensor read or written by the operator is in a ring of pixels, or scattered."""
    for t in (*caller.op.inputs, *caller.op.outputs):
        place, name = caller.calls.places[t], caller.graph.tensors[t].name
        if place.by_pixels:
            raise ValidationError(f"{caller.op.name} makes rows, but {name} is a ring of pixels", [caller.op.name])
        if place.scattered:
            why = f"{caller.op.name} cannot find rows of {name}, which have addresses of their own"
            raise ValidationError(why, [caller.op.name])
