"""What every operator of a plan costs: one record for each line of the report's table of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.validate import executed_macs
from tvm_cascade.report.estimate import Estimate
from tvm_cascade.report.steps import operator_rows


@dataclass(frozen=True, slots=True)
class Layer:
    """An operator of a plan, or the source of a streamed input; bytes, work and estimates are of one inference."""

    name: str
    kind: str
    segment: int
    steps: int
    by: str  # what a step makes
    output: str  # how its outputs are stored
    output_bytes: int  # of all of its outputs, whole
    live_bytes: int  # of the arena while its segment runs
    macs: int
    instructions: int  # estimated
    weight_bytes: int
    weight_reads: int  # estimated bytes of weights that are read


def layers(plan: Plan, operators: Sequence[Estimate]) -> list[Layer]:
    """The operators of `plan` in execution order, views left out; `operators` are their estimates, by index."""
    found = []
    for o, row in operator_rows(plan):
        shared = (row["operator"], row["kind"], row["segment"], row["steps"], row["by"], row["output"])
        if o is None:
            found.append(Layer(*shared, 0, row["live_bytes"], 0, 0, 0, 0))
            continue
        op, cost = plan.graph.ops[o], operators[o]
        made = sum(plan.graph.tensors[t].bytes for t in op.outputs)
        macs = executed_macs(plan, plan.segments[row["segment"]], o)
        found.append(
            Layer(*shared, made, row["live_bytes"], macs, cost.instructions, op.weight_bytes, cost.weight_bytes)
        )
    return found
