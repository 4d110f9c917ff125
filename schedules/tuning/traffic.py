"""Bytes that the kernels and the driver of a plan read from and write to each block, counted statically.

This is the one definition of traffic: a load or a store in the emitted code, through a pointer to a block of the plan,
counts the bytes moved, as often as it runs. A byte loaded twice by a kernel counts twice, for no cache is assumed;
values kept in local buffers (registers, the stack) count nothing after the load. Constants, traces and further tables
lie in flash and are no block; reads from flash are counted by constant.

The code is read as in `schedules.tuning.instructions`, loops and branches evaluated for a sample of steps; a plan with
blocks in separate memories (`cascading.memories.apart`) makes every pointer name the block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from tvm_cascade.cascading.memories import apart
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cores import KernelTarget
from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.driver.places import FlashItem
from tvm_cascade.schedules.tir import IF_THEN_ELSE, PrimFunc, dtype_of, elements, ir, tirx
from tvm_cascade.schedules.tuning.instructions import Counter, Function, Library, Part, Reader, taken
from tvm_cascade.schedules.tuning.known_values import Env
from tvm_cascade.schedules.tuning.written_plan import WrittenPlan

Moved: TypeAlias = "np.ndarray | float"  # bytes read (row 0) and written (row 1) by pointer (column); 0.0: none
READ, WRITTEN = 0, 1


class TrafficCounter:
    """Counts the traffic of plans for a core. Kernels that several operators or plans call are read once."""

    def __init__(self, target: KernelTarget) -> None:
        self.target = target
        self._library = Library(Counter(target.core), _Function)
        self._kept: list[BuiltKernel | None] = []  # what is used is not written anew

    def count(self, plan: Plan, kernels: Sequence[BuiltKernel | None]) -> np.ndarray:
        """Count an inference's bytes: `[operator, 0 read or 1 written, buffer of memories.blocks]`; `kernels` as in
        `PlanCounter`.
        """
        return self.count_written(WrittenPlan(apart(plan), kernels))

    def count_written(self, written: WrittenPlan) -> np.ndarray:
        """Count the bytes of a written plan with separate blocks (`memories.apart`)."""
        alone = written.plan
        columns = {use.ram.label: k for k, use in enumerate(alone.memories)}
        self._kept += written.kernels
        total = self._moved(written, columns)
        at = dict(zip(alone.buffers, alone.allocation.offsets, strict=True))
        for s, segment in enumerate(alone.segments):
            counts = Tally(segment.trace) if segment.state_bytes else {}
            for operator, steps in counts.items():
                if operator >= 0:  # a step reads its counter and writes it
                    moved = segment.state_bytes // len(counts) * steps
                    total[operator, :, columns[alone.memory_at(at[f"state {s}"]).ram.label]] += moved
        return total

    def count_flash(
        self, plan: Plan, kernels: Sequence[BuiltKernel | None]
    ) -> tuple[np.ndarray, tuple[FlashItem, ...]]:
        """Count the bytes each operator reads from flash in an inference, `[operator, constant]`; return the constants
        too.

        The last column, without a constant, is the driver's own tables.
        """
        self._kept += kernels
        written = WrittenPlan(plan, kernels)
        driver = written.driver
        items = tuple(item for item in driver.flash.items if item.offset >= driver.table_bytes)
        moved = self._moved(written, {"flash": len(items)}, items)
        return moved[:, READ], items

    def _moved(self, written: WrittenPlan, columns: Mapping[str, int], items: Sequence[FlashItem] = ()) -> np.ndarray:
        """Count the bytes `[operator, read or written, column]` through driver pointers with a column.

        `items` are constants in flash, each with a separate column, by position.
        """
        driver = written.driver
        functions = {name: self._library.read(func) for name, func in written.functions.items()}
        total = np.zeros((len(written.plan.graph.ops), 2, len(items) + len(columns)))
        counter = Counter(self.target.core)

        def read(stmt: Any, given: Sequence[Any]) -> Part:
            views = {hash(v): (columns[w], d) for (w, d), v in driver.memory.views.items() if w in columns}
            reader = _DriverReader(counter, stmt, views, total.shape[2], functions, items)
            reader.deciding |= {hash(v) for v in given}
            return reader.statement(stmt)

        for operator, weight, part, env in written.sampled(read):
            total[operator] += weight * taken(part, env)
        return total


class _Function(Function):
    """A kernel, read once: the bytes moved through each parameter, for any arguments."""

    def _reader(self, counter: Counter, func: PrimFunc) -> tuple[Reader, float]:
        position = {p: k for k, p in enumerate(self.params)}
        views = {
            hash(d.buffer): (position[hash(d.data)], str(d.buffer.dtype))
            for d in tir.collect(func.body, tirx.DeclBuffer)
            if hash(d.data) in position
        }
        return _TrafficReader(counter, func.body, views, len(self.params)), 0.0


class _TrafficReader(Reader):
    """Reader of statements into parts that are bytes by pointer; `views` has every buffer's pointer, if there is one."""

    loop = entered = branch = 0.0

    def __init__(self, counter: Counter, body: Any, views: Mapping[int, tuple[int, str]], pointers: int) -> None:
        super().__init__(counter, body)
        self.views, self.shape = views, (2, pointers)
        self._single: dict[tuple[int, int, str], np.ndarray] = {}  # by direction, pointer and type: of one access

    def _moved(self, buffer: Any, how: int, dtype: str) -> Moved:
        """Return the bytes of an access; the array must not be changed."""
        view = self.views.get(hash(buffer))
        if view is None:
            return 0.0
        key = how, view[0], dtype
        if key not in self._single:
            moved = self._single[key] = np.zeros(self.shape)
            moved[how, view[0]] = bytes_of(dtype)
        return self._single[key]

    def _sequence(self, statements: Sequence[Any]) -> Part:
        return _sum([self.statement(s) for s in statements])

    def _bound(self, stmt: Any) -> Any:
        return self.value(stmt.value)

    def _stored(self, stmt: Any) -> Part:
        buffer = hash(stmt.buffer)
        cost = self.value(stmt.value) + self._moved(stmt.buffer, WRITTEN, str(dtype_of(stmt.value)))
        index = tir.int_value(stmt.indices[0]) if len(stmt.indices) == 1 else None
        if buffer not in self.registers or index is None:
            return cost
        return self._assigned(cost, (buffer, index), stmt.value, buffer)

    def value(self, value: Any) -> Any:
        """Count the bytes loaded by an expression."""
        kind = type(value)
        if kind in _LEAVES:
            return 0.0
        if kind is ir.TensorLoad:
            return self._moved(value.source, READ, str(dtype_of(value))) + sum(
                self.value(i) for i in elements(value.indices)
            )
        if kind is ir.Call:
            return self._called(value)
        if kind is tirx.Select:
            return self.value(value.condition) + self._either(value.true_value, value.false_value)
        inner = [getattr(value, name) for name in _operands(kind)]
        return sum((self.value(v) for v in inner if _is_expression(type(v))), 0.0)

    def _called(self, call: Any) -> Any:
        """Count the bytes of an intrinsic: read in arguments, and moved by the intrinsic through pointers."""
        name, args = str(getattr(call.op, "name", "")), [a for a in elements(call.args) if _is_expression(type(a))]
        if name.endswith("address_of"):
            return 0.0
        if name == IF_THEN_ELSE:
            return self.value(args[0]) + self._either(*args[1:])
        pointers = [a.args[0].source for a in args if _is_pointer(a)]
        if name.endswith(("call_extern", "call_pure_extern")):
            name = str(getattr(call.args[0], "value", call.args[0]))
        total: Any = sum((self.value(a) for a in args if not _is_pointer(a)), 0.0)
        if "copy" in name and len(pointers) == 2:
            unit = f"int8x{''.join(c for c in name if c.isdigit())}"
            return total + self._moved(pointers[0], WRITTEN, unit) + self._moved(pointers[1], READ, unit)
        return total + sum((self._moved(p, READ, str(dtype_of(call))) for p in pointers), 0.0)

    def _either(self, *values: Any) -> Any:
        """Return the bytes moved by a select: those of the operand with the most. An operand that stands for padding
        loads nothing.
        """
        return max((self.value(v) for v in values), key=lambda moved: float(np.sum(moved)))


class _DriverReader(_TrafficReader):
    """Reader of driver statements with calls that name blocks by the pointers passed."""

    def __init__(
        self,
        counter: Counter,
        body: Any,
        views: Mapping[int, tuple[int, str]],
        pointers: int,
        functions: Mapping[str, _Function],
        items: Sequence[FlashItem] = (),
    ) -> None:
        super().__init__(counter, body, views, pointers)
        self.functions, self.items = functions, items
        self._begins = [item.offset for item in items]

    def _column(self, pointer: Any) -> int | None:
        """Return the column of a pointer's target: in flash, the constant that holds the byte, if known."""
        load = pointer.args[0]
        column, dtype = self.views.get(hash(load.source), (None, ""))
        at = tir.int_value(load.indices[0]) if self.items and len(load.indices) == 1 else None
        if at is None or column is None:
            return column
        k = bisect_right(self._begins, at * bytes_of(dtype)) - 1
        held = k >= 0 and at * bytes_of(dtype) < self.items[k].offset + self.items[k].size
        return k if held else column

    def _evaluated(self, value: Any) -> Part:
        if type(value) is not ir.Call or type(value.op) is not ir.GlobalVar:
            return self.value(value)
        function, args = self.functions[value.op.name_hint], elements(value.args)
        arguments = self.deciding_arguments(function, args)
        to = [self._column(a) if _is_pointer(a) else None for a in args]
        head: Any = sum((self.value(a) for a in args if not _is_pointer(a)), 0.0)
        told: dict[int, Any] = {}  # by the object that the function keeps: bytes by block

        def moved(env: Env) -> Any:
            through = function.count(arguments(env))
            if id(through) not in told:
                total = np.zeros(self.shape)
                if isinstance(through, np.ndarray):
                    for k, block in ((k, b) for k, b in enumerate(to) if b is not None):
                        total[:, block] += through[:, k]
                told[id(through)] = head + total
            return told[id(through)]

        return moved


_LEAVES = {tirx.Var, tirx.IntImm, tirx.FloatImm}


@cache
def _operands(kind: type) -> list[str]:
    """Return the operand fields of an expression type."""
    return [name for name in ("a", "b", "value", "vector", "base") if hasattr(kind, name)]


@cache
def _is_expression(kind: type) -> bool:
    return issubclass(kind, ir.Expr)


def _is_pointer(value: Any) -> bool:
    return type(value) is ir.Call and str(getattr(value.op, "name", "")).endswith("address_of")


def bytes_of(dtype: str) -> int:
    """Return an element's bytes, or the bytes in a vector's lanes."""
    scalar, _, lanes = dtype.partition("x")
    return ITEM_BYTES.get(scalar, 4) * int(lanes or 1)


def _sum(parts: Sequence[Part]) -> Any:
    fixed: Any = sum((p for p in parts if not callable(p)), 0.0)
    open_ = [p for p in parts if callable(p)]
    return (lambda env: fixed + sum(p(env) for p in open_)) if open_ else fixed
