"""Stripes that keep what overlaps of some tensors, against sets of columns counted one by one, and all sets of tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from tvm_cascade.cascading import Plan, PlanOptions, cascade, frontier, planner, validate
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.assemble import Figures, _tried
from tvm_cascade.cascading.interleaving import BY_ROWS, Interleaving
from tvm_cascade.cascading.layout_search import Search
from tvm_cascade.cascading.planner import in_time
from tvm_cascade.cascading.segments import SegmentCosts, Settings
from tvm_cascade.cascading.stripes import widths_of
from tvm_cascade.cascading.timing import allowed_factor, instruction_factor, instructions, stripe_columns
from tvm_cascade.cores import get_core
from tvm_cascade.graph import ROW, Graph
from tvm_cascade.testing.graphs import Builder
from tvm_cascade.testing.plan_options import rows_alone


def blocks(size: int) -> Graph:
    """Two inverted bottlenecks, the first with its skip, behind a convolution."""
    b = Builder()
    x = b.conv(b.input(size, size, 3), 4, 3, 2)
    x = b.add(x, b.conv(b.depthwise(b.conv(x, 24)), 4))
    return b.finish(b.conv(b.depthwise(b.conv(x, 24), 3, 2), 6))


def by_hand(graph: Graph, costs: SegmentCosts, width: int, kept: Collection[int]) -> tuple[int, int]:
    """Bytes of the whole graph in stripes, and its multiply-accumulates, column by column."""
    columns = {t.index: t.columns for t in graph.tensors}
    sink = graph.ops[-1]
    bounds = [*range(0, columns[sink.outputs[0]], width), columns[sink.outputs[0]]]
    held: dict[int, int] = {}
    stored: dict[int, int] = {}
    made: dict[int, int] = {op.index: 0 for op in graph.ops}
    before: dict[int, int] = {}  # of a kept tensor, the first column not yet made
    wanted_by_stripe = []
    for low, high in pairwise(bounds):
        wanted = {sink.outputs[0]: set(range(low, high))}
        fresh: dict[int, set[int]] = {}
        starts = dict(before)
        for op in reversed(graph.ops):
            t = op.outputs[0]
            mine = wanted[t]
            if t in kept and t in before:
                new = set(range(before[t], max(mine, default=before[t] - 1) + 1))
                stored[t] = (
                    max(stored.get(t, 0), before[t] - min(mine)) if mine and min(mine) < before[t] else stored.get(t, 0)
                )
            else:
                new = mine
            fresh[t] = new
            made[op.index] += sum(taps(graph, op.index, x) for x in new)
            for k, i in enumerate(op.inputs):
                window = op.columns[k]
                assert window is not None
                seen = {r for x in new for r in window.rows(x, columns[i])}
                wanted.setdefault(i, set()).update(range(min(seen), max(seen) + 1) if seen else ())
        for t in kept:
            before[t] = max(before.get(t, 0), max(fresh[t], default=-1) + 1)
        wanted_by_stripe.append((wanted, starts))
    rows = costs.held(0, len(graph.ops), BY_ROWS)
    total = costs.state_bytes(0, len(graph.ops), ROW) + graph.tensors[0].bytes + graph.tensors[sink.outputs[0]].bytes
    for op in graph.ops[:-1]:
        t = op.outputs[0]
        for wanted, starts in wanted_by_stripe:
            if wanted[t]:
                origin = max(starts.get(t, 0) - stored[t], 0) if stored.get(t) else min(wanted[t])
                held[t] = max(held.get(t, 0), max(wanted[t]) + 1 - origin)
        pixel = graph.tensors[t].row_bytes // columns[t]
        total += rows[t] * held[t] * pixel + stored.get(t, 0) * graph.tensors[t].rows * pixel
    work = sum(op.macs * made[op.index] // whole for op in graph.ops if (whole := every(graph, op.index)))
    return total, work


def taps(graph: Graph, op: int, x: int) -> int:
    window, size = graph.ops[op].columns[0], graph.tensors[graph.ops[op].inputs[0]].columns
    assert window is not None
    return sum(0 <= window.first(x) + k * window.dilation < size for k in range(window.extent))


def every(graph: Graph, op: int) -> int:
    return sum(taps(graph, op, x) for x in range(graph.tensors[graph.ops[op].outputs[0]].columns))


def undominated(points: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    among = set(points)
    return sorted(p for p in among if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in among))


@pytest.mark.parametrize("size", [13, 22])
def test_every_form_is_counted_column_by_column(size: int) -> None:
    graph = blocks(size)
    costs = SegmentCosts(AccessTables(graph), range(len(graph.ops)), Settings(alignment=1))
    n = len(graph.ops)
    inner = sorted(op.outputs[0] for op in graph.ops[:-1])
    inner.sort(key=lambda t: graph.tensors[t].bytes // graph.tensors[t].columns)
    widths = [w for w in widths_of(graph.tensors[graph.ops[-1].outputs[0]].columns) if w < -(-size // 4)]
    tried: list[tuple[int, int]] = []
    for width in widths:
        for count in range(len(inner) + 1):
            how = Interleaving(stripe_columns=width, halo_tensors=count)
            expected = by_hand(graph, costs, width, inner[:count])
            assert (costs.exact_cost(0, n, how), graph.macs + costs.extra_macs(0, n, how)) == expected
            tried.append(expected)
    forms = {(s.exact, graph.macs + s.extra_macs) for s in costs.striped(0, n)}
    assert forms <= set(tried) and set(undominated(tried)) <= forms


def test_no_other_set_of_tensors_keeps_much_better() -> None:
    graph = blocks(22)
    costs = SegmentCosts(AccessTables(graph), range(len(graph.ops)), Settings(alignment=1))
    n = len(graph.ops)
    inner = [op.outputs[0] for op in graph.ops[:-1]]
    sets = [s for k in range(len(inner) + 1) for s in combinations(inner, k)]
    forms = [(s.exact, graph.macs + s.extra_macs) for s in costs.striped(0, n)]
    for size, work in undominated(by_hand(graph, costs, 2, s) for s in sets):
        assert min(b for b, m in forms if m <= work) <= 1.04 * size


def test_where_the_narrowest_stripes_take_too_long_wider_ones_are_taken() -> None:
    b = Builder()
    x = b.conv(b.depthwise(b.conv(b.input(64, 64, 3), 16, 3, 2), 3), 8)
    graph, steps = b.finish(b.conv(b.depthwise(b.conv(x, 48), 3, 2), 8)), get_core("cortex-m4").steps
    assert steps is not None
    options = rows_alone(stripes=True, overlap=False, steps=steps)
    found = [cascade(graph, replace(options, max_time=most)) for most in (100.0, 1.5, 1.2, 1.1, 1.05)]
    for plan, most in zip(found, (100.0, 1.5, 1.2, 1.1, 1.05), strict=True):
        assert validate(plan).macs == graph.macs and instruction_factor(plan, steps) <= most
        assert plan.bound == found[0].peak
    assert [(plan.peak, stripe_columns(plan)) for plan in found] == [
        (17_646, 1),
        (18_126, 2),
        (18_606, 3),
        (20_046, 6),
        (22_022, 0),
    ]


def test_the_printed_plan_is_a_point_of_the_frontier() -> None:
    graph = blocks(48)
    for most in (1.2, 100.0):
        options = rows_alone(stripes=True, pixels=True, overlap=False, max_time=most, steps=get_core("cortex-m4").steps)
        again = replace(options, max_macs=2.0)
        points = frontier(graph, again)
        plain = cascade(graph, options)
        assert (points[-1].peak, points[-1].macs) == (plain.peak, graph.macs)
        smallest, allowed = cascade(graph, again), allowed_factor(again) * in_time(graph, again).least
        within = [p for p in points if (instructions(p, again) or 0.0) <= allowed]
        assert (smallest.peak, smallest.macs) == (within[0].peak, within[0].macs)
        assert (len(within) == len(points)) == (most == 100.0)
        assert len(points) > 3


def test_the_smallest_plan_needs_no_whole_frontier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trades that have more live than an arena already found are not laid out, and no arena is laid out twice."""
    laid_out: list[int] = []
    best = planner.best_plan

    def counted(search: Search, figures: Figures, options: PlanOptions, least: int, *efforts: planner.Efforts) -> Plan:
        laid_out.append(least)
        return best(search, figures, options, least, *efforts)

    monkeypatch.setattr(planner, "best_plan", counted)
    model = get_core("cortex-m4").steps
    again = rows_alone(stripes=True, pixels=True, overlap=False, max_macs=2.0, max_time=2.0, steps=model)
    told: list[Plan] = []
    points = frontier(blocks(48), again, told.append)
    assert len(told) > 2 and set(points[:-1]) <= set(told)
    laid_out.clear()
    known = _tried.cache_info().misses
    assert cascade(blocks(48), again) == points[0]
    assert len(laid_out) < len(told)
    assert _tried.cache_info().misses == known


def test_a_streamed_input_comes_once_for_every_stripe() -> None:
    graph = blocks(48)
    options = rows_alone(stripes=True, pixels=True, stream_input=True, max_macs=2.0)
    plans = frontier(graph, options)
    for plan in plans:
        validate(plan)
    assert plans[0].peak < 0.8 * plans[-1].peak
    assert any(s.streamed and s.stripes for s in plans[0].segments)
    assert not any(s.streamed and s.stripes for s in plans[-1].segments)  # twice only where work may be done twice
