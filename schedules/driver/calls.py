"""The calls of kernels: what a plan says of places, slots, scratch and constants becomes the arguments of a step.

A `BuiltKernel` is what a form of kernels (`schedules.forms`) makes of an operator for a plan: functions, and the statements
of one step. Its `step` gets a `Caller`, which knows where everything lies and fills the parameters of a kernel. What is
special to a form (a row table, the columns of a tile, the part of the input to add) the form passes as values of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from tvm.ir import GlobalVar

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import ITEM_BYTES, Op, Tensor
from tvm_cascade.schedules.driver.places import (
    Memory,
    Place,
    first_inside,
    pixel_slot,
    places,
    row_slot,
    slot_of,
    strides,
)
from tvm_cascade.schedules.kernels.kernel import Param, Role, RowKernel
from tvm_cascade.schedules.tir import Expr, PrimFunc, Stmt, Var, i32, ir, tirx

OwnValues = Mapping[Role, Callable[[int], Expr | None]]  # a form's own, by index; None where the caller knows better
HELPER = "locate"  # start of the names of helper functions


@dataclass(frozen=True)
class BuiltKernel(ABC):
    """An operator's functions in one plan, and how a step calls them."""

    variants: tuple[RowKernel, ...]  # each with constants and scratch of its own

    suffix: ClassVar[str] = ""  # of the functions' names, behind the kind of the operator

    @property
    def helpers(self) -> tuple[PrimFunc, ...]:
        """Functions that a step calls beside the variants (`Caller.help`)."""
        return ()

    @property
    def table_entries(self) -> int:
        """Entries that a step needs in the row table on the driver's stack."""
        return 0

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that a step takes in all."""
        return max((v.scratch_bytes for v in self.variants), default=0)

    @abstractmethod
    def step(self, caller: Caller, step: Expr) -> Stmt:
        """The statements of step `step` of the operator's segment (`cascading.plan.Segment`)."""

    def with_variants(self, variants: Iterable[RowKernel]) -> BuiltKernel:
        """The same with other variants, one for each."""
        return replace(self, variants=tuple(variants))

    def functions(self, kind: str) -> list[tuple[str, PrimFunc]]:
        """Everything that a step calls, the variants first; each with the start of its name."""
        return [(kind + self.suffix, v.func) for v in self.variants] + [(HELPER, f) for f in self.helpers]


@dataclass
class Calls:
    """What all calls of a plan share."""

    plan: Plan
    functions: Sequence[Sequence[GlobalVar]]  # of every operator's kernel
    constants: Sequence[Sequence[Sequence[int]]]  # by operator and variant: their offsets in flash
    memory: Memory
    macs: Var | None  # where multiply-accumulates are counted
    row_table: Any  # on the driver's stack, None where no kernel needs it
    stripes: dict[int, tuple[Expr, int]] = field(default_factory=dict)  # by segment: stripe, table in the uint16 view

    def __post_init__(self) -> None:
        self.places = places(self.plan)
        self.offsets = dict(zip(self.plan.buffers, self.plan.allocation.offsets, strict=True))


class Caller:
    """The calls of one operator's kernel in one segment."""

    def __init__(self, calls: Calls, kernel: BuiltKernel, op: Op, segment: int) -> None:
        self.calls, self.kernel, self.op, self.number = calls, kernel, op, segment
        self.plan, self.graph, self.memory = calls.plan, calls.plan.graph, calls.memory
        self.segment = calls.plan.segments[segment]
        self.functions = calls.functions[op.index]

    def call(self, y: Expr, own: OwnValues | None = None, which: int = 0) -> Stmt:
        """Call variant `which` for output row `y`, with the form's own values of some parameters."""
        args: list[Expr] = []
        for param in self.kernel.variants[which].params:
            value = own[param.role](param.index) if own and param.role in own else None
            args.append(self._argument(param, y, which) if value is None else value)
        if self.calls.macs is not None:
            args.append(self.calls.macs)
        return tirx.Evaluate(ir.Call(self.functions[which], args, ret_ty="int32"))

    def help(self, which: int, args: Sequence[Expr]) -> Stmt:
        """Call helper `which` of the kernel."""
        return tirx.Evaluate(ir.Call(self.functions[len(self.kernel.variants) + which], list(args), ret_ty="int32"))

    def _argument(self, param: Param, y: Expr, which: int) -> Expr:
        kernel = self.kernel.variants[which]
        match param.role:
            case Role.Y:
                return y
            case Role.SCRATCH:
                fits = kernel.scratch_bytes <= self.segment.scratch_bytes
                spare = -(-self.plan.peak // 8) * 8
                return self.memory.address("arena", "int8", self.scratch_offset if fits else spare)
            case Role.CONSTANT:
                offset = self.calls.constants[self.op.index][which][param.index]
                return self.memory.address("flash", param.dtype, offset)
            case Role.ACCUMULATOR:
                return self.memory.address("arena", param.dtype, self.calls.offsets[f"accumulator {self.op.index}"])
            case Role.OUTPUT | Role.OUTPUT_PLANE:
                return self._output(param, y, kernel)
            case Role.INPUT | Role.SLOT | Role.SLOTS | Role.PLANE | Role.ROW_STRIDE:
                return self._input(param, y, kernel)
            case _:
                raise ValidationError(f"{self.op.name}: its form fills no parameter {param.role.value}")

    def _input(self, param: Param, y: Expr, kernel: RowKernel) -> Expr:
        place, tensor = self.input(param.index)
        if param.role is Role.INPUT:
            return self.memory.address("arena", place.dtype, place.offset)
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
            return self.memory.address("arena", place.dtype, place.offset)
        return self.pointer(place, slot_of(y, place, tensor) * stride)

    def input(self, position: int) -> tuple[Place, Tensor]:
        return self._at(self.op.inputs[position])

    def output(self, position: int = 0) -> tuple[Place, Tensor]:
        return self._at(self.op.outputs[position])

    def _at(self, t: int) -> tuple[Place, Tensor]:
        return self.calls.places[t], self.graph.tensors[t]

    def pointer(self, place: Place, element: Expr) -> Expr:
        """Pointer to an element of a storage, counted from its slot 0."""
        return self.memory.address("arena", place.dtype, place.offset // ITEM_BYTES[place.dtype] + element)

    @property
    def scratch_offset(self) -> int:
        """Byte offset of the segment's scratch in the arena."""
        return self.calls.offsets[f"scratch {self.number}"]

    def tile(self, step: Expr, columns: int, pixels: int) -> tuple[list[Stmt], Expr, Expr, Expr]:
        """Of a step by `pixels` of a row: statements that bind, then row, first column, first column after the last."""
        per_row = -(-columns // pixels)
        if per_row == 1:
            return [], step, i32(0), i32(columns)
        y, x0 = tirx.Var(f"y_{self.op.index}", "int32"), tirx.Var(f"x_{self.op.index}", "int32")
        bound: list[Stmt] = [
            tirx.Bind(y, tirx.truncdiv(step, i32(per_row))),
            tirx.Bind(x0, (step - y * per_row) * pixels),
        ]
        return bound, y, x0, x0 + pixels if columns % pixels == 0 else tirx.min(x0 + pixels, i32(columns))

    def input_pixel(self, position: int, y: Expr, x0: Expr) -> Expr:
        """Slot of the first pixel that output (y, x0) can read: the window's, or the tensor's edge where that is padding."""
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
        """Slot of a pixel that is written."""
        place, tensor = self.output(position)
        return pixel_slot(y * tensor.columns + x0, place, tensor)
