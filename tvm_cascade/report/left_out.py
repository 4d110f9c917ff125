"""Why operators of a plan run alone, and how to change that."""

from __future__ import annotations

from tvm_cascade.cascading import Plan, PlanOptions
from tvm_cascade.cascading.regions import Partition, partition
from tvm_cascade.graph import Graph
from tvm_cascade.report.text import peak_segment


def left_out(graph: Graph, plan: Plan, options: PlanOptions | None = None) -> dict[str, str]:
    """Explain for each operator that runs alone the reason and the remedy, by name."""
    regions = partition(graph)
    alone = {graph.ops[x.op].name: f"{x.reason}; {x.remedy}" for x in regions.left_out}
    peak = peak_segment(plan)
    for k, segment in enumerate(plan.segments):
        ops = [graph.ops[o] for o in segment.ops if not graph.ops[o].view]
        if len(ops) == 1 and ops[0].name not in alone:
            alone[ops[0].name] = _why_alone(graph, regions, ops[0].index, k, peak, plan, options)
    return alone


def _why_alone(
    graph: Graph, regions: Partition, op: int, segment: int, peak: int, plan: Plan, options: PlanOptions | None
) -> str:
    region = regions.region_of[op]
    beside = [o for o in regions.regions[region] if not graph.ops[o].view] if region is not None else []
    if len(beside) < 2:
        return "none of its neighbours can cascade; see why these are left out"
    if options is not None and options.layerwise:
        return "operators run one by one as asked; plan without --layerwise"
    if options is not None and options.sram is not None:
        return "the plan fits its cap with this operator as it is; a smaller --sram takes it in"
    if segment == peak:
        return "the arena is largest here, and no cascade with its neighbours is smaller; --max-macs allows more forms"
    there = plan.segments[peak].ops
    names = [graph.ops[o].name for o in there if not graph.ops[o].view] or [graph.ops[o].name for o in there]
    where = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return f"a cascade with its neighbours would not lower the peak, which lies at {where}; that must shrink first"
