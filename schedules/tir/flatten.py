"""Flattening multi-dimensional buffers to pointers: the addressing of ring buffers and scratch in a row kernel.

Row r of a tensor lies at slot `r % height` in storage. A kernel call gets the slot of the window's first row, so the
window's row j is at slot `slot + j`, less `height` past the ring's end: a comparison, no remainder. Padding rows have
no slot; if the window starts with padding, slots count from row 0, which is at slot 0 of any ring.

Buffers allocated by the kernel become offsets into `scratch`, unless they are small enough for registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm_cascade.graph import ITEM_BYTES, Window
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import Buffer, Expr, Stmt, Var, i32, pointer_var, tirx, tvm_ffi

REGISTER_ELEMENTS = (
    8  # allocated buffers of at most this many elements stay local, for the compiler to put in registers
)
SCRATCH_ALIGNMENT = 8  # bytes

Indexer = Callable[[Sequence[Expr]], Expr]


@dataclass(frozen=True)
class Pointer:
    """A pointer parameter, the flat buffer, and the function from a tensor's indices to the buffer's index."""

    handle: Var
    buffer: Buffer
    index: Indexer


def pointer(name: str, dtype: str, elements: int) -> tuple[Var, Buffer]:
    """Make a handle parameter and a flat view with `elements` elements."""
    handle = pointer_var(name, dtype)
    return handle, tirx.decl_buffer((max(elements, 1),), dtype, f"{name}_data", data=handle)


def row_major(shape: Sequence[int]) -> Indexer:
    """Make the function from indices to the element offset in a contiguous row-major tensor."""

    def index(indices: Sequence[Expr]) -> Expr:
        offset: Expr = i32(0)
        for i, extent in zip(indices, shape, strict=True):
            offset = offset * extent + i
        return offset

    return index


@dataclass(frozen=True)
class Slots:
    """Addressing an input's rows in the ring.

    `first` is the window's first row as an expression of y. The variables are kernel parameters; `plane` and `row` are
    the element strides for storages with rows that are not contiguous (NCHW), else None.
    """

    first: Expr
    slot: Var
    height: Var
    base: Buffer | None  # one int32, where the window starts with padding
    plane: Var | None = None
    row: Var | None = None

    def set_base(self) -> list[Stmt]:
        """Write the statements that set `base`: the window's row j is at slot `base + j`; negative if row j = 0 is
        padding.
        """
        if self.base is None:
            return []
        value = tirx.Select(self.first < 0, self.first, self.slot)
        return [tirx.AllocBuffer(self.base), tirx.BufferStore(self.base, value, [i32(0)])]

    def indexer(self, shape: Sequence[int], axis: int, analyzer: Any) -> Indexer:
        inner = prod(shape[axis + 1 :])
        start = self.slot if self.base is None else self.base[0]

        def index(indices: Sequence[Expr]) -> Expr:
            offset = analyzer.simplify(indices[axis] - self.first)
            slot: Expr = start + offset
            if self.base is not None or tir.int_value(offset) != 0:
                slot = slot - tirx.Select(slot >= self.height, self.height, i32(0))
            before = row_major(shape[:axis])(indices[:axis])
            after = row_major(shape[axis + 1 :])(indices[axis + 1 :])
            if self.plane is None or self.row is None:
                return slot * inner + after
            return before * self.plane + slot * self.row + after

        return index


def window_start(window: Window, y: Var) -> Expr:
    """Return `Window.first(y)` as a TIR expression."""
    first: Expr = y * window.stride
    if window.denominator > 1:
        first = tirx.floordiv(first, window.denominator)
    return first - window.padding


def to_pointers(body: Stmt, pointers: Mapping[Buffer, Pointer], analyzer: Any) -> Stmt:
    """Rewrite every access to the given buffers as an access to their pointers' flat buffers."""

    def to_pointer(buffer: Buffer, indices: list[Expr]) -> tuple[Buffer, list[Expr]] | None:
        target = pointers.get(buffer)
        return None if target is None else (target.buffer, [analyzer.simplify(target.index(indices))])

    return tir.relocated(body, to_pointer)


def to_scratch(body: Stmt, analyzer: Any) -> tuple[Stmt, list[Stmt], Var, int]:
    """Move allocated buffers to `scratch`; the new body, its declarations, the pointer and the bytes of scratch."""
    handle = pointer_var("scratch", "int8")
    views: dict[str, Buffer] = {}
    offsets: dict[Buffer, int] = {}
    total = 0
    for alloc in tir.collect(body, tirx.AllocBuffer):
        size = prod(tir.shape_of(alloc.buffer))
        if size > REGISTER_ELEMENTS:
            offsets[alloc.buffer] = total
            total += -(-size * ITEM_BYTES[tir.dtype_of(alloc.buffer)] // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
    pointers: dict[Buffer, Pointer] = {}
    for own, offset in offsets.items():
        dtype = tir.dtype_of(own)
        if dtype not in views:
            views[dtype] = tirx.decl_buffer((total // ITEM_BYTES[dtype],), dtype, f"scratch_{dtype}", data=handle)
        pointers[own] = Pointer(
            handle, views[dtype], _shifted(row_major(tir.shape_of(own)), offset // ITEM_BYTES[dtype])
        )
    body = tvm_ffi.structural_map(
        body, (tirx.AllocBuffer, lambda a: tirx.Evaluate(i32(0)) if a.buffer in offsets else a)
    )
    declarations: list[Stmt] = [tirx.DeclBuffer(view, data=handle) for view in views.values()]
    return to_pointers(body, pointers, analyzer), declarations, handle, total


def _shifted(index: Indexer, offset: int) -> Indexer:
    return lambda indices: index(indices) + offset
