"""Closed regions: element-wise operators behind a tensor with several readers, up to the operator where all paths meet.

Exporters spell activations out of element-wise operators: GELU as `x * (1 + erf(x / sqrt 2)) / 2` or by a cubic and tanh, SiLU
as `x * sigmoid(x)`, hard swish as `x * clip(x + 3, 0, 6) / 6`, mish as `x * tanh(log(1 + exp x))`. No operator of a region reads
another tensor, and only the last operator's result is read from outside::

    y = dense(x); s = sigmoid(y); z = y * s   ->   one kernel of dense, sigmoid and mul: y and s are not written

A kernel computes an element of the region by one expression, in which a tensor with two readers stands twice.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from tvm_cascade.graph import Graph, Op
from tvm_cascade.operators.table import ELEMENTWISE

_MOST_TERMS = 48  # of the expression of an element


def closed_region(graph: Graph, head: Op, terms: int = 1) -> tuple[tuple[int, ...], int] | None:
    """Find the smallest region behind `head`: its operators in topological order and the terms of an element's expression.

    `terms`: of the expression of the head's result. Returns None if there is no region, or if its expression has more
    than `_MOST_TERMS`.
    """
    if len(head.outputs) != 1 or head.outputs[0] in graph.outputs or len(graph.successors[head.index]) < 2:
        return None
    inside: list[int] = []
    terms_of = {head.outputs[0]: terms}
    waiting = list(graph.successors[head.index])
    heapify(waiting)
    known = set(waiting)
    while waiting:
        op = graph.ops[heappop(waiting)]
        if op.kind not in ELEMENTWISE or len(op.outputs) != 1 or not set(op.inputs) <= terms_of.keys():
            return None
        inside.append(op.index)
        terms_of[op.outputs[0]] = size = 1 + sum(terms_of[t] for t in op.inputs)
        if size > _MOST_TERMS:
            return None
        if not waiting:
            return tuple(inside), size
        if op.outputs[0] in graph.outputs:
            return None
        for reader in graph.successors[op.index]:
            if reader not in known:
                known.add(reader)
                heappush(waiting, reader)
    return None
