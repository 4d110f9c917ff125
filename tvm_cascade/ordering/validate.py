"""Ordering validator: memory of an order step by step, from tensor lifetimes; shares no code with the solver."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Graph


def footprint(graph: Graph, order: Sequence[int], in_place: bool = True) -> tuple[int, ...]:
    """Compute the bytes in use while each operator in `order` runs: every live tensor once, outputs, scratch.

    Raises
    ------
    ValidationError
        `order` is no topological order.
    """
    if not graph.is_order(order):
        raise ValidationError("the operators do not stand in a topological order")
    time = {op: t for t, op in enumerate(order)}
    owner = _owners(graph)
    first, last = _lifetimes(graph, time, owner)
    changes = [0] * (len(order) + 1)  # bytes that become live with a step, less those that died with the one before
    for t in first:
        if first[t] <= last[t]:
            changes[first[t]] += graph.tensors[t].bytes
            changes[min(last[t] + 1, len(order))] -= graph.tensors[t].bytes
    steps = []
    for now, (i, live) in enumerate(zip(order, accumulate(changes), strict=False)):
        op = graph.ops[i]
        new = set() if op.view else {owner[t] for t in op.outputs}
        used = live + sum(graph.tensors[t].bytes for t in new if not first[t] <= now <= last[t]) + op.scratch_bytes
        used += sum(graph.tensors[t].bytes for t in new if op.attrs.get("beside") and first[t] < now)
        saves = in_place and new == set(op.outputs) and op.outputs
        steps.append(used - (_overwritten(graph, i, now, owner, last) if saves else 0))
    return tuple(steps)


def _lifetimes(graph: Graph, time: dict[int, int], owner: dict[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """Find for each memory owner the first writing step, and the last reading step: -1 for none."""
    first = dict.fromkeys((t for t in graph.inputs if owner[t] == t), 0)
    for op in graph.ops:
        for t in () if op.view else op.outputs:
            first[owner[t]] = min(first.get(owner[t], len(time)), time[op.index])
    last = dict.fromkeys(first, -1)
    for op in graph.ops:
        for t in op.inputs:
            last[owner[t]] = max(last[owner[t]], time[op.index])
    for t in graph.inputs:
        last[t] = len(time) if last[t] < 0 else last[t]
    for t in graph.outputs:
        last[owner[t]] = len(time)
    return first, last


def _owners(graph: Graph) -> dict[int, int]:
    """Find each tensor's memory owner: a view's source, or a join's output."""
    owner = {t.index: t.index for t in graph.tensors}
    for op in graph.ops:
        for t in op.outputs if op.view else ():
            if len(op.inputs) == 1:
                owner[t] = owner[op.inputs[0]]
            else:
                parts = {owner[p] for p in op.inputs}
                owner = {k: t if v in parts else v for k, v in owner.items()}
    return owner


def _overwritten(graph: Graph, op_index: int, now: int, owner: dict[int, int], last: dict[int, int]) -> int:
    op = graph.ops[op_index]
    size = graph.tensors[op.outputs[0]].bytes
    for position in op.in_place:
        t = op.inputs[position]
        if last[owner[t]] == now and graph.tensors[t].bytes >= size:
            return size
    return 0


def peak_of(graph: Graph, order: Sequence[int], in_place: bool = True) -> int:
    """Compute the bytes in use at the most demanding step; the graph inputs' bytes if there are no operators."""
    resident = sum(graph.tensors[t].bytes for t in graph.inputs)
    return max(footprint(graph, order, in_place), default=resident)


def validate(graph: Graph, order: Sequence[int], peak: int, bound: int, optimal: bool, in_place: bool = True) -> None:
    """Check that `order` needs `peak` bytes, and all other claims for consistency.

    Raises
    ------
    ValidationError
        A claim is wrong; the message states the figures.
    """
    real = peak_of(graph, order, in_place)
    if real != peak:
        raise ValidationError(f"the order needs {real} bytes, {peak} stated")
    if bound > peak or (optimal and bound != peak):
        raise ValidationError(f"a bound of {bound} bytes does not go with a peak of {peak} (optimal: {optimal})")
