"""Generic stripe kernels: compute columns `[x0, x1)` of an output row, in rings with rows of a single stripe's columns.

A cascade in stripes runs once for every vertical stripe of its last map. Its rings hold only the columns needed by the
stripe, from the stripe's first column on. So a stripe kernel takes the row stride as a parameter, and pointers shifted
by the driver to the place of column 0 if the ring's rows were extended to the left.
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
    """Build the kernel for columns `[x0, x1)` in a row of `func`, or return why there is none.

    The kernel has the parameters of a row kernel with NCHW tensors, with `x{i}_plane` and `x{i}_row` (the element
    stride from one slot to the next), then `x0` and `x1` after `y`.
    """
    if not access.rowwise or not access.columns or any(c is None for c in access.columns):
        return access.opaque or "the operator's columns are not known"
    return build_if_possible(func, constants, StripeAssembly, access, name)


class StripeAssembly(PixelAssembly):
    """Builder for a stripe kernel."""

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
