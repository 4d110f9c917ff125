"""The price of plans, by which limits on time, frontiers and suggestions compare them.

`plan` prints this price: instructions counted in the code of the plan's kernels (`PlanOptions.price`). Graphs without
kernels are priced by the step model, `instruction_factor`.
"""

from __future__ import annotations

from tvm_cascade.cascading.geometry import goes_by_pixels
from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cores.step_model import StepModel

WITHIN_CAP = 1.03  # most instructions under a cap, as a factor of those of the fastest plan within it


def instructions(plan: Plan, options: PlanOptions) -> float | None:
    """Return the estimated instructions of an inference; None if the core's are unknown."""
    if options.steps is None:
        return None
    counted = None if options.price is None or options.draft else options.price(plan)
    if counted is not None:
        return counted
    whole = sum(options.steps.whole(op) for op in plan.graph.ops)
    work = plan.macs / plan.baseline_macs if plan.baseline_macs else 1.0
    return (whole or 1.0) * work * instruction_factor(plan, options.steps)


def allowed_factor(options: PlanOptions) -> float:
    """Return how many times the instructions of the fastest plan a plan without a cap may take.

    That is `max_time`, times `max_macs` if plans may do work twice.
    """
    return options.max_time * (options.max_macs if options.stripes else 1.0)


def stripe_columns(plan: Plan) -> int:
    """Return the columns of the narrowest stripes in a plan's segments; 0 if none has stripes."""
    widths = [max(ranges[-1][1] - ranges[-1][0] for ranges in s.stripes) for s in plan.segments if s.stripes]
    return min(widths, default=0)


def instruction_factor(plan: Plan, model: StepModel) -> float:
    """Estimate a plan's instructions, as a factor relative to the operators run by whole rows.

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
