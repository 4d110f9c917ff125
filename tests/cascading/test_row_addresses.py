"""Rows at addresses of their own: lives by a second count, the best cuts, plans that replay, and known networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest

from tvm_cascade.cascading import Plan, PlanOptions, bound_of, plan_graph, row_addresses, validate
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.geometry import streamable
from tvm_cascade.cascading.options import Settings
from tvm_cascade.cascading.row_bounds import RowBounds
from tvm_cascade.cascading.row_lives import RowLives
from tvm_cascade.cascading.search_cache import row_lives
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.errors import InfeasibleError, ValidationError
from tvm_cascade.graph import ROW, Graph
from tvm_cascade.testing.graphs import Builder, ds_cnn, mobilenet_v1, resnet8
from tvm_cascade.testing.random_windows import random_graph

APART = PlanOptions(pixels=False, stripes=False)
IN_RINGS = replace(APART, row_addresses=False)


def able(graph: Graph) -> Graph:
    """The graph of operators that all have kernels which find rows by their addresses."""
    ops = tuple(replace(op, kernels=replace(op.kernels, row_addresses=not op.view)) for op in graph.ops)
    return replace(graph, ops=ops)


def scattered(plan: Plan) -> bool:
    return any(s.row_addresses for s in plan.storages)


def lives_of(graph: Graph, **settings: Any) -> RowLives:
    costs = SegmentCosts(AccessTables(graph), range(len(graph.ops)), Settings(1, False, False))
    return RowLives(costs)


def counted(graph: Graph) -> int:
    """Bytes live at most while a chain of one segment runs by rows: read off its windows, row by row."""
    lives = lives_of(graph)
    n = len(graph.ops)
    trace = lives.cascade(0, n).trace
    made: dict[tuple[int, int], int] = {(t, r): 0 for t in graph.inputs for r in range(graph.tensors[t].rows)}
    read: dict[tuple[int, int], int] = {}
    done = [0] * n
    for k, o in enumerate(trace):
        op, y = graph.ops[o], done[o]
        for t, window in zip(op.inputs, op.windows, strict=True):
            assert window is not None
            taps = (window.first(y) + tap * window.dilation for tap in range(window.extent))
            read |= {(t, r): k for r in taps if 0 <= r < graph.tensors[t].rows}
        made |= {(t, y): k for t in op.outputs}
        done[o] += 1
    ends = {at: len(trace) - 1 if at[0] in graph.outputs else read.get(at, k) for at, k in made.items()}
    # rows below one that is still read count as read: kernels never go back
    for t in {t for t, _ in made}:
        rows = sorted(r for u, r in made if u == t)
        for above, below in pairwise(reversed(rows)):
            if t not in graph.outputs:
                ends[t, above] = max(ends[t, above], ends[t, below])
    live = [
        sum(graph.tensors[t].row_bytes for (t, r), k in made.items() if k <= now <= ends[t, r])
        for now in range(len(trace))
    ]
    return max(live) + lives.costs.state_bytes(0, n, ROW)


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_live_bytes_by_a_second_count(kernel: int, stride: int) -> None:
    for rows in (5, 8, 13):
        b = Builder()
        x = b.conv(b.input(rows, 4, 3), 5, kernel)
        graph = able(b.finish(b.conv(b.conv(x, 2, kernel, stride), 4, 3)))
        assert lives_of(graph).bytes(0, 3) == counted(graph)


def cuts_of(n: int) -> Iterator[tuple[int, ...]]:
    for count in range(n):
        for inner in combinations(range(1, n), count):
            yield (0, *inner, n)


def test_cuts_of_fewest_live_bytes() -> None:
    tried = 0
    for seed in range(40):
        graph = able(random_graph(seed, operators=3 + seed % 4, largest=10))
        lives, n = lives_of(graph), len(graph.ops)
        least = min(max(lives.bytes(i, j) for i, j in pairwise(cuts)) for cuts in cuts_of(n))
        found = lives.smallest_cuts(least + 1)
        assert found is not None and found[0] == least
        assert max(lives.bytes(i, j) for i, j in pairwise(found[1])) == least
        assert lives.smallest_cuts(least) is None
        tried += n > 3
    assert tried > 20


def test_networks_whose_rows_have_no_addresses_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks written out step by step have thousands of segments, and tensors of one row; the caller's rows lie together."""
    monkeypatch.setattr(RowLives, "needed", None)
    for rows in (1, 6):  # one row; and rows of the caller's input and output alone
        b = Builder()
        graph = able(b.finish(b.conv(b.input(rows, 4, 3), 5, 1)))
        assert row_lives(graph, APART) == () and bound_of(plan_graph(graph, APART)) > 0
    b = Builder()
    graph = able(b.finish(b.conv(b.conv(b.input(6, 4, 3), 5, 3), 2, 3)))
    assert [lives.separate for lives in row_lives(graph, APART)] == [{1}]


def test_what_windows_read_at_once_is_a_lower_bound() -> None:
    """Of every network's plans with row addresses, by the fewest live bytes of all cuts; at some it is more than a row."""
    floors = []
    for graph in (able(random_graph(seed, operators=3 + seed % 5, largest=10)) for seed in range(60)):
        found = lives_of(graph).smallest_cuts(1 << 40)
        assert found is not None
        floors.append(row_addresses.rows_read(graph))
        assert 0 < floors[-1] <= found[0]
    assert len(set(floors)) > 10


def test_longer_segments_need_no_less_than_their_bound() -> None:
    told = 0
    for graph in (able(random_graph(seed)) for seed in range(60)):
        lives, n = lives_of(graph), len(graph.ops)
        for i, j in combinations(range(n + 1), 2):
            floor = lives.needed(i, j)[1]
            assert all(floor <= lives.bytes(i, k) for k in range(j + 1, n + 1))
            told += floor > 0 and j < n
    assert told > 500


def test_bounds_of_segments_are_close_and_never_above_what_they_need() -> None:
    close = told = 0
    for seed in range(60):
        graph = able(random_graph(seed, operators=4 + seed % 9))
        streamed = [t for t in graph.inputs if streamable(graph, t)] if seed % 3 == 0 else []
        tables = AccessTables(graph, streamed, accumulators=seed % 2 == 0)
        lives = RowLives(SegmentCosts(tables, range(len(graph.ops)), Settings(1, False, False)), overlap=seed % 5 > 0)
        for i, j in combinations(range(len(graph.ops) + 1), 2):
            bound, needed = RowBounds(lives.costs).up_to(j, 1 << 40)[i], lives.bytes(i, j)
            assert bound <= needed, (seed, i, j)
            cut_off = RowBounds(lives.costs).up_to(j, needed)[i]
            assert min(bound, needed) == min(cut_off, needed), (seed, i, j)
            told, close = told + 1, close + (bound >= 0.8 * needed)
    assert close > 0.6 * told > 600, (close, told)


def test_plans_replay_and_are_smaller_than_rings() -> None:
    smaller = 0
    for seed in range(16):
        graph = able(random_graph(seed, operators=3 + seed % 9, largest=10))
        for asked in ({}, {"stream_input": True}, {"overlap": False}):
            options, rings = (replace(o, **asked) for o in (APART, IN_RINGS))
            plan, other = plan_graph(graph, options), plan_graph(graph, rings)
            replay = validate(plan)
            assert replay.peak <= plan.peak <= other.peak and replay.macs == plan.macs == graph.macs
            assert bound_of(plan) <= plan.peak and plan.bound <= plan.peak
            assert scattered(plan) or plan.peak == other.peak
            assert options.overlap or rows_over_whole_tensors(plan) == 0
            smaller += plan.peak < other.peak
    assert smaller > 10


def rows_over_whole_tensors(plan: Plan) -> int:
    """How many steps write a row at an address of its own into a tensor of an earlier segment that is still to be read."""
    graph, at = plan.graph, dict(zip(plan.buffers, plan.allocation.offsets, strict=True))
    made_in = {t: k for k, s in enumerate(plan.segments) for o in s.ops for t in graph.ops[o].outputs}
    found = 0
    for k, segment in enumerate(plan.segments):
        reads = [(n, t) for n, o in enumerate(segment.trace) if o >= 0 for t in graph.ops[o].inputs]
        whole = {t: n for n, t in reads if made_in.get(t, -1) < k and f"tensor {t}" in at}
        done = Counter[int]()
        for n, o in enumerate(segment.trace):
            for t in graph.ops[o].outputs if o >= 0 else ():
                for low in plan.storages[t].row_addresses[done[o] : done[o] + 1]:
                    high = low + graph.tensors[t].row_bytes
                    lie = ((at[f"tensor {u}"], graph.tensors[u].bytes) for u, end in whole.items() if n < end)
                    found += sum(low < start + size and start < high for start, size in lie)
            done[o] += 1
    return found


def test_a_row_at_another_address_is_refused() -> None:
    graph = able(ds_cnn())
    plan = plan_graph(graph, APART)
    refused = 0
    moved = [s for s in plan.storages if s.row_addresses]
    for storage in moved:
        for r in range(0, len(storage.row_addresses), 7):
            at = list(storage.row_addresses)
            at[r] = next(
                a for a in storage.row_addresses if a != at[r]
            )  # on another row of the tensor, often a live one
            storages = tuple(replace(s, row_addresses=tuple(at)) if s is storage else s for s in plan.storages)
            try:
                validate(replace(plan, storages=storages))
            except ValidationError:
                refused += 1
    assert refused > len(moved) * 2
    first = moved[0]
    for wrong in (
        replace(first, row_addresses=first.row_addresses[1:]),
        replace(first, row_addresses=(plan.peak, *first.row_addresses[1:])),
        replace(first, row_addresses=(first.row_addresses[0] + 1, *first.row_addresses[1:])),
        replace(first, size=first.size + 4),
    ):
        with pytest.raises(ValidationError):
            validate(replace(plan, storages=tuple(wrong if s is first else s for s in plan.storages)))


def test_kernels_without_tables_are_not_planned() -> None:
    graph = ds_cnn()
    assert not scattered(plan_graph(graph, APART)) and scattered(plan_graph(able(graph), APART))
    plan = plan_graph(able(graph), APART)
    with pytest.raises(ValidationError, match="no kernel for rows"):
        validate(replace(plan, graph=graph))


@pytest.mark.parametrize(
    ("graph", "rings", "apart"),
    [
        (ds_cnn(), 6_118, 4_010),
        (resnet8(), 13_901, 10_584),
        (mobilenet_v1(96, 96, 1, alpha=0.25, classes=2), 14_592, 13_200),
    ],
    ids=["kws", "resnet8", "person"],
)
def test_known_networks(graph: Graph, rings: int, apart: int) -> None:
    assert plan_graph(able(graph), IN_RINGS).peak == rings
    plan = plan_graph(able(graph), APART)
    assert scattered(plan) and validate(plan).peak <= plan.peak <= apart


@pytest.mark.parametrize(("graph", "rings", "apart"), [(ds_cnn(), 6_262, 4_100), (resnet8(), 15_693, 13_000)])
def test_known_networks_without_overlap(graph: Graph, rings: int, apart: int) -> None:
    assert plan_graph(graph, replace(IN_RINGS, overlap=False)).peak == rings
    plan, over = (plan_graph(able(graph), replace(APART, overlap=overlap)) for overlap in (False, True))
    assert scattered(plan) and validate(plan).peak <= plan.peak <= apart
    assert rows_over_whole_tensors(plan) == 0 < rows_over_whole_tensors(over)


def test_under_a_cap_only_where_rings_of_rows_do_not_fit() -> None:
    graph = able(ds_cnn())
    rings, apart = plan_graph(graph, IN_RINGS).peak, plan_graph(graph, APART).peak
    assert apart < rings
    assert not scattered(plan_graph(graph, replace(APART, sram=rings)))
    assert scattered(plan_graph(graph, replace(APART, sram=rings - 4)))
    assert plan_graph(graph, replace(APART, sram=apart)).peak <= apart
    with pytest.raises(InfeasibleError):
        plan_graph(graph, replace(APART, sram=apart // 2))


def test_networks_with_views_and_joins_keep_their_blocks() -> None:
    b = Builder()
    x = b.conv(b.input(12, 6, 4), 8, 3)
    y = b.concat([b.conv(x, 4, 3), b.conv(x, 4, 1)])
    graph = able(b.finish(b.conv(b.conv(y, 8, 3), 2, 3)))
    plan = plan_graph(graph, APART)
    assert validate(plan).peak <= plan.peak <= plan_graph(graph, IN_RINGS).peak


def test_single_rows_are_counted_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of a single row take a short way, which most tensors of recurrent cells written out take."""
    graph = resnet8()
    segments = [(i, j) for i in range(len(graph.ops)) for j in range(i + 1, len(graph.ops) + 1)]
    lives, short = lives_of(graph), list[object]()
    way = RowLives._of_single_row

    def told(self: RowLives, *given: Any) -> Any:
        short.append(way(self, *given))
        return short[-1]

    monkeypatch.setattr(RowLives, "_of_single_row", told)
    found = [lives.needed(i, j) for i, j in segments]
    assert 0 < sum(own is not None for own in short) < len(short)
    monkeypatch.setattr(RowLives, "_of_single_row", lambda *_: None)
    again = lives_of(graph)
    assert [again.needed(i, j) for i, j in segments] == found
