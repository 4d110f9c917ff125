"""Which kernel of an operator a plan calls: of a row, of some pixels, or of the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm_cascade.cascading.flow import goes_by_pixels
from tvm_cascade.cascading.plan import Granularity, Plan, Segment
from tvm_cascade.graph import Op
from tvm_cascade.schedules.kernel import RowKernel
from tvm_cascade.schedules.patch import Patch

PixelKernel = Callable[[int], RowKernel]
PatchKernel = Callable[[int, int], Patch | None]
Kernel = RowKernel | Patch


def kernels_of_plan(
    plan: Plan, rows: Sequence[RowKernel | None], pixels: PixelKernel, patches: PatchKernel | None = None
) -> list[Kernel | None]:
    """The kernel of every operator (None for views) as its segment runs it.

    `rows` are the row kernels by operator, `pixels` makes the generic pixel kernel of an operator, `patches` the one that
    a performance schedule serves, for a number of pixels a step.
    """
    chosen: list[Kernel | None] = list(rows)
    for segment in plan.segments:
        for o in segment.ops:
            if segment.chunk and chosen[o] is not None and goes_by_pixels(plan.graph, o):
                patch = patches(o, segment.chunk) if patches is not None else None
                chosen[o] = patch if patch is not None and _lies_right(plan, o, patch, segment) else pixels(o)
    return chosen


def _lies_right(plan: Plan, op: int, patch: Patch, segment: Segment) -> bool:
    """Whether the pixels of a step lie together wherever a patch reads or writes them in place, and its scratch fits."""
    node: Op = plan.graph.ops[op]
    direct = [t for t, g in zip(node.inputs, patch.gathers, strict=True) if g is None]
    return patch.scratch_bytes <= segment.scratch_bytes and all(
        _together(plan, t, patch.chunk) for t in (*direct, *node.outputs)
    )


def _together(plan: Plan, tensor: int, chunk: int) -> bool:
    storage, columns = plan.storages[tensor], plan.graph.tensors[tensor].columns
    slots = storage.pixels if storage.granularity is Granularity.PIXEL else storage.height * columns
    whole = slots >= plan.graph.tensors[tensor].rows * columns
    return whole or chunk == 1 or (slots % chunk == 0 and columns % chunk == 0)
