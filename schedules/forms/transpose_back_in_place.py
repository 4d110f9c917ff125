"""An NHWC tensor becomes NCHW in the very bytes that it lies in: `schedules.forms.transpose_in_place` backwards.

Networks that came in channels first end so where they make an image: the largest tensor of all, and only once in the arena.
First the pixels of every image row become one row of every plane, then whole rows change places.
"""

from __future__ import annotations

from tvm_cascade.schedules.forms.transpose_in_place import TO_NCHW, InPlacePasses, Planes, TransposeInPlace, row_moves
from tvm_cascade.schedules.kernels.kernel import RowKernel


class TransposeBackInPlace(TransposeInPlace):
    """Transposes from NHWC to NCHW."""

    axes = TO_NCHW
    refusal = "it is no transpose from NHWC to NCHW"

    def kernel(self, planes: Planes) -> RowKernel:
        passes = InPlacePasses(planes, row_moves(planes.height, planes.count))
        passes.turn_rows(to_pixels=False)
        passes.move_rows()
        return passes.kernel()


FORM = TransposeBackInPlace()
