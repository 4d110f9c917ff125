"""Generic pixel kernels: compute some columns in an output row, reading from and writing to pixel rings.

A rolling buffer of rows holds K rows for a K-row window; a rolling buffer of pixels holds K - 1 rows and a few pixels
of the row-major stream (as line buffers in streaming hardware do). Pixel p lies at slot `p % pixels`. A kernel call
gets the slot of the first pixel to read, so every pixel in the window is at that slot plus the distance in the stream,
less `pixels` past the ring's end: a comparison for each tap, no remainder.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tvm_cascade.graph import Window, column_axis
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.assembly import Assembly, build_if_possible
from tvm_cascade.schedules.kernels.kernel import Role, RowKernel
from tvm_cascade.schedules.tir import Buffer, Expr, PrimFunc, Stmt, Var, i32, sequence, tirx
from tvm_cascade.schedules.tir.flatten import Pointer, row_major, window_start
from tvm_cascade.schedules.tir.staging import COLUMN, NotRowwiseError


def pixel_kernel(
    func: PrimFunc, constants: Sequence[np.ndarray], access: RowAccess, name: str = "pixel_kernel"
) -> RowKernel | str:
    """Build the kernel for columns `[x0, x1)` in a row of `func`, or return why there is none.

    If all of `access.columns` are None, or an output's rows are not contiguous, the kernel computes whole rows, still
    from and to rings of pixels. Parameters are as in `row_kernel`; for the kernel's own see `schedules.kernels.kernel`.
    """
    if not access.rowwise or len(access.columns) != len(access.windows):
        return access.opaque or "the operator's rows are not known"
    access = access if writes_pixels(func, access) else access.without_columns
    return build_if_possible(func, constants, PixelAssembly, access, name)


def writes_pixels(func: PrimFunc, access: RowAccess) -> bool:
    """Test all outputs' rows for being contiguous, so parts can lie in pixel rings."""
    axes = zip(tir.outputs_of(func), access.output_axes, strict=True)
    return all(axis is not None and prod(tir.shape_of(output)[:axis]) == 1 for output, axis in axes)


class PixelAssembly(Assembly):
    """Builder for a pixel kernel."""

    counts_pixels = True  # whether slots of tensors with contiguous pixels are pixel slots; else row slots

    def __init__(self, access: RowAccess) -> None:
        super().__init__(access)
        self.parts = any(c is not None for c in access.columns)  # whether it computes parts of rows
        self.x0, self.x1 = tirx.Var("begin", "int32"), tirx.Var("end", "int32")

    def outer(self) -> tuple[tuple[int, ...], ...]:
        axes = [a for a in self.access.output_axes if a is not None]
        return tuple((a, a + 1) if self.parts else (a,) for a in axes)

    def position(self) -> None:
        super().position()
        self.add(self.x0, Role.BEGIN)
        self.add(self.x1, Role.END)

    def cut(self, lowered: PrimFunc, outputs: Sequence[Buffer]) -> Stmt:
        body = super().cut(lowered, outputs)
        if not self.parts:
            return body
        loops = [f for f in tir.collect(body, tirx.For) if COLUMN in f.annotations]
        if len(tir.stores(body)) != sum(len(tir.stores(f.body)) for f in loops):
            raise NotRowwiseError("some of the operator is computed outside of its column loops")
        columns = [self._part(loop) for loop in loops]
        return sequence(columns)

    def _part(self, loop: Stmt) -> Stmt:
        """Limit a loop over all columns to `[x0, x1)`.

        The loop starts from 0: TVM's CanonicalizeLoop does not shift inner loops' bounds when rebasing a loop to 0.
        """
        step = tirx.Var(loop.loop_var.name, "int32")
        body = tir.substitute(loop.body, {loop.loop_var: step + self.x0})
        return tirx.For(step, i32(0), self.x1 - self.x0, loop.kind, body)

    def input(self, i: int, source: Buffer) -> None:
        shape, axis, window = tir.shape_of(source), self.access.input_axes[i], self.access.windows[i]
        pixels = self.counts_pixels and reads_pixels(shape, axis, window)
        if axis is None or window is None or not pixels:
            super().input(i, source)
            return
        handle, flat = self.tensor(f"x{i}", Role.INPUT, i, source)
        slot, count = self.scalar(f"x{i}_slot", Role.SLOT, i), self.scalar(f"x{i}_pixels", Role.SLOTS, i)
        start = first_pixel(window, self.access.columns[i], self.y, self.x0, shape[axis + 1])
        base = tirx.decl_buffer((1,), "int32", f"x{i}_base")
        self.starts += [tirx.AllocBuffer(base), tirx.BufferStore(base, slot - start, [i32(0)])]
        self._address(source, handle, flat, axis, base[0], count)

    def output(self, i: int, target: Buffer) -> None:
        name = "out" if i == 0 else f"out{i}"
        axis = self.access.output_axes[i]
        assert axis is not None
        if not self.counts_pixels or not has_pixels(tir.shape_of(target), axis):
            super().output(i, target)
            return
        handle, flat = self.tensor(name, Role.OUTPUT, i, target)
        slot = self.scalar(f"{name}_slot", Role.OUTPUT_SLOT, i)
        pixels = self.scalar(f"{name}_pixels", Role.OUTPUT_SLOTS, i)
        base = tirx.decl_buffer((1,), "int32", f"{name}_base")
        start = self.y * tir.shape_of(target)[axis + 1] + self.x0
        self.starts += [tirx.AllocBuffer(base), tirx.BufferStore(base, slot - start, [i32(0)])]
        self._address(target, handle, flat, axis, base[0], pixels)

    def _address(self, tensor: Buffer, handle: Var, flat: Buffer, axis: int, base: Expr, pixels: Var) -> None:
        """Locate pixel p of a tensor at slot `base + p`, wrapped once."""
        shape = tir.shape_of(tensor)
        inner = prod(shape[axis + 2 :])

        def index(indices: Sequence[Expr]) -> Expr:
            slot = base + (indices[axis] * shape[axis + 1] + indices[axis + 1])
            slot = slot - tirx.Select(slot >= pixels, pixels, i32(0))
            return slot * inner + row_major(shape[axis + 2 :])(indices[axis + 2 :])

        self.pointers[tensor] = Pointer(handle, flat, index)


def has_pixels(shape: Sequence[int], axis: int | None) -> bool:
    """Return True if the pixels of a tensor with rows along `axis` are contiguous, so a pixel kernel gets pixel slots.

    A tensor without a column axis is counted in rows by the plan (`graph.column_axis`), so its kernel gets row slots.
    """
    return axis is not None and prod(shape[:axis]) == 1 and column_axis(shape, axis) is not None


def reads_pixels(shape: Sequence[int], axis: int | None, window: Window | None) -> bool:
    """Return True if a pixel kernel gets pixel slots for an input; otherwise it gets row slots."""
    return window is not None and window.stride != 0 and has_pixels(shape, axis)


def first_pixel(window: Window, columns: Window | None, y: Expr, x0: Expr, width: int) -> Expr:
    """Return the number, in the row-major stream, of the first pixel inside the tensor read by output pixel (y, x0)."""
    row: Expr = window_start(window, y)
    row = tirx.max(row, i32(0)) if window.padding > 0 else row
    if columns is None or columns.stride == 0:
        return row * width
    column: Expr = window_start(columns, x0)
    return row * width + (tirx.max(column, i32(0)) if columns.padding > 0 else column)
