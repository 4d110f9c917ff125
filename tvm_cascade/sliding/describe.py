"""The plan of a frame as the JSON object that `plan` and `compile` print."""

from __future__ import annotations

from tvm_cascade.schema.filled import filled
from tvm_cascade.schema.plan import Frame, FramePoint
from tvm_cascade.sliding.frame import FramePlan, frame_frontier


def frame_record(plan: FramePlan) -> Frame:
    """What a frame does beside the whole window."""
    return filled(
        Frame,
        plan,
        window_rows=plan.network.series[plan.network.input].rows or 0,
        border_rows=border_rows(plan),
        frontier=[filled(FramePoint, point) for point in frame_frontier(plan.network, plan.hop)],
    )


def border_rows(plan: FramePlan) -> dict[str, int]:
    """By operator with work of its own, the rows that are computed in every frame because they depend on padding."""
    found: dict[str, int] = {}
    for step in plan.network.steps:
        own, interior = plan.series[step.output], plan.reach.interiors[step.output]
        if own is None or interior is None or not step.macs:
            continue
        inside = sum(max(0, min(end, interior.end) - max(first, interior.first)) for first, end in own.computed)
        if own.rows > inside:
            found[step.name] = own.rows - inside
    return found
