"""From an order to the arena it needs: lifetimes of all storages as an allocation problem."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.graph import Graph
from tvm_cascade.memory import Buffer, Problem
from tvm_cascade.ordering.model import model


def arena_problem(graph: Graph, order: Sequence[int], alignment: int = 1, capacity: int | None = None) -> Problem:
    """One buffer per storage, live from its first write to its last read, steps being places in `order`.

    Graph inputs live from step 0, outputs to the end. Nothing is overwritten in place; scratch lives for its step.
    """
    m = model(graph, in_place=False)
    time = {op: t for t, op in enumerate(order)}
    end = len(order)
    buffers: list[Buffer] = []
    for s in m.storages:
        writers = [time[i] for i in range(end) if s.writers >> i & 1]
        readers = [time[i] for i in range(end) if s.readers >> i & 1]
        lower = min(writers, default=0)
        upper = end if s.kept else max([*readers, *writers], default=0) + 1
        buffers.append(Buffer(len(buffers), s.size, lower, max(upper, lower + 1), alignment))
    for t, i in enumerate(order):
        if graph.ops[i].scratch_bytes:
            buffers.append(Buffer(len(buffers), graph.ops[i].scratch_bytes, t, t + 1, alignment))
    return Problem(tuple(buffers), capacity)
