"""Ring sizes that are found once and kept: the same for a segment whatever segments were looked at before."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest

from tvm_cascade.cascading import cascade, validate
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.geometry import streamable
from tvm_cascade.cascading.interleaving import Interleaving
from tvm_cascade.cascading.options import Settings
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.cascading.simulate import Cascade
from tvm_cascade.footprints import KernelFootprints
from tvm_cascade.graph import IDENTITY, PIXEL, ROW, Graph, Tile, Window
from tvm_cascade.testing.graphs import Builder
from tvm_cascade.testing.random_graphs import mixed_graph
from tvm_cascade.testing.searches.segments import most_held_in_python, trace_in_python


def _meeting() -> Graph:
    """Two branches that meet in an addition; segments that end before it have two sinks, which advance side by side."""
    b = Builder()
    trunk = b.conv(b.input(24, 24, 4), 4, 3)
    pooled = b.max_pool(trunk, 3, 1)
    deep = b.conv(b.conv(b.conv(b.relu(trunk), 4, 5), 4, 5), 4, 3)
    return b.finish(b.conv(b.add(deep, pooled), 4, 3))


def _segments(graph: Graph, tables: AccessTables) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Members of every run of operators, the longest first, and the tensors that live inside alone."""
    n = len(graph.ops)
    for size in range(n, 1, -1):
        for i in range(n - size + 1):
            members = tuple(range(i, i + size))
            made = [t for o in members for t in tables.written(o)]
            yield members, tuple(t for t in made if t not in tables.leaves and {*tables.readers[t]} <= {*members})


@pytest.mark.parametrize("tile", [ROW, PIXEL])
def test_longer_segments_teach_shorter_ones_nothing_wrong(tile: Tile) -> None:
    graph = _meeting()
    tables = AccessTables(graph)
    kept, seen = SegmentCosts(tables, range(len(graph.ops)), Settings()), dict[int, set[int]]()
    for members, inner in _segments(graph, tables):
        i, j = members[0], members[-1] + 1
        held = kept.held(i, j, Interleaving(tile))
        found = {t: held[t] for t in inner}
        simulated = Cascade(tables, members, tile).held()
        assert found == {t: simulated[t] for t in inner}
        for t, units in found.items():
            seen.setdefault(t, set()).add(units)
    assert max(map(len, seen.values())) > 1  # some ring is larger where the branches do not meet


def test_what_sums_up_its_input_writes_all_rows_at_once() -> None:
    """In segments that hold the producer of its input; in others it writes one by one."""
    b = Builder()
    x = b.relu(b.input(8, 4, 2))
    kernels = KernelFootprints(accumulator_bytes=64)
    made = b.op("conv1d", [x], [b.tensor((1, 6, 4, 2))], [Window.whole(8)], [IDENTITY], kernels=kernels)
    graph = b.finish(b.relu(made))
    kept = SegmentCosts(AccessTables(graph, accumulators=True), range(3), Settings())
    assert [kept.held(i, 3, Interleaving(ROW))[made] for i in (0, 1)] == [6, 1]
    validate(cascade(graph))


def _check(cascade_of: Cascade) -> None:
    """Hold the compiled simulation of a segment to the one in Python."""
    compiled = cascade_of.tables.compiled(cascade_of.tile)
    trace = compiled.trace(cascade_of.members, cascade_of.accumulating)
    assert trace.tolist() == trace_in_python(cascade_of)
    held = compiled.most_held(cascade_of.members, cascade_of.accumulating)
    assert held == most_held_in_python(cascade_of)


@pytest.mark.parametrize("seed", range(12))
def test_the_compiled_simulation_runs_the_same_steps(seed: int) -> None:
    graph = mixed_graph(seed, 16)
    streamed = [t for t in graph.inputs if streamable(graph, t)] if seed % 2 else []
    tables = AccessTables(graph, streamed)
    working = [op.index for op in graph.ops if not op.view]
    for members in (working, working[3:9], working[-5:]):
        read = {tables.roots[t].tensor for o in members for t in graph.ops[o].inputs}
        sources = sorted(tables.source(t) for t in tables.streamed & read)
        for tile in (ROW, Tile(2), Tile(columns=1), Tile(columns=3)):
            cascade_of = Cascade(tables, (*sources, *members), tile)
            _check(cascade_of)


def test_the_compiled_simulation_of_what_sums_up_its_input() -> None:
    b = Builder()
    kernels = KernelFootprints(accumulator_bytes=64)
    x = b.relu(b.conv(b.input(8, 4, 2), 2, 3))
    for _ in range(2):
        x = b.op("conv1d", [x], [b.tensor((1, 8, 4, 2))], [Window.whole(8)], [IDENTITY], kernels=kernels)
        x = b.conv(b.relu(x), 2, 3)
    tables = AccessTables(b.finish(x), accumulators=True)
    summing = set[int]()
    for i, j in combinations(range(9), 2):
        cascade_of = Cascade(tables, range(i, j))
        summing.add(len(cascade_of.accumulating))
        _check(cascade_of)
    assert summing == {0, 1, 2}
