"""Plans for reading: with names that a line of a table has room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.messages import short_name


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return the short form shown for each name; names with equal short forms stay whole."""
    short = {name: short_name(name) for name in dict.fromkeys(names)}
    times = Counter(short.values())
    return {name: shown if times[shown] == 1 else name for name, shown in short.items()}


def with_short_names(plan: Plan) -> Plan:
    """Return the plan with short names of operators and tensors."""
    graph = plan.graph
    names = short_names([*(op.name for op in graph.ops), *(tensor.name for tensor in graph.tensors)])
    ops = tuple(replace(op, name=names[op.name]) for op in graph.ops)
    tensors = tuple(replace(tensor, name=names[tensor.name]) for tensor in graph.tensors)
    return replace(plan, graph=replace(graph, ops=ops, tensors=tensors))
