"""Ring sizes that are found once and kept: the same for a segment whatever segments were looked at before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import CDLL

import pytest

from tvm_cascade import native
from tvm_cascade.cascading import cascade, simulate, simulate_compiled, validate
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.interleaving import Interleaving
from tvm_cascade.cascading.options import Settings
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.cascading.simulate import Cascade
from tvm_cascade.footprints import KernelFootprints
from tvm_cascade.graph import IDENTITY, PIXEL, ROW, Graph, Tile, Window
from tvm_cascade.testing.graphs import Builder
from tvm_cascade.testing.random_graphs import mixed_graph


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


def test_segments_of_one_structure_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    x, blocks = b.input(12, 12, 4), list[range]()
    for kernel in (3, 3, 5):
        first = len(b.ops)
        x = b.add(b.conv(b.relu(x), 4, kernel), b.max_pool(x, 3, 1))
        blocks.append(range(first, len(b.ops)))
    tables = AccessTables(b.finish(x))
    traces: list[int] = []
    simulate.most_held.cache_clear()
    compiled, run = native.library(), simulate_compiled.most_held
    assert compiled is not None

    def counted(library: CDLL, demand: simulate.Demand, writes: Sequence[simulate.Write]) -> tuple[int, ...]:
        traces.append(len(demand[0]))
        held = run(library, demand, writes)
        assert held == simulate.most_held_in_python(demand, tuple(writes))
        return held

    monkeypatch.setattr(simulate_compiled, "most_held", counted)
    sizes = [Cascade(tables, block).held() for block in blocks]
    assert traces == [4, 4], "the first two blocks are one structure"
    held = [[size[t] for t in sorted(size)] for size in sizes]
    assert held[0] == held[1] != held[2]
    assert set(sizes[0]).isdisjoint(sizes[1])


@pytest.mark.parametrize("seed", range(12))
def test_the_compiled_simulation_holds_as_much(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = mixed_graph(seed, 16)
    tables, members = AccessTables(graph), [op.index for op in graph.ops if not op.view]
    tiles = (ROW, Tile(2), Tile(columns=1), Tile(columns=3))
    compiled = [(c.held(), c.trace) for c in (Cascade(tables, members, tile) for tile in tiles)]
    assert compiled[0][1] and native.library() is not None
    monkeypatch.setattr(native, "library", lambda: None)
    simulate.most_held.cache_clear()
    simulate.demanded.cache_clear()
    assert [(c.held(), c.trace) for c in (Cascade(tables, members, tile) for tile in tiles)] == compiled
