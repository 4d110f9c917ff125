"""In-place transpose from NHWC to NCHW: the inverse of `schedules.forms.transpose_in_place`.

Networks converted from NCHW that produce an image end with this transpose. The image is often the largest tensor, and
in place the arena needs it only once. First the pixels of every image row are split into a row for every plane, then
whole rows are permuted.
"""

from __future__ import annotations

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.forms.transpose_in_place import TO_NCHW, InPlacePasses, Planes, TransposeInPlace, row_moves
from tvm_cascade.schedules.kernels.kernel import RowKernel


class TransposeBackInPlace(TransposeInPlace):
    """The form of transposes from NHWC to NCHW, in place."""

    axes = TO_NCHW
    refusal = "it is no transpose from NHWC to NCHW"

    def kernel(self, planes: Planes, core: KernelTarget | None) -> RowKernel:
        passes = InPlacePasses(planes, row_moves(planes.height, planes.count), core)
        passes.turn_rows(to_pixels=False)
        passes.move_rows()
        passes.open_up()
        return passes.kernel()


FORM = TransposeBackInPlace()
