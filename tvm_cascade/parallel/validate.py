"""Schedule validator: checks stages and groups against the graph's dependences; shares no code with the search."""

from __future__ import annotations

from collections.abc import Mapping

from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Graph
from tvm_cascade.operators.table import CONVOLUTIONS
from tvm_cascade.parallel.problem import CONCURRENT, MERGE, Schedule


def validate_schedule(graph: Graph, schedule: Schedule) -> None:
    """Check that `schedule` (stages of operator indices) computes the same as `graph`.

    Every operator has to run once and after its predecessors. A stage's groups must not depend on one another, and a
    merge stage's operators must be mergeable. Views may be missing, as they move no data. Raises `ValidationError`,
    with the stage and the operators, if any condition fails.
    """
    _check_coverage(graph, schedule)
    done: set[int] = set()
    for number, stage in enumerate(schedule.stages):
        if stage.strategy not in (CONCURRENT, MERGE):
            raise ValidationError(f"stage {number} has the unknown strategy {stage.strategy}")
        for group in stage.groups:
            seen = set(done)
            for i in group:
                missing = _needs(graph, i) - seen
                if missing:
                    names = ", ".join(graph.ops[m].name for m in sorted(missing))
                    raise ValidationError(
                        f"stage {number} runs {graph.ops[i].name} before, or at the same time as, {names}, whose output it reads"
                    )
                seen.add(i)
        done.update(i for group in stage.groups for i in group)
        if stage.strategy == MERGE:
            _check_merge(graph, number, [i for group in stage.groups for i in group])


def validate_beside(graph: Graph, schedule: Schedule, chosen: str, prices: Mapping[str, float | None]) -> None:
    """Check the choice among schedules of networks without edges between them: `prices` in milliseconds by name.

    The chosen schedule costs the least of all prices and has the form of its name: "after" has the networks one after the
    other, "apart" all in a single stage with a group each. Raises `ValidationError` otherwise.
    """
    validate_schedule(graph, schedule)
    known = [price for price in prices.values() if price is not None]
    if prices.get(chosen) != min(known) or schedule.cost_ms != min(known):
        raise ValidationError(f"{chosen} is chosen at {schedule.cost_ms} ms, and the prices are {dict(prices)}")
    network = _network_of(graph)
    if chosen == "after":
        runs: list[int] = []
        for number, stage in enumerate(schedule.stages):
            mixed = {network[i] for group in stage.groups for i in group}
            if len(mixed) > 1:
                raise ValidationError(f"stage {number} holds several networks, which run one after the other")
            runs += [n for n in mixed if runs[-1:] != [n]]
        if len(runs) != len(set(runs)):
            raise ValidationError("a network runs in several parts, though one runs after the other")
    if chosen == "apart":
        held = [{network[i] for i in group} for stage in schedule.stages for group in stage.groups]
        if len(schedule.stages) != 1 or sorted(map(len, held)) != [1] * len(set(network)):
            raise ValidationError("networks apart are not a single stage with a group each")


def _network_of(graph: Graph) -> list[int]:
    """Return the number of each operator's network, by search from every operator that has none yet."""
    number = [-1] * len(graph.ops)
    for first in range(len(graph.ops)):
        if number[first] >= 0:
            continue
        todo, number[first] = [first], first
        while todo:
            i = todo.pop()
            near = [k for k in (*graph.predecessors[i], *graph.successors[i]) if number[k] < 0]
            todo += near
            for k in near:
                number[k] = first
    return number


def _check_coverage(graph: Graph, schedule: Schedule) -> None:
    count = [0] * len(graph.ops)
    for stage in schedule.stages:
        for group in stage.groups:
            for i in group:
                if not 0 <= i < len(graph.ops):
                    raise ValidationError(f"operator {i} does not exist: the graph has {len(graph.ops)}", [str(i)])
                count[i] += 1
    for op in graph.ops:
        if count[op.index] > 1 or (count[op.index] == 0 and not op.view):
            raise ValidationError(f"operator {op.name} runs {count[op.index]} times", [op.name])


def _needs(graph: Graph, op: int) -> set[int]:
    """Return the operators that must have run before `op`, seen through views left out of the schedule."""
    needed: set[int] = set()
    todo = list(graph.predecessors[op])
    while todo:
        p = todo.pop()
        if graph.ops[p].view:
            todo += graph.predecessors[p]
        else:
            needed.add(p)
    return needed


def _check_merge(graph: Graph, number: int, members: list[int]) -> None:
    """Check that a merge stage's operators with outside inputs read the same tensor, with compatible windows."""
    inside = {t for i in members for t in graph.ops[i].outputs}
    heads = [graph.ops[i] for i in members if not any(t in inside for t in graph.ops[i].inputs)]
    first = heads[0]
    written = [t for i in members for t in graph.ops[i].outputs]
    left = [t for t in written if t in graph.outputs or set(graph.consumers[t]) - set(members)]
    if len({graph.tensors[t].dtype for t in left}) > 1:
        raise ValidationError(f"stage {number} merges {first.name} with operators whose results are of another type")
    for op in heads:
        if op.kind != first.kind or set(op.inputs) != set(first.inputs) or op.attrs.get("groups", 1) != 1:
            raise ValidationError(
                f"stage {number} merges {op.name} with {first.name}, which differ in kind or input", [op.name]
            )
        for mine, other in zip((*op.windows, *op.columns), (*first.windows, *first.columns), strict=True):
            if op.kind not in CONVOLUTIONS:
                continue
            if mine is None or other is None or (mine.stride, mine.dilation) != (other.stride, other.dilation):
                raise ValidationError(
                    f"stage {number} merges {op.name} with {first.name}, which differ in stride", [op.name]
                )
            if (mine.padding - other.padding) % mine.dilation:
                raise ValidationError(
                    f"stage {number} merges {op.name} with {first.name}, whose taps interleave", [op.name]
                )
        ours, theirs = graph.tensors[op.outputs[0]], graph.tensors[first.outputs[0]]
        if op.kind in CONVOLUTIONS and (ours.rows, ours.columns) != (theirs.rows, theirs.columns):
            raise ValidationError(
                f"stage {number} merges {op.name} with {first.name}, whose outputs differ in size", [op.name]
            )
