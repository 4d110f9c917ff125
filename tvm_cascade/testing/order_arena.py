"""Orders to compare with, and arenas of whole tensors for any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tvm_cascade.graph import Graph
from tvm_cascade.memory import Buffer, Problem
from tvm_cascade.ordering.model import Model, model


def arena_problem(
    graph: Graph, order: Sequence[int], alignment: int = 1, capacity: int | None = None, in_place: bool = True
) -> Problem:
    """One buffer per storage, live from its first write to its last read, steps being places in `order`.

    Graph inputs live from step 0, outputs to the end; scratch lives for its step. With `in_place`, an output that
    overwrites a dying input of its own size continues that buffer.
    """
    m = model(graph, in_place)
    end = len(order)
    time = {op: t for t, op in enumerate(order)}
    owner = _continued(graph, m, order)
    lives: dict[int, tuple[int, int, int]] = {}  # size, lower, upper
    for k, s in enumerate(m.storages):
        writers = [time[i] for i in order if s.writers >> i & 1]
        readers = [time[i] for i in order if s.readers >> i & 1]
        lower = min(writers, default=0)
        upper = end if s.live_to_end else max([lower, *readers, *writers]) + 1
        size, first, last = lives.get(owner[k], (s.size, lower, upper))
        lives[owner[k]] = (size, min(first, lower), max(last, upper, first + 1))
    rows = [lives[k] for k in sorted(lives)]
    rows += [(graph.ops[i].scratch_bytes, t, t + 1) for t, i in enumerate(order) if graph.ops[i].scratch_bytes]
    buffers = (Buffer(k, size, lower, upper, alignment) for k, (size, lower, upper) in enumerate(rows))
    return Problem(tuple(buffers), capacity)


def _continued(graph: Graph, m: Model, order: Sequence[int]) -> list[int]:
    """For each storage the one whose buffer it continues, itself where it has its own.

    Only operators with one output continue a buffer: of several, the model does not tell which storage is whose.
    """
    owner = list(range(len(m.storages)))
    storage_of = {s.writers.bit_length() - 1: k for k, s in enumerate(m.storages) if s.writers.bit_count() == 1}
    done = 0
    for i in order:
        done |= 1 << i
        s, size = next(((s, n) for s, n in m.overwrites[i] if not m.storages[s].readers & ~done), (-1, 0))
        if s >= 0 and len(graph.ops[i].outputs) == 1 and m.storages[s].size == m.storages[storage_of[i]].size == size:
            owner[storage_of[i]] = owner[s]
    return owner


def simple_arena(graph: Graph, row: Sequence[int]) -> int:
    """Bytes of TensorFlow Lite's linear arena of 2020, with which Serenity's authors lay out both sides.

    In order of execution each tensor goes into the smallest gap between those live now that holds it, else behind them.
    """
    buffers = sorted(arena_problem(graph, row, in_place=False).buffers, key=lambda b: (b.lower, b.id))
    placed: list[tuple[int, int, int]] = []  # offset, size, first step after its life
    top = 0
    for buffer in buffers:
        placed = sorted(p for p in placed if p[2] > buffer.lower)
        gaps, end = [], 0
        for offset, size, _ in placed:
            if offset - end >= buffer.size:
                gaps.append((offset - end, end))
            end = max(end, offset + size)
        at = min(gaps)[1] if gaps else end
        placed.append((at, buffer.size, buffer.upper))
        top = max(top, at + buffer.size)
    return top


def random_orders(graph: Graph, count: int) -> Iterator[tuple[int, ...]]:
    """Random topological orders, each step uniform over what is ready."""
    random = Random(0)
    for _ in range(count):
        missing = [len(p) for p in graph.predecessors]
        ready = [i for i, k in enumerate(missing) if not k]
        order = []
        while ready:
            i = ready.pop(random.randrange(len(ready)))
            order.append(i)
            for s in graph.successors[i]:
                missing[s] -= 1
                if not missing[s]:
                    ready.append(s)
        yield tuple(order)
