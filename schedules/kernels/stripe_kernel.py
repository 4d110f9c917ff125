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
from tvm_cascade.schedules.kernels.assembly import build_if_possible
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.pixel_kernel import PixelAssembly
from tvm_cascade.schedules.tir import Buffer, PrimFunc, shape_of
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
    return build_if_possible(func, constants, StripeAssembly(access), name)


class StripeAssembly(PixelAssembly):
    """A stripe kernel under construction."""

    tells_strides, counts_pixels = True, False

    def input(self, i: int, source: Buffer) -> None:
        axis = self.access.input_axes[i]
        if axis is None or self.access.windows[i] is None or prod(shape_of(source)[:axis]) != 1:
            raise NotRowwiseError("rows of an input are not contiguous")
        super().input(i, source)

    def output(self, i: int, target: Buffer) -> None:
        axis = self.access.output_axes[i]
        if axis is None or prod(shape_of(target)[:axis]) != 1:
            raise NotRowwiseError("rows of an output are not contiguous")
        super().output(i, target)
