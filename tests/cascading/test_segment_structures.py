"""Segments of one structure share their costs: what is shared is what each would cost by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, combinations
from random import Random

import pytest

from tvm_cascade.cascading import segment_structures
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.geometry import streamable
from tvm_cascade.cascading.interleaving import BY_ROWS, Interleaving
from tvm_cascade.cascading.options import Settings
from tvm_cascade.cascading.segment_structures import forget_structures
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.cascading.structure import structure
from tvm_cascade.errors import GraphError
from tvm_cascade.graph import PIXEL, Graph, Tile
from tvm_cascade.testing.graphs import Builder
from tvm_cascade.testing.random_windows import random_graph

INTERLEAVINGS = (BY_ROWS, Interleaving(PIXEL), Interleaving(Tile(2)), Interleaving(stripe_columns=1))


def cells(count: int, size: int = 12) -> Graph:
    """Cells of two branches, each of which reads the two cells before it."""
    b = Builder()
    before = last = b.conv(b.input(size, size, 4), 4)
    for _ in range(count):
        left = b.depthwise(b.conv(before, 4, 3))
        right = b.max_pool(last, 3, 1)
        before, last = last, b.conv(b.add(left, right), 4)
    return b.finish(b.add(before, last))


def with_joins(graph: Graph) -> Graph:
    """The graph whose concats of operators' own outputs are joins along the channels."""
    makers, joined = {t: op for op in graph.ops for t in op.outputs}, set[int]()
    for op in graph.ops:
        parts = set(op.inputs)
        able = all(t in makers and not makers[t].view and t not in graph.outputs for t in parts)
        if op.kind == "concat" and len(parts) == len(op.inputs) and able and not parts & joined:
            starts = tuple(accumulate((graph.tensors[t].shape[-1] for t in op.inputs[:-1]), initial=0))
            join = replace(op, view=True, part_offsets=starts, in_place=(), scratch_bytes=0)
            with suppress(GraphError):  # one part depends on another
                graph = replace(graph, ops=(*graph.ops[: op.index], join, *graph.ops[op.index + 1 :]))
                joined |= {*parts, *op.outputs}
    return graph


def some_order(graph: Graph, seed: int) -> tuple[int, ...]:
    """A topological order: the file's for seed 0, a random one for others."""
    order: list[int] = []
    random, left = Random(seed), set(range(len(graph.ops)))
    while left:
        ready = sorted(o for o in left if not left.intersection(graph.predecessors[o]))
        chosen = random.choice(ready) if seed else ready[0]
        order.append(chosen)
        left.discard(chosen)
    return tuple(order)


def costs_of(graph: Graph, seed: int) -> Iterator[SegmentCosts]:
    """The costs of some orders of a graph, inputs whole or streamed, under several settings."""
    rowwise = [t for t in graph.inputs if streamable(graph, t)]
    for streamed in ((), rowwise):
        tables = AccessTables(graph, streamed, accumulators=bool(seed % 2))
        for settings in (Settings(4, True, True), Settings(1, True, False, rings_follow=False), Settings(8)):
            costs = SegmentCosts(tables, some_order(graph, seed), settings)
            yield costs
            yield costs.without_ring_constraints()


def figures(costs: SegmentCosts, i: int, j: int, how: Interleaving) -> tuple[int, ...] | None:
    """All that is shared of [i, j); None where it cannot be striped."""
    if how.striped and costs.stripes(i, j, how) is None:
        return None
    return costs.cost(i, j, how), costs.exact_cost(i, j, how), costs.shared(i, j, how), costs.most_shared(i, j)


def of_all(graphs: list[Graph], alone: bool) -> list[tuple[int, ...] | None]:
    """The figures of every segment in every form, each worked out from nothing where `alone`."""
    found: list[tuple[int, ...] | None] = []
    for seed, graph in enumerate(graphs):
        for costs in costs_of(graph, seed):
            for i, j in combinations(range(len(graph.ops) + 1), 2):
                for how in INTERLEAVINGS:
                    if alone:
                        forget_structures()
                    found.append(figures(costs, i, j, how))
    return found


@pytest.mark.parametrize("part", range(3))
def test_what_is_shared_is_what_each_segment_costs(part: int) -> None:
    graphs = [random_graph(seed, operators=5, largest=6) for seed in range(8 * part, 8 * (part + 1))]
    graphs += [replace(g, outputs=(*g.outputs, g.ops[0].outputs[0])) for g in graphs]  # other lives
    graphs += [joins for g in graphs if (joins := with_joins(g)) != g]
    graphs = [structure(g) for g in graphs]
    forget_structures()
    shared = of_all(graphs, alone=False)
    assert shared == of_all(graphs, alone=True)


def test_repeated_cells_are_worked_out_once() -> None:
    """Three more cells need nothing that six cells did not."""
    forget_structures()
    made: list[int] = []
    for count in (6, 9):
        graph = structure(cells(count))
        costs = SegmentCosts(AccessTables(graph), range(len(graph.ops)), Settings(4, True, True))
        for i in range(len(graph.ops)):
            for j in range(i + 1, min(i + 8, len(graph.ops)) + 1):
                costs.cost(i, j)
        made.append(len(segment_structures._results))
    assert made[1] == made[0] > 0


def test_nothing_wrong_comes_of_forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more is kept than there is room for, all is worked out again; numbers that are in use stay unique."""
    graphs = [cells(3), cells(4), *(random_graph(seed) for seed in range(4))]
    kept = of_all(graphs, alone=False)
    forget_structures()
    monkeypatch.setattr(segment_structures, "_MOST", 20)
    assert of_all(graphs, alone=False) == kept
    assert len(segment_structures._results) <= 20 and len(segment_structures._numbers) <= 20
