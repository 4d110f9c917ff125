"""Tiny graphs: the planner's arena is the smallest over all orders, cuts, interleavings and addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations, product

import pytest

from tvm_cascade.cascading import PlanOptions, bounds, cascade, validate
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.assemble import Figures, Layout, assemble
from tvm_cascade.cascading.interleaving import BY_ROWS, Interleaving
from tvm_cascade.cascading.segments import SegmentCosts, Settings
from tvm_cascade.graph import Graph, Tile
from tvm_cascade.memory.problem import Buffer, OffsetConstraint
from tvm_cascade.testing.graphs import Builder
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.random_windows import random_graph

EVERY = (BY_ROWS, *(Interleaving(Tile(columns=n)) for n in (16, 8, 4, 2, 1)))


def tiny_graph(seed: int) -> Graph:
    return random_graph(seed, operators=2 + seed % 3, largest=6)


def tiny_signal(seed: int) -> Graph:
    return random_graph(seed, operators=2 + seed % 2, largest=9, signal=True)


TINY = [seed for seed in range(30) if len(tiny_graph(seed).ops) <= 4] + [36, 51]


def smallest_arena(sizes: Sequence[tuple[int, int, int]], follows: Sequence[tuple[int, int, int]], limit: int) -> int:
    """The least peak below `limit`, else `limit`, by placing (size, first, last) blocks at every address that can
    matter: on the floor, on another block, or the distance of a follower beside its reader."""
    near: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for reader, writer, distance in follows:
        near.setdefault((min(reader, writer), max(reader, writer)), []).append((reader, writer, distance))
    pairs = [
        (a, b) for a, b in combinations(range(len(sizes)), 2) if sizes[a][1] < sizes[b][2] and sizes[b][1] < sizes[a][2]
    ]

    def fits(a: int, b: int, at: dict[int, int]) -> bool:
        apart = at[a] + sizes[a][0] <= at[b] or at[b] + sizes[b][0] <= at[a]
        behind = near.get((a, b))
        return apart or (behind is not None and all(at[r] - at[w] >= d for r, w, d in behind))

    best = limit

    def place(at: dict[int, int], peak: int) -> None:
        nonlocal best
        if peak >= best:
            return
        if len(at) == len(sizes):
            best = peak
            return
        for b in range(len(sizes)):
            if b in at:
                continue
            offsets = {0} | {at[a] + sizes[a][0] for a in at}
            for r, w, d in follows:
                offsets |= {at[w] + d} if b == r and w in at else set()
                offsets |= {at[r] - d} if b == w and r in at else set()
            for offset in sorted(offsets):
                tried = at | {b: offset}
                if offset >= 0 and all(
                    fits(x, y, tried) for x, y in pairs if b in (x, y) and x in tried and y in tried
                ):
                    place(tried, max(peak, offset + sizes[b][0]))

    place({}, 0)
    return best


def layouts(graph: Graph, options: PlanOptions) -> Iterator[tuple[SegmentCosts, Layout]]:
    """Every order, all cuts, every interleaving of every segment (by pixels those that lead to one operator or go along a
    signal, and of one operator those on a signal)."""
    n = len(graph.ops)
    tables = AccessTables(graph, (), options.accumulators)
    for order in permutations(range(n)):
        if not graph.is_order(order):
            continue
        costs = SegmentCosts(tables, order, Settings(options.alignment, options.overlap))
        for count in range(n):
            for inner in combinations(range(1, n), count):
                cuts = (0, *inner, n)
                forms = [EVERY if options.pixels and by_pixels(costs, i, j) else (BY_ROWS,) for i, j in pairwise(cuts)]
                for hows in product(*forms):
                    yield costs, Layout(cuts, hows)


def by_pixels(costs: SegmentCosts, i: int, j: int) -> bool:
    members, graph = costs.members(i, j), costs.tables.graph
    alone = [graph.tensors[t] for o in members[:1] for t in graph.ops[o].outputs]
    if len(members) > 1:
        return costs.one_sink(i, j) or costs.along_signal(i, j)
    return all(t.rows == 1 < t.columns for t in alone)


def brute_force(graph: Graph, options: PlanOptions, known: int) -> int:
    """The smallest arena of all layouts, `known` where none is smaller."""
    best = known
    seen: set[object] = set()
    for costs, layout in layouts(graph, options):
        if max(costs.exact_cost(*segment) for segment in layout.segments) >= best:
            continue
        plan = assemble(costs, layout, Figures(0, 0))
        if plan.peak < best:
            validate(plan, alignment=options.alignment)
            best = plan.peak
            continue
        blocks = {b: k for k, b in enumerate(plan.buffers)}
        problem = problem_of(costs, layout)
        key = (problem, tuple(blocks))
        if key not in seen:
            seen.add(key)
            best = smallest_arena(*problem, best)
    return best


def problem_of(
    costs: SegmentCosts, layout: Layout
) -> tuple[tuple[tuple[int, int, int], ...], tuple[tuple[int, int, int], ...]]:
    """Blocks and followers of a layout."""
    from tvm_cascade.cascading.assemble import _problem, storages_of

    made, _ = _problem(costs, layout, storages_of(costs, layout))
    buffers: tuple[Buffer, ...] = made.buffers
    follows: tuple[OffsetConstraint, ...] = made.offset_constraints
    return tuple((b.size, b.lower, b.upper) for b in buffers), tuple((f.reader, f.writer, f.distance) for f in follows)


def test_an_operator_on_a_signal_trails_its_input_pixel_by_pixel() -> None:
    b = Builder()
    graph = b.finish(b.conv(b.input(1, 96, 4), 16))
    plan = cascade(graph, rows_alone(pixels=True))
    validate(plan)
    assert plan.peak == 96 * 16 + 4  # in one step of the whole row: 96 * (16 + 4)


def test_a_signal_of_several_results_runs_pixel_by_pixel() -> None:
    b = Builder()
    wide = b.conv(b.input(1, 96, 2), 32)
    graph = b.finish(b.conv(wide, 1), b.conv(wide, 1))
    plan = cascade(graph, rows_alone(pixels=True))
    validate(plan)
    assert plan.peak < 96 * (2 + 1 + 1) + 4 * 32  # input and results, some pixels of the map between: 3,072 bytes


SIGNALS = [seed for seed in range(24) if len(tiny_signal(seed).ops) <= 4]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("pixels", [False, True])
@pytest.mark.parametrize("graph", [*map(tiny_graph, TINY), *map(tiny_signal, SIGNALS)])
def test_the_smallest_of_all_arenas(graph: Graph, pixels: bool, overlap: bool) -> None:
    options = rows_alone(alignment=1, overlap=overlap, pixels=pixels, accumulators=True)
    plan = cascade(graph, options)
    validate(plan, alignment=1)
    assert brute_force(graph, options, plan.peak) == plan.peak
    proven = bounds(graph, options)
    assert (proven.pixels if pixels else proven.rows) <= plan.peak
