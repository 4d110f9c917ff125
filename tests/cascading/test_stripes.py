"""Stripes across the width: memory against work, replayed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tvm_cascade.cascading import Plan, cascade, frontier, validate
from tvm_cascade.cascading.stripes import widths_of
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph, Window
from tvm_cascade.testing.graphs import Builder
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.random_windows import random_graph

WORK = rows_alone(stripes=True, max_macs=4.0, accumulators=True)


def stack() -> Graph:
    b = Builder()
    x = b.input(24, 24, 2)
    for _ in range(3):
        x = b.conv(x, 8, 3)
    y = b.add(x, b.depthwise(x))
    return b.finish(b.global_pool(b.conv(b.max_pool(y, 2, 2), 4, 3, 2)))


def check(plans: tuple[Plan, ...]) -> None:
    for plan in plans:
        replay = validate(plan)
        assert replay.macs == plan.macs
        assert plan.bound <= plan.peak
    for less_memory, less_work in pairwise(plans):
        assert less_memory.peak < less_work.peak
        assert less_memory.macs > less_work.macs


def test_the_validator_counts_work_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = frontier(stack(), WORK)[0]
    monkeypatch.delattr(Window, "taps")  # what the planner counts with
    assert plan.macs > stack().macs and validate(plan).macs == plan.macs


def test_frontier() -> None:
    graph = stack()
    plans = frontier(graph, WORK)
    check(plans)
    assert len(plans) >= 4
    assert plans[-1].macs == graph.macs
    assert plans[0].peak < 0.75 * plans[-1].peak


def test_budget() -> None:
    graph = stack()
    for factor in (1.0, 1.1, 1.5, 4.0):
        plan = cascade(graph, rows_alone(stripes=True, max_macs=factor, accumulators=True))
        validate(plan)
        assert graph.macs <= plan.macs <= factor * graph.macs
    capped = cascade(graph, rows_alone(stripes=True, max_macs=4.0, accumulators=True, sram=plan.peak + 200))
    assert plan.macs >= capped.macs


def test_nothing_is_made_twice_unless_allowed() -> None:
    graph = stack()
    assert [p.macs for p in frontier(graph, rows_alone(max_macs=4.0))] == [graph.macs]
    assert cascade(graph, rows_alone(stripes=True)).macs == graph.macs


def test_columns_that_nobody_reads_are_left_out() -> None:
    b = Builder()
    graph = b.finish(b.global_pool(b.conv(b.conv(b.conv(b.input(24, 24, 4), 8, 3), 16, 3), 32, 1, 2)))
    options = rows_alone(stripes=True, accumulators=True)
    plan, plain = cascade(graph, options), cascade(graph, replace(options, stripes=False))
    assert validate(plan).macs == plan.macs < graph.macs == plain.macs and plan.bound <= plan.peak < plain.peak
    for one in frontier(graph, replace(options, max_macs=2.0)):  # all that a user sees can be had under a cap
        if one.macs <= graph.macs:
            assert cascade(graph, replace(options, sram=one.peak)).peak <= one.peak
    with pytest.raises(InfeasibleError) as caught:
        cascade(graph, replace(options, sram=plan.peak - 4))
    assert caught.value.needed == plan.peak
    streamed = cascade(graph, replace(options, stream_input=True))  # the caller would have to give rows twice
    assert validate(streamed).macs == streamed.macs == graph.macs


@pytest.mark.parametrize("seed", range(30, 40))
def test_random_frontiers(seed: int) -> None:
    check(frontier(random_graph(seed, operators=3 + seed % 7, largest=12), WORK))


def test_widths() -> None:
    assert widths_of(7) == (4, 3, 2, 1)
    assert widths_of(112)[:3] == (56, 38, 28)
    assert widths_of(1) == (1,)
