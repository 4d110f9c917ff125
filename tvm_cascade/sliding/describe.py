"""The plan of a frame as the JSON object that `plan` and `compile` print."""

from __future__ import annotations

from tvm_cascade.schema.filled import filled
from tvm_cascade.schema.plan import Frame, FramePoint
from tvm_cascade.sliding.frame import FramePlan, frame_frontier
from tvm_cascade.sliding.network import Rows, Step


def frame_record(plan: FramePlan) -> Frame:
    """Describe the work of a frame beside the whole window's."""
    return filled(
        Frame,
        plan,
        window_rows=plan.network.series[plan.network.input].rows or 0,
        running_sums={s.name: s.total_bytes for s in plan.network.steps if s.output in plan.totals},
        border_rows=border_rows(plan),
        border_macs=border_macs(plan),
        frontier=[filled(FramePoint, point) for point in frame_frontier(plan.network, plan.hop)],
    )


def border_macs(plan: FramePlan) -> int:
    """Count a frame's multiply-accumulates in rows dependent on padding."""
    return sum(plan.network.macs(step, rows) for step, parts in _border(plan) for rows in parts)


def border_rows(plan: FramePlan) -> dict[str, int]:
    """Count by operator the rows computed in every frame because they depend on padding."""
    return {step.name: sum(end - first for first, end in parts) for step, parts in _border(plan)}


def _border(plan: FramePlan) -> list[tuple[Step, list[Rows]]]:
    """List the operators with rows dependent on padding, with these rows."""
    found: list[tuple[Step, list[Rows]]] = []
    for step in plan.network.steps:
        own, interior = plan.series[step.output], plan.reach.interiors[step.output]
        if own is None or interior is None or not step.macs:
            continue
        sides = [
            part
            for first, end in own.computed
            for part in ((first, min(end, interior.first)), (max(first, interior.end), end))
        ]
        if parts := [(first, end) for first, end in sides if first < end]:
            found.append((step, parts))
    return found
