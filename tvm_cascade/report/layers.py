"""The cost of every operator in a plan: a record for each line in layer tables, in the report and in text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """An operator of a plan, or the source of a streamed input; bytes, work and estimates are per inference."""

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
    cycles: int  # estimated; accesses are counted where memories are named
    storage: str = ""  # of weights in fewer bytes than int8 or float32
    saved_bytes: int = 0  # of weights so
    accesses: tuple[tuple[str, int], ...] = ()  # by named memory, cycles of accesses of what lies there, among `cycles`


def layers(plan: Plan, operators: Sequence[Estimate], waits: Sequence[Sequence[float]] = ()) -> list[Layer]:
    """List the operators of `plan` in execution order, without views; `operators` are their estimates, by index.

    `waits` are, by operator, the access cycles for each of the plan's memories; empty if none are named.
    """
    found, names = [], [use.ram.name for use in plan.placed]
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
                op.storage,
                op.saved_bytes,
                tuple(zip(names, map(round, waits[o]), strict=True)) if waits else (),
            )
        )
    return found


def layer_rows(found: Sequence[Layer], origins: Mapping[str, Sequence[str]]) -> list[schema.Layer]:
    """Return the layer records as JSON objects, without sources of streamed inputs; `origins` come from `origin`."""
    return [
        {
            "name": x.name,
            "origin": list(origins.get(x.name, ())),
            "cycles": x.cycles,
            "access_cycles": dict(x.accesses),
            "macs": x.macs,
            "weight_bytes": x.weight_bytes,
            "storage": x.storage,
            "saved_bytes": x.saved_bytes,
        }
        for x in found
        if x.kind != SOURCE
    ]


def layer_table(found: Sequence[Layer], clock: int | None = None) -> str:
    """Format the layers' work and estimated cycles; with a clock in Hz also milliseconds.

    If memories are named, a column for each tells the cycles spent on accesses there.
    """
    rows = [x for x in found if x.kind != SOURCE]
    whole = sum(x.cycles for x in rows)
    timed = "" if clock is None else f" {'ms':>9}"
    memories = [name for name, _ in rows[0].accesses] if rows else []
    titles = "".join(f" {name:>{_width(name)}}" for name in memories)
    lines = [f"{'multiply-acc.':>13} {'instructions':>12} {'cycles (est.)':>13}{titles}{timed} {'of all':>6}  layer"]
    named = [(x.macs, x.instructions, x.cycles, [n for _, n in x.accesses], x.name) for x in rows]
    accessed = [sum(column) for column in zip(*(own for *_, own, _ in named), strict=True)]
    named.append((sum(x.macs for x in rows), sum(x.instructions for x in rows), whole, accessed, "all"))
    for macs, instructions, cycles, own, name in named:
        time = "" if clock is None else f" {milliseconds(cycles, clock):>9.3f}"
        of = "".join(f" {n:>{_width(memory)}}" for memory, n in zip(memories, own, strict=True))
        lines.append(f"{macs:>13} {instructions:>12} {cycles:>13}{of}{time} {cycles / max(whole, 1):>6.1%}  {name}")
    return "\n".join(lines)


def _width(memory: str) -> int:
    """Return the characters in a memory's column."""
    return max(len(memory), 10)
