"""Row tables for pixel steps, for `validate`: the scratch needed, and the bytes reached from one pointer."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.validate_memory import Area
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Op


def workspace_of_step(plan: Plan, s: int, op: Op, reads: Sequence[tuple[int, Area]]) -> int:
    """Count the bytes of row tables and copied kernel rows, for a step in segment s that computes some pixels.

    `reads` are the areas read by the step, as (position in the inputs, area), one for each tap along the rows. Raises
    `ValidationError` if two areas would be copied, or an area outside the scratch's memory.
    """
    total = 0
    for k, table in enumerate(op.kernels.row_tables):
        if table is None:
            continue
        torn = [area for i, area in reads if i == k and _wraps(plan, area)]
        if len(torn) > 1:
            raise ValidationError(f"{op.name}: two kernel rows of a step wrap in the ring that it reads", [op.name])
        total += 4 * table.taps
        for area in torn:
            total += -total % 16 + (_end(plan, area) - area.x0) * table.pixel_bytes
            storage = plan.storages[area.tensor]
            ring = f"tensor {area.tensor if storage.root is None else storage.root}"
            at = dict(zip(plan.buffers, plan.allocation.offsets, strict=True))
            if plan.memory_at(at[ring]) != plan.memory_at(at[f"scratch {s}"]):
                said = f"{op.name}: the ring that it reads is not in the memory of its row table"
                raise ValidationError(said, [op.name])
    return total + (-total % 8 if op.scratch_bytes else 0)


def _wraps(plan: Plan, area: Area) -> bool:
    """Test whether a part of a row wraps around to the begin of the enclosing pixel ring."""
    slots = plan.storages[area.tensor].pixels
    first = area.y0 * plan.graph.tensors[area.tensor].columns + area.x0
    return slots > 0 and first % slots + _end(plan, area) - area.x0 > slots


def _end(plan: Plan, area: Area) -> int:
    return plan.graph.tensors[area.tensor].columns if area.x1 is None else area.x1
