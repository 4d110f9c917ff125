"""Stripe kernels: columns `[x0, x1)` of an output row, out of and into rings whose rows are narrower than the tensor's.

A cascade in stripes runs once for every vertical stripe of its last map. Its rings hold only the columns that the stripe
needs, column x of a tensor at x - x0 of the stripe's first. So a stripe kernel addresses rows by a stride that it is told,
through pointers that the driver has moved so that column 0 would lie where it looks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.assembly import build
from tvm_cascade.schedules.kernels.kernel import Role, RowKernel
from tvm_cascade.schedules.kernels.pixel_kernel import PixelAssembly
from tvm_cascade.schedules.tir import Buffer, Expr, PrimFunc, shape_of, tirx
from tvm_cascade.schedules.tir.flatten import Pointer, Slots, row_major, window_start
from tvm_cascade.schedules.tir.staging import NotRowwiseError


def stripe_kernel(
    func: PrimFunc, constants: Sequence[np.ndarray], access: RowAccess, name: str = "stripe_kernel"
) -> RowKernel | str:
    """The kernel that computes columns `[x0, x1)` of a row of `func`, or the reason why there is none.

    Parameters as a row kernel's of an NCHW tensor (`x{i}_plane`, `x{i}_row`: the element stride from one slot to the
    next), then `y`, `x0`, `x1`.
    """
    if not access.rowwise or not access.columns or any(c is None for c in access.columns):
        return access.opaque or "the operator's columns are not known"
    try:
        return build(func, constants, StripeAssembly(access), name)
    except NotRowwiseError as why:
        return str(why)


class StripeAssembly(PixelAssembly):
    """A stripe kernel under construction."""

    def input(self, i: int, source: Buffer) -> None:
        shape, axis, window = shape_of(source), self.access.input_axes[i], self.access.windows[i]
        if axis is None or window is None or prod(shape[:axis]) != 1:
            raise NotRowwiseError("rows of an input are not contiguous")
        handle, flat = self.tensor(f"x{i}", Role.INPUT, i, source)
        slot, height = self.scalar(f"x{i}_slot", Role.SLOT, i), self.scalar(f"x{i}_height", Role.SLOTS, i)
        plane, row = self.scalar(f"x{i}_plane", Role.PLANE, i), self.scalar(f"x{i}_row", Role.ROW_STRIDE, i)
        base = tirx.decl_buffer((1,), "int32", f"x{i}_base") if window.padding > 0 else None
        slots = Slots(window_start(window, self.y), slot, height, base, plane, row)
        self.starts += slots.set_base()
        self.pointers[source] = Pointer(handle, flat, slots.indexer(shape, axis, self.analyzer))

    def output(self, i: int, target: Buffer) -> None:
        name = "out" if i == 0 else f"out{i}"
        shape, axis = shape_of(target), self.access.output_axes[i]
        if axis is None or prod(shape[:axis]) != 1:
            raise NotRowwiseError("rows of an output are not contiguous")
        handle, flat = self.tensor(name, Role.OUTPUT, i, target)

        def index(indices: Sequence[Expr]) -> Expr:
            return row_major(shape[axis + 1 :])(indices[axis + 1 :])

        self.pointers[target] = Pointer(handle, flat, index)
