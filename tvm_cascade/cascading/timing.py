"""Estimated slowdown of a plan by steps of pixels and by stripes, relative to steps of whole rows."""

from __future__ import annotations

from tvm_cascade.cascading.geometry import goes_by_pixels
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cores.step_model import StepModel


def refused_by_time(plan: Plan, smallest: Plan, model: StepModel) -> tuple[int, float] | None:
    """Bytes and `instruction_factor` of the plan of smallest arena, where a limit on instructions made `plan` larger."""
    return (smallest.peak, instruction_factor(smallest, model)) if smallest.peak < plan.peak else None


def stripe_columns(plan: Plan) -> int:
    """The columns of the narrowest stripes that segments of a plan cut their last map into; 0 where none has stripes."""
    widths = [max(ranges[-1][1] - ranges[-1][0] for ranges in s.stripes) for s in plan.segments if s.stripes]
    return min(widths, default=0)


def instruction_factor(plan: Plan, model: StepModel) -> float:
    """Estimated instructions of a plan, as a factor of those of its operators run by whole rows.

    Recomputed multiply-accumulates are not counted.
    """
    graph = plan.graph
    whole = sum(model.whole(op) for op in graph.ops)
    extra = 0.0
    for segment in plan.segments:
        working = [o for o in segment.ops if not graph.ops[o].view]
        for ranges in segment.stripes:
            for o, (begin, end) in zip(segment.ops, ranges, strict=True):
                if begin < end and o in working:
                    out = graph.tensors[graph.ops[o].outputs[0]]
                    extra += model.striped(graph.ops[o], out.rows, out.columns, end - begin)
        if not segment.tile.by_pixels or len(working) < 2:
            continue
        for o in working:
            if o not in segment.accumulating and goes_by_pixels(graph, o):
                out = graph.tensors[graph.ops[o].outputs[0]]
                extra += model.extra(graph.ops[o], out.rows, out.columns, segment.tile.columns)
    return 1.0 + extra / whole if whole else 1.0
