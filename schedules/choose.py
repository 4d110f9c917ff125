"""Which kernel of an operator a plan calls: of a row, of some pixels, or of the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm_cascade.cascading.flow import goes_by_pixels
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.schedules.kernel import RowKernel

PixelKernel = Callable[[int], RowKernel]


def kernels_of_plan(plan: Plan, rows: Sequence[RowKernel | None], pixels: PixelKernel) -> list[RowKernel | None]:
    """The kernel of every operator (None for views) as its segment runs it.

    `rows` are the row kernels by operator, `pixels` makes the pixel kernel of an operator.
    """
    chosen = list(rows)
    for segment in plan.segments:
        for o in segment.ops:
            if segment.chunk and chosen[o] is not None and goes_by_pixels(plan.graph, o):
                chosen[o] = pixels(o)
    return chosen
