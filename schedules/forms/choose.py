"""Which kernel of an operator a plan calls: of a row or several, of some pixels, or of the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm_cascade.cascading.flow import goes_by_pixels
from tvm_cascade.cascading.plan import Granularity, Plan
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Op
from tvm_cascade.schedules.forms.patch import Patch
from tvm_cascade.schedules.forms.stripe_patch import StripePatch
from tvm_cascade.schedules.kernels.accumulate import Accumulating
from tvm_cascade.schedules.kernels.kernel import RowKernel

PatchKernel = Callable[[int, int], Patch | None]
StripeKernel = Callable[[int, Sequence[tuple[int, int]]], StripePatch | None]
Kernel = RowKernel | Patch | StripePatch | Accumulating


def kernels_of_plan(
    plan: Plan,
    rows: Sequence[RowKernel | None],
    pixels: Sequence[RowKernel | None],
    accumulators: Sequence[Accumulating | None],
    patches: PatchKernel | None = None,
    stripes: Callable[[int, int], RowKernel] | None = None,
    overs: Callable[[int], RowKernel] | None = None,
    in_stripes: StripeKernel | None = None,
    tall: Callable[[int, int], RowKernel | None] | None = None,
) -> list[Kernel | None]:
    """The kernel of every operator (None for views) as its segment runs it.

    `rows`, `pixels` and `accumulators` are the kernels by operator, `patches` makes those that a performance schedule
    serves, for a number of pixels a step, and `in_stripes` for the columns of every stripe; `stripes` are those of other
    operators that run in vertical stripes of so many columns at most, `overs` those of operators that run over their input.
    `tall` makes kernels of so many rows; where it makes none, those of one row are called for each row of a step.
    """
    chosen: list[Kernel | None] = list(rows)
    for segment in plan.segments:
        for o in segment.ops:
            op = plan.graph.ops[o]
            if o in segment.accumulating:
                chosen[o] = _required(accumulators[o], plan, o, "to sum up its input")
            elif o in segment.in_place:
                chosen[o] = _required(overs(o) if overs is not None else None, plan, o, "over its input")
            elif segment.stripes and chosen[o] is not None:
                columns = [ranges[segment.ops.index(o)] for ranges in segment.stripes]
                fast = in_stripes(o, columns) if in_stripes is not None else None
                if fast is not None and fast.scratch_bytes <= segment.scratch_bytes:
                    chosen[o] = fast
                else:
                    width = max(x1 - x0 for x0, x1 in columns)
                    chosen[o] = _required(stripes(o, width) if stripes is not None else None, plan, o, "in stripes")
            elif segment.tile.by_pixels and chosen[o] is not None and goes_by_pixels(plan.graph, o):
                patch = patches(o, segment.tile.columns) if patches is not None else None
                if patch is not None and patch.scratch_bytes <= segment.scratch_bytes:
                    chosen[o] = _called(plan, o, patch)
                else:
                    chosen[o] = _required(pixels[o], plan, o, "by pixels")
            elif segment.tile.rows > 1 and op.kernels.multi_row and tall is not None and _together(plan, o):
                chosen[o] = tall(o, min(segment.tile.rows, plan.graph.tensors[op.outputs[0]].rows)) or rows[o]
    return chosen


def _together(plan: Plan, op: int) -> bool:
    """Whether the pixels of what an operator reads and writes lie one behind the other."""
    return not any(plan.storages[t].pitch for t in (*plan.graph.ops[op].inputs, *plan.graph.ops[op].outputs))


def _required(kernel: Kernel | None, plan: Plan, op: int, how: str) -> Kernel:
    if kernel is None:
        raise ValidationError(f"{plan.graph.ops[op].name} was planned {how} and has no such kernel")
    return kernel


def _called(plan: Plan, op: int, patch: Patch) -> Patch:
    """The variants of a patch that the plan calls."""
    return patch if wrapping(plan, op, patch) else patch.without_singles()


def wrapping(plan: Plan, op: int, patch: Patch) -> list[tuple[int | None, int]]:
    """Tensors of an operator whose ring's end some steps cross, read or written in place: input position, tensor."""
    node: Op = plan.graph.ops[op]
    direct = [(k, t) for k, (t, g) in enumerate(zip(node.inputs, patch.located, strict=True)) if g is None]
    written = [(None, t) for t in node.outputs]
    return [(k, t) for k, t in (*direct, *written) if not together(plan, t, patch.chunk)]


def together(plan: Plan, tensor: int, chunk: int) -> bool:
    """Whether the pixels of every step of `chunk` are neighbours in a tensor's storage."""
    storage, columns = plan.storages[tensor], plan.graph.tensors[tensor].columns
    slots = storage.pixels if storage.granularity is Granularity.PIXEL else storage.height * columns
    whole = slots >= plan.graph.tensors[tensor].rows * columns
    return whole or chunk == 1 or (slots % chunk == 0 and columns % chunk == 0)
