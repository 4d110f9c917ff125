"""A small builder of TIR statements, by which performance schedules write row kernels.

Kernels are straight-line code and counted loops over flat pointers. The builder keeps a stack of open blocks; `let`
binds a value once (a C local, an SSA value in LLVM), `local` allocates a few registers' worth of mutable scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.kernels.kernel import Deferred, Param, Role, RowKernel, contract_params
from tvm_cascade.schedules.tir import (
    PASSES,
    PrimFunc,
    Stmt,
    Value,
    Var,
    flat_buffer,
    i32,
    kernel_function,
    pointer_var,
    sequence,
    tirx,
)

_VIEW_ITEMS = 1 << 30  # declared extent of pointer views: larger than any tensor; the real size does not matter


def best_step(count: int, most: int, whole: int = 0) -> int:
    """Return the largest divisor of `count` up to `most`; `count` itself if at most `whole`."""
    return count if count <= whole else max(u for u in range(1, most + 1) if count % u == 0)


class Builder:
    """Builder for a function's statements, in order."""

    def __init__(self) -> None:
        self._blocks: list[list[Stmt]] = [[]]
        self._used: dict[str, int] = {}

    def name(self, stem: str) -> str:
        """Return a name not yet used in this function."""
        count = self._used.get(stem, 0)
        self._used[stem] = count + 1
        return stem if count == 0 else f"{stem}_{count}"

    def add(self, stmt: Stmt) -> None:
        self._blocks[-1].append(stmt)

    def let(self, value: Value, stem: str = "v", dtype: str = "int32") -> Value:
        """Bind `value` to a new variable at this point; constants and variables are returned as they are."""
        if isinstance(value, int) or type(value) in (tirx.IntImm, tirx.Var):
            return value
        var = tir.scalar(self.name(stem), dtype)
        self.add(tirx.Bind(var, value))
        return var

    def local(self, count: int, stem: str, dtype: str = "int32") -> Any:
        """Make `count` mutable scalars, registers if every index is constant."""
        buffer = flat_buffer(self.name(stem), count, dtype)
        self.add(tirx.AllocBuffer(buffer))
        return buffer

    def view(self, pointer: Any, dtype: str, stem: str) -> Any:
        """Declare the memory behind `pointer` as a flat buffer of `dtype`."""
        buffer = flat_buffer(self.name(stem), _VIEW_ITEMS, dtype)
        self.add(tirx.DeclBuffer(buffer, data=pointer))
        return buffer

    def store(self, buffer: Any, index: Value, value: Value) -> None:
        self.add(tirx.BufferStore(buffer, value, [i32(index)]))

    def evaluate(self, call: Value) -> None:
        self.add(tirx.Evaluate(call))

    @contextmanager
    def loop(self, extent: Value, stem: str, start: Value = 0, passes: int | None = None) -> Iterator[Value]:
        """Open `for stem in [start, start + extent)`; for an extent of 1, the body without a loop.

        `passes` is the value of an extent hidden from compilers, for estimates.
        """
        if isinstance(extent, int) and extent == 1:
            yield start
            return
        var = tir.scalar(self.name(stem), "int32")
        self._blocks.append([])
        yield var
        body = self._blocks.pop()
        if body:
            noted = None if passes is None else {PASSES: i32(passes)}
            self.add(tirx.For(var, i32(start), i32(extent), tirx.ForKind.SERIAL, sequence(body), annotations=noted))

    def unrolled(self, passes: Value, step: int, stem: str = "i") -> Iterator[Value]:
        """Yield the indices `[0, passes * step)`, from a loop of `passes` iterations unrolled by `step`."""
        with self.loop(passes, stem) as i:
            for u in range(step):
                yield i * step + u

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        self._blocks.append([])
        yield
        body = self._blocks.pop()
        if body:
            self.add(tirx.IfThenElse(condition, sequence(body), None))

    @contextmanager
    def repeated(self, condition: Value) -> Iterator[None]:
        """Open `while condition`."""
        self._blocks.append([])
        yield
        self.add(tirx.While(condition, sequence(self._blocks.pop())))

    def statements(self) -> list[Stmt]:
        assert len(self._blocks) == 1
        return self._blocks[0]


_NAMES = {Role.INPUT: "x{}", Role.ROW_TABLE: "x{}_rows", Role.SLOT: "x{}_slot", Role.SLOTS: "x{}_height"}
_NAMES |= {Role.CONSTANT: "w{}", Role.SCRATCH: "scratch", Role.OUTPUT: "out{}", Role.Y: "y"}


def _variable(param: Param) -> Var:
    name = _NAMES[param.role].format(param.index if param.index or param.role is not Role.OUTPUT else "")
    return pointer_var(name, param.dtype) if param.is_pointer else tir.scalar(name, "int32")


class KernelBuilder(Builder):
    """Builder for a row kernel with the parameters in `schedules.kernels.kernel`.

    `inputs[i]` are the variables `(pointer, slot, height)`, with `row_table` `(pointer, rows)`; `constants` and
    `outputs` are pointers.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        constants: Sequence[np.ndarray],
        outputs: Sequence[str],
        scratch_bytes: int = 0,
        row_table: bool = False,
    ) -> None:
        super().__init__()
        types = [str(c.dtype) for c in constants]
        self.roles = contract_params(inputs, types, outputs, scratch_bytes > 0, row_table)
        self.arrays, self.scratch_bytes = tuple(constants), scratch_bytes
        self.params = [_variable(p) for p in self.roles]
        told = (Role.ROW_TABLE,) if row_table else (Role.SLOT, Role.SLOTS)
        self.inputs = list(zip(*(self._of(role) for role in (Role.INPUT, *told)), strict=True))
        self.row_tables = [self.view(x[1], "int32", "rows") for x in self.inputs] if row_table else None
        self.constants, self.outputs = self._of(Role.CONSTANT), self._of(Role.OUTPUT)
        self.scratch = self._of(Role.SCRATCH)[0] if scratch_bytes else None
        self.y = self.params[-1]

    def _of(self, role: Role) -> list[Var]:
        return [v for v, p in zip(self.params, self.roles, strict=True) if p.role is role]

    def row_offset(self, index: int, tap: Value, row_elements: int) -> Value:
        """Return the element offset of row `tap` in input `index`'s window, from the row table or wrapped around the
        ring's end.
        """
        if self.row_tables is not None:
            return self.row_tables[index][i32(tap)]
        _, slot, height = self.inputs[index]
        if isinstance(tap, int) and tap == 0:
            return slot * row_elements
        place = self.let(slot + tap, "place")
        return (place - tirx.Select(place >= height, height, i32(0))) * row_elements

    def kernel(self, emit: Callable[[], object], rows: int = 1, form: Hashable | None = None) -> RowKernel:
        """Build the kernel from the statements `emit` adds when the function is first used.

        Builders with equal `form` emit the same statements: the kernels share a function, which computes `rows` rows
        per call and returns 0; pointers do not alias.
        """

        def write() -> PrimFunc:
            emit()
            return kernel_function("row_kernel", self.params, self.statements())

        code = Deferred.of(write, None if form is None else (tuple(self.roles), rows, form))
        return RowKernel(code, self.arrays, self.scratch_bytes, self.roles, rows=rows)
