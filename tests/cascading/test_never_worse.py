"""Cascading may not cost more than the best order: irregular networks, where what trails its input may lie badly."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tvm_cascade.cascading import PlanOptions, baseline_peak, cascade, plan_graph
from tvm_cascade.cascading.orders import down_sets
from tvm_cascade.cascading.validate import validate
from tvm_cascade.graph import Graph
from tvm_cascade.memory import allocate
from tvm_cascade.ordering import OrderOptions, order
from tvm_cascade.testing.graphs import Builder
from tvm_cascade.testing.order_arena import arena_problem
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.random_windows import random_graph


def irregular(seed: int, nodes: int = 10) -> Graph:
    """A randomly wired network: nodes add up what one to three of the last seven made, then convolve it."""
    random, b = Random(seed), Builder()
    maps = [b.relu(b.conv(b.input(4, 4, 4), 4, 3))]
    for _ in range(nodes):
        chosen = random.sample(maps[-7:], min(len(maps), random.choice((1, 2, 2, 3))))
        maps.append(b.conv(b.relu(_sum(b, chosen)), 4, 3))
    used = {t for op in b.ops for t in op.inputs}
    return b.finish(_sum(b, [m for m in maps if m not in used]))


def _sum(b: Builder, maps: list[int]) -> int:
    total = maps[0]
    for other in maps[1:]:
        total = b.add(total, other)
    return total


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("seed", [25])
def test_never_above_the_best_order(seed: int, in_place: bool, overlap: bool) -> None:
    graph = irregular(seed)
    assert down_sets(graph) is None  # too many to try every order
    written_over = in_place and overlap  # without overlap nothing shares bytes
    best = order(graph, OrderOptions(in_place=written_over))
    plan = cascade(graph, rows_alone(in_place=in_place, overlap=overlap))
    validate(plan)
    assert plan.peak <= allocate(arena_problem(graph, best.order, 4, in_place=written_over)).peak


@pytest.mark.parametrize("seed", [5, 25, 30, 40])
def test_leave_to_recompute_takes_nothing_away(seed: int) -> None:
    """What fits without recompute fits, and is as small, where recompute is allowed."""
    graph = random_graph(seed, operators=2 + seed % 5, largest=8)
    again = rows_alone(stripes=True, max_macs=2.0, overlap=False, alignment=8)
    once = cascade(graph, replace(again, max_macs=1.0)).peak
    for options in (again, replace(again, sram=once)):
        plan = cascade(graph, options)
        validate(plan, alignment=8)
        assert plan.bound <= plan.peak <= once


@pytest.mark.parametrize("alignment", [1, 4, 16])
@pytest.mark.parametrize("seed", range(12))
def test_never_above_layer_by_layer(seed: int, alignment: int) -> None:
    """Baseline and plan count the same: odd sizes are rounded up on both sides, also where there is one operator."""
    graph = random_graph(seed, operators=1 + seed % 5, largest=8)
    plan = plan_graph(graph, PlanOptions(alignment=alignment))
    assert plan.peak <= plan.baseline_peak == baseline_peak(graph, alignment)
