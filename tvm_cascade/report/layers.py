"""What every operator of a plan costs: one record for each line of the tables of layers, of the report and in text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.validate import executed_macs
from tvm_cascade.report.cost import milliseconds
from tvm_cascade.report.estimate import Estimate
from tvm_cascade.report.steps import operator_rows
from tvm_cascade.schema import plan as schema

SOURCE = "source"  # the kind of what delivers rows of a streamed input


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
    cycles: int  # estimated, where memory answers at once


def layers(plan: Plan, operators: Sequence[Estimate]) -> list[Layer]:
    """The operators of `plan` in execution order, views left out; `operators` are their estimates, by index."""
    found = []
    for o, row in operator_rows(plan):
        shared = (row["operator"], row["kind"], row["segment"], row["steps"], row["by"], row["output"])
        if o is None:
            found.append(Layer(*shared, 0, row["live_bytes"], 0, 0, 0, 0, 0))
            continue
        op, cost = plan.graph.ops[o], operators[o]
        made = sum(plan.graph.tensors[t].bytes for t in op.outputs)
        macs = executed_macs(plan, plan.segments[row["segment"]], o)
        found.append(
            Layer(
                *shared,
                made,
                row["live_bytes"],
                macs,
                cost.instructions,
                op.weight_bytes,
                cost.weight_bytes,
                cost.cycles,
            )
        )
    return found


def layer_rows(found: Sequence[Layer]) -> list[schema.Layer]:
    """The records of layers as JSON objects, sources of streamed inputs left out."""
    return [{"name": x.name, "cycles": x.cycles, "macs": x.macs} for x in found if x.kind != SOURCE]


def layer_table(found: Sequence[Layer], clock: int | None = None) -> str:
    """Work and estimated cycles of layers as text; with a clock in Hz milliseconds too."""
    rows = [x for x in found if x.kind != SOURCE]
    whole = sum(x.cycles for x in rows)
    timed = "" if clock is None else f" {'ms':>9}"
    lines = [f"{'multiply-acc.':>13} {'instructions':>12} {'cycles (est.)':>13}{timed} {'of all':>6}  layer"]
    named = [(x.macs, x.instructions, x.cycles, x.name) for x in rows]
    named.append((sum(x.macs for x in rows), sum(x.instructions for x in rows), whole, "all"))
    for macs, instructions, cycles, name in named:
        time = "" if clock is None else f" {milliseconds(cycles, clock):>9.3f}"
        lines.append(f"{macs:>13} {instructions:>12} {cycles:>13}{time} {cycles / max(whole, 1):>6.1%}  {name}")
    return "\n".join(lines)
