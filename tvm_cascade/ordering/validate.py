"""Memory of an order step by step, from lifetimes; shares no code with the solver."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Graph


def footprint(graph: Graph, order: Sequence[int], in_place: bool = True) -> tuple[int, ...]:
    """Bytes in use while each operator of `order` runs: every live tensor once, outputs, scratch.

    Raises `ValidationError` where `order` is no topological order.
    """
    if not graph.is_order(order):
        raise ValidationError("the operators do not stand in a topological order")
    time = {op: t for t, op in enumerate(order)}
    owner = {t: t for t in graph.inputs}
    for i in order:
        op = graph.ops[i]
        for t in op.outputs:
            owner[t] = owner[op.inputs[0]] if op.view else t
    first = {t: 0 if t in graph.inputs else time[_made(graph, t)] for t in owner.values()}
    last = dict.fromkeys(first, -1)
    for op in graph.ops:
        for t in op.inputs:
            last[owner[t]] = max(last[owner[t]], time[op.index])
    for t in graph.inputs:
        last[t] = len(order) if last[t] < 0 else last[t]
    for t in graph.outputs:
        last[owner[t]] = len(order)
    steps = []
    for now, i in enumerate(order):
        op = graph.ops[i]
        made = set() if op.view else set(op.outputs)
        live = {t for t in first if first[t] <= now <= last[t]} | made
        used = sum(graph.tensors[t].bytes for t in live) + op.scratch_bytes
        steps.append(used - (_overwritten(graph, i, now, owner, last) if in_place and made else 0))
    return tuple(steps)


def _made(graph: Graph, tensor: int) -> int:
    return next(op.index for op in graph.ops if tensor in op.outputs)


def _overwritten(graph: Graph, op_index: int, now: int, owner: dict[int, int], last: dict[int, int]) -> int:
    op = graph.ops[op_index]
    size = graph.tensors[op.outputs[0]].bytes
    for position in op.in_place:
        t = op.inputs[position]
        if last[owner[t]] == now and graph.tensors[t].bytes >= size:
            return size
    return 0


def peak_of(graph: Graph, order: Sequence[int], in_place: bool = True) -> int:
    """Bytes of the most demanding step, the graph inputs before the first included."""
    resident = sum(graph.tensors[t].bytes for t in graph.inputs)
    return max(footprint(graph, order, in_place), default=resident)


def validate(graph: Graph, order: Sequence[int], peak: int, bound: int, optimal: bool, in_place: bool = True) -> None:
    """Raise `ValidationError` unless `order` needs `peak` bytes and the claims about it are consistent."""
    real = peak_of(graph, order, in_place)
    if real != peak:
        raise ValidationError(f"the order needs {real} bytes, {peak} stated")
    if bound > peak or (optimal and bound != peak):
        raise ValidationError(f"a bound of {bound} bytes does not go with a peak of {peak} (optimal: {optimal})")
