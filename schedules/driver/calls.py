"""Kernel calls: emits the TIR calls of a step, with arguments computed from a plan's memory layout.

A kernel form (`schedules.forms`) builds a `BuiltKernel` for an operator in a plan: functions, and the statements of a
step. `BuiltKernel.step` receives a `Caller`, which knows the addresses of tensors, scratch and constants and computes a
kernel's standard arguments. Arguments that only the form can compute (a row table, a tile's columns, the range of input
elements to accumulate) are passed by the form as `OwnValues`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from tvm.ir import GlobalVar

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Op, Tensor
from tvm_cascade.schedules.driver.places import (
    Memory,
    Place,
    first_inside,
    first_of,
    pixel_slot,
    places,
    row_slot,
    slot_of,
    strides,
)
from tvm_cascade.schedules.kernels.kernel import Param, Role, RowKernel
from tvm_cascade.schedules.tir import Expr, PrimFunc, Stmt, Var, i32, ir, scalar, tirx

# Arguments that a form computes itself: by role, a function of `Param.index`; None: `Caller` computes the argument.
OwnValues = Mapping[Role, Callable[[int], Expr | None]]
HELPER = "locate"  # prefix of the names of helper functions


@dataclass(frozen=True)
class BuiltKernel(ABC):
    """The functions of an operator in a plan, and the code for calling them in a step."""

    variants: tuple[RowKernel, ...]  # a call runs one of them; each has its own constants and scratch size

    suffix: ClassVar[str] = ""  # appended to the operator's kind in the names of the functions

    @property
    def helpers(self) -> tuple[PrimFunc, ...]:
        """Return the functions a step calls besides the variants, such as a filler of row tables (`Caller.help`)."""
        return ()

    @property
    def table_entries(self) -> int:
        """Return the int32 entries a step needs in the row table on the driver's stack."""
        return 0

    @property
    def scratch_bytes(self) -> int:
        """Return the scratch bytes a step needs."""
        return max((v.scratch_bytes for v in self.variants), default=0)

    @abstractmethod
    def step(self, caller: Caller, step: Expr) -> Stmt:
        """Write the statements for step `step` of the operator's segment (`cascading.plan.Segment`)."""

    def with_variants(self, variants: Iterable[RowKernel]) -> BuiltKernel:
        """Copy the kernel with `variants` in place of its own, in the same order."""
        return replace(self, variants=tuple(variants))

    def kind_of(self, which: int, kind: str) -> str:
        """Return the kind of operator that variant `which` computes; `kind` is the operator's."""
        return kind + self.suffix

    def functions(self, kind: str) -> list[tuple[str, PrimFunc]]:
        """List all functions called by a step, as pairs of name prefix and function: the variants, then the helpers."""
        return [(kind + self.suffix, v.func) for v in self.variants] + [(HELPER, f) for f in self.helpers]


@dataclass
class Calls:
    """Context shared by all kernel calls in a plan: functions, constants' addresses, and the driver's buffers."""

    plan: Plan
    functions: Sequence[Sequence[GlobalVar]]  # by operator: variants, then helpers
    constants: Sequence[Sequence[Sequence[int]]]  # by operator, variant and constant: byte offset in flash
    memory: Memory
    macs: Var | None  # pointer to the counter of multiply-accumulates; None: they are not counted
    row_table: Any  # int32 buffer on the driver's stack, None where no kernel needs it
    # by segment in stripes: number of the current stripe, and index of the table of columns in flash viewed as uint16
    stripes: dict[int, tuple[Expr, int]] = field(default_factory=dict)
    # by tensor whose rows are found by a table of addresses: index of the entry of row 0 in flash viewed as int32
    row_tables: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = places(self.plan)
        self.addresses = dict(zip(self.plan.buffers, self.plan.allocation.offsets, strict=True))


class Caller:
    """Emitter of the calls to an operator's kernel in a segment."""

    def __init__(self, calls: Calls, kernel: BuiltKernel, op: Op, segment: int) -> None:
        self.calls, self.kernel, self.op, self.number = calls, kernel, op, segment
        self.plan, self.graph, self.memory = calls.plan, calls.plan.graph, calls.memory
        self.segment = calls.plan.segments[segment]
        self.functions = calls.functions[op.index]

    def call(self, y: Expr, own: OwnValues | None = None, which: int = 0) -> Stmt:
        """Call variant `which` for output row `y`; arguments come from `own` if present there, else from the plan."""
        args: list[Expr] = []
        for param in self.kernel.variants[which].params:
            value = own[param.role](param.index) if own and param.role in own else None
            args.append(self._argument(param, y, which) if value is None else value)
        if self.calls.macs is not None:
            args.append(self.calls.macs)
        return tirx.Evaluate(ir.Call(self.functions[which], args, ret_ty="int32"))

    def help(self, which: int, args: Sequence[Expr]) -> Stmt:
        """Call function `which` of `BuiltKernel.helpers`."""
        return tirx.Evaluate(ir.Call(self.functions[len(self.kernel.variants) + which], list(args), ret_ty="int32"))

    def _argument(self, param: Param, y: Expr, which: int) -> Expr:
        kernel = self.kernel.variants[which]
        match param.role:
            case Role.Y:
                return y
            case Role.SCRATCH:
                return self.memory.address(self.scratch_of(kernel.scratch_bytes), "int8")
            case Role.CONSTANT:
                offset = self.calls.constants[self.op.index][which][param.index]
                return self.memory.constant(offset, param.dtype)
            case Role.ACCUMULATOR:
                return self.memory.address(self.calls.addresses[f"accumulator {self.op.index}"], param.dtype)
            case Role.OUTPUT | Role.OUTPUT_PLANE:
                return self._output(param, y, kernel)
            case Role.INPUT | Role.SLOT | Role.SLOTS | Role.PLANE | Role.ROW_STRIDE:
                return self._input(param, y, kernel)
            case _:
                why = f"{self.op.name}: its form fills no parameter {param.role.value}"
                raise ValidationError(why, [self.op.name])

    def _input(self, param: Param, y: Expr, kernel: RowKernel) -> Expr:
        place, tensor = self.input(param.index)
        if param.role is Role.INPUT:
            return self.memory.address(place.address, place.dtype)
        if param.role is Role.SLOTS:
            return i32(place.height)
        if param.role is Role.SLOT:
            window = self.op.windows[param.index] if self.op.windows and not kernel.whole else None
            return row_slot(window, y, place, tensor.rows)
        plane, stride = strides(tensor, place)
        return i32(plane if param.role is Role.PLANE else stride)

    def _output(self, param: Param, y: Expr, kernel: RowKernel) -> Expr:
        place, tensor = self.output(param.index)
        plane, stride = strides(tensor, place)
        if param.role is Role.OUTPUT_PLANE:
            return i32(plane)
        if kernel.whole:
            return self.memory.address(place.address, place.dtype)
        return self.pointer(place, slot_of(y, place, tensor) * stride)

    def input(self, position: int) -> tuple[Place, Tensor]:
        return self._at(self.op.inputs[position])

    def output(self, position: int = 0) -> tuple[Place, Tensor]:
        return self._at(self.op.outputs[position])

    def _at(self, t: int) -> tuple[Place, Tensor]:
        return self.calls.places[t], self.graph.tensors[t]

    def row(self, t: int, y: Expr) -> Expr:
        """Return a pointer to row y of tensor t, which has contiguous rows."""
        if t in self.calls.row_tables:
            entry = self.memory.view("flash", "int32")[y + self.calls.row_tables[t]]
            return self.memory.row(t, entry, self.graph.tensors[t].dtype)
        place, tensor = self._at(t)
        return self.pointer(place, slot_of(y, place, tensor) * strides(tensor, place)[1])

    def row_table(self, position: int, y: Expr) -> Expr:
        """Return a pointer to the table entry for the first row of input `position` read by output row y, padding
        included.
        """
        window = self.op.windows[position]
        assert window is not None
        at = first_of(window, y) + (self.calls.row_tables[self.op.inputs[position]] - window.padding)
        return tirx.address_of(self.memory.view("flash", "int32")[at])

    def pointer(self, place: Place, element: Expr) -> Expr:
        """Return a pointer to element `element` in a tensor's storage, counted from the start of slot 0."""
        return self.memory.address(place.address, place.dtype, element)

    @property
    def scratch_address(self) -> int:
        """Return the address of the segment's scratch."""
        return self.calls.addresses[f"scratch {self.number}"]

    def scratch_of(self, size: int) -> int:
        """Return the address of `size` bytes of scratch: the segment's, or behind all memories if that has fewer."""
        fits = size <= self.segment.scratch_bytes
        return self.scratch_address if fits else -(-self.plan.allocation.peak // 8) * 8

    def tile(self, step: Expr, columns: int, pixels: int) -> tuple[list[Stmt], Expr, Expr, Expr]:
        """Compute the tile (y, [x0, x1)) for step `step`, for steps of `pixels` pixels in rows with `columns` columns.

        Return the statements binding the variables, then y, x0 and x1.
        """
        per_row = -(-columns // pixels)
        if per_row == 1:
            return [], step, i32(0), i32(columns)
        y, x0 = scalar(f"y_{self.op.index}", "int32"), scalar(f"x_{self.op.index}", "int32")
        bound: list[Stmt] = [
            tirx.Bind(y, tirx.truncdiv(step, i32(per_row))),
            tirx.Bind(x0, (step - y * per_row) * pixels),
        ]
        return bound, y, x0, x0 + pixels if columns % pixels == 0 else tirx.min(x0 + pixels, i32(columns))

    def input_pixel(self, position: int, y: Expr, x0: Expr) -> Expr:
        """Return the slot of the first pixel inside input `position` that output pixel (y, x0) can read, without
        padding.
        """
        place, tensor = self.input(position)
        window = self.op.windows[position] if self.op.windows else None
        across = self.op.columns[position] if self.op.columns else None
        if window is None or window.stride == 0:
            return i32(0)
        pixel = first_inside(window, y) * tensor.columns
        if across is not None and across.stride > 0:
            pixel = pixel + first_inside(across, x0)
        return pixel_slot(pixel, place, tensor)

    def output_pixel(self, position: int, y: Expr, x0: Expr) -> Expr:
        """Return the slot of pixel (y, x0) in output `position`."""
        place, tensor = self.output(position)
        return pixel_slot(y * tensor.columns + x0, place, tensor)
