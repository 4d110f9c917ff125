"""The joint search finds the plan of fewest cycles of all cuts, steps, rings and placements, and its bound is none above it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest

from tvm_cascade.cascading import Plan, PlanOptions, timed_cuts
from tvm_cascade.cascading.assemble import Figures, Layout, assemble
from tvm_cascade.cascading.interleaving import Interleaving
from tvm_cascade.cascading.layout_search import Search
from tvm_cascade.cascading.plan_graph import WITHIN_CAP
from tvm_cascade.cascading.search_cache import searches
from tvm_cascade.cascading.timed_cuts import TimedCuts, TimedLayouts
from tvm_cascade.cores import kernel_target
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Tile
from tvm_cascade.machine import Ram
from tvm_cascade.passes.candidates.candidate import KernelSource, PlannedCandidate
from tvm_cascade.passes.lower_quantized import lowered
from tvm_cascade.passes.place_network import _placed
from tvm_cascade.passes.plan_network import plan_network, plan_options
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.passes.timed_plans import SegmentPrices, timed_plans
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.tuning.counters import Counters
from tvm_cascade.schedules.tuning.plan_cost import PlanCounter
from tvm_cascade.schedules.tuning.traffic import TrafficCounter
from tvm_cascade.testing.builder import Net

CORE = kernel_target("cortex-m7")
SLOW = Ram("slow", 1 << 20, 4.0)
Whole = tuple[Search, tuple[Ram, Ram], Callable[..., Any], TimedLayouts]


def network(seed: int, layers: int = 1) -> PreparedGraph:
    """A few convolutions of random shape, the last ones of which may be a residual block."""
    random, net = np.random.default_rng(seed), Net("int8", seed=seed)
    size = int(random.choice([8, 12]))
    x = net.conv(net.input((1, size, size, 3), "x"), int(random.choice([4, 8])), 3, int(random.choice([1, 2])))
    for _ in range(layers):
        kind = random.integers(0, 3)
        if kind == 0:
            x = net.conv(x, int(random.choice([4, 12])), 1)
        elif kind == 1:
            x = net.depthwise(x, 3, int(random.choice([1, 2])))
        else:
            x = net.add(x, net.conv(x, x.shape[-1], 1))
    return KernelSource(CORE).prepare(lowered(net.finish(net.global_pool(x))))


def options_of(prepared: PreparedGraph) -> tuple[PlanOptions, list[Search]]:
    options = plan_options(PlanRequest(), CORE)
    return options, searches(prepared.graph, replace(options, sram=None))


def layouts(search: Search) -> Iterator[Layout]:
    """All cuts of an order, and all steps of rows and of pixels."""
    graph, n = search.costs.tables.graph, search.size
    for count in range(n):
        for inner in combinations(range(1, n), count):
            cuts, tiles = (0, *inner, n), list[list[Interleaving]]()
            for i, j in pairwise(cuts):
                rows = {graph.tensors[graph.ops[o].outputs[0]].rows for o in search.costs.order[i:j]}
                several = [r for r in (max(rows), 8, 6, 4, 3, 2) if r > 1 and not any(n % min(r, n) for n in rows)]
                able = any(graph.ops[o].kernels.multi_row for o in search.costs.order[i:j])
                own = [*search.interleavings(i, j), *(Interleaving(Tile(r)) for r in several if able)]
                tiles.append(list(dict.fromkeys(own)))
            yield from (Layout(cuts, chosen) for chosen in product(*tiles))


def cycles_of(prepared: PreparedGraph, search: Search, layout: Layout, request: PlanRequest) -> float:
    """Cycles of a layout, placed as well as an integer program and the allocator can."""
    plan = replace(assemble(search.costs, layout, Figures(0, 0)), graph=prepared.graph)
    with suppress(InfeasibleError):
        return _placed(PlannedCandidate(prepared, plan), request, Counters()).cycles
    return float("inf")


@pytest.mark.parametrize(("seed", "share"), [(4, 0.7), (6, 0.5), (11, 0.8)])
def test_no_plan_of_the_search_space_takes_fewer_cycles(seed: int, share: float) -> None:
    """Beside every layout of tiny networks, each placed; the fast memory holds a part of the arena of one by one."""
    prepared = network(seed)
    found = PlannedCandidate(prepared, plan_of(prepared))
    options, tried = options_of(prepared)
    fast = Ram("fast", int(found.plan.peak * share) // 4 * 4, 0.25)
    request = PlanRequest(memory=(fast, SLOW), rewrite=False)
    cycles: list[float] = []

    def place(plan: Plan) -> float:
        cycles.append(_placed(replace(found, plan=plan), request, Counters()).cycles)
        return cycles[-1]

    bound = timed_plans(found, request, options, float("inf"), Counters(), place)
    reached = min(cycles)
    assert len(cycles) == 1 or bound < cycles[0] * (1 - 1e-9)  # no more are placed where one meets the bound
    best = min(cycles_of(prepared, search, layout, request) for search in tried for layout in layouts(search))
    assert bound <= best * (1 + 1e-9) and reached == pytest.approx(best, rel=1e-9)


@pytest.fixture(scope="module")
def whole_searches() -> list[Whole]:
    """Searches of networks, the memories that they place in, what segments cost, and what is found without a limit."""
    made = []
    for seed in (4, 6, 8, 11):
        prepared = network(seed, layers=2)
        search = options_of(prepared)[1][0]
        rams = Ram("fast", int(plan_of(prepared).peak * 0.5) // 4 * 4, 0.25), SLOW
        priced = SegmentPrices(prepared, PlanRequest(memory=rams, rewrite=False), Counters()).of
        made.append((search, rams, priced, TimedCuts(search, rams, None, priced).best(4, float("inf"))))
    return made


@pytest.mark.parametrize("ceiling", [1.5, float("inf")])
@pytest.mark.parametrize("limit", ["_STATES", "_EFFORT", "_CHOICES"])
def test_what_limits_leave_out_is_in_the_bound(
    limit: str, ceiling: float, whole_searches: list[Whole], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With next to no effort the bound is still none above what the whole search reaches; `ceiling` in parts of that."""
    lower = 0
    for search, rams, priced, whole in whole_searches:
        with monkeypatch.context() as patch:
            patch.setattr(timed_cuts, limit, 1)
            patch.setattr(timed_cuts, "_FEWEST_STATES", 1)
            least = TimedCuts(search, rams, None, priced).best(4, ceiling * whole.cycles[0])
        assert least.bound <= whole.bound * (1 + 1e-9) and all(c >= whole.bound * (1 - 1e-9) for c in least.cycles)
        lower += least.bound < whole.bound * (1 - 1e-9)
    assert lower


def plan_of(prepared: PreparedGraph) -> Plan:
    _, tried = options_of(prepared)
    costs = tried[0].costs
    return replace(assemble(costs, Layout.one_by_one(tried[0].size), Figures(0, 0)), graph=prepared.graph)


@pytest.mark.parametrize("seed", range(6))
def test_segments_cost_what_the_plan_costs(seed: int) -> None:
    """The prices of a layout's segments add up to what is counted in the plan that has them."""
    prepared = network(seed, layers=3)
    request, random = PlanRequest(memory=(SLOW,), flash_wait=2), np.random.default_rng(seed)
    for search in options_of(prepared)[1]:
        prices, possible = SegmentPrices(prepared, request, Counters()), list(layouts_of(search, random))
        for layout in possible:
            plan = replace(assemble(search.costs, layout, Figures(0, 0)), graph=prepared.graph)
            kernels, told = prepared.kernels_of(plan), prices.of(search, layout.segments)
            work = sum(w.cycles for w in PlanCounter(CORE).count(plan, kernels))
            traffic = TrafficCounter(CORE)
            flash = 2 * float(traffic.count_flash(plan, kernels)[0].sum())
            assert sum(p.cycles for p in told) == pytest.approx(work + flash, rel=1e-9)
            moved = sum(n for p in told for n in p.accessed.values())
            assert moved == pytest.approx(float(traffic.count(plan, kernels).sum()), rel=1e-9)


def layouts_of(search: Search, random: np.random.Generator) -> Iterator[Layout]:
    for _ in range(4):
        inner = sorted(random.choice(range(1, search.size), int(random.integers(0, search.size)), replace=False))
        cuts: Sequence[int] = (0, *(int(c) for c in inner), search.size)
        chosen = [list(search.interleavings(i, j)) for i, j in pairwise(cuts)]
        yield Layout(tuple(cuts), tuple(own[int(random.integers(len(own)))] for own in chosen))


def test_the_planner_takes_it_and_says_the_bound() -> None:
    net = Net("int8", seed=2)
    x = net.conv(net.input((1, 12, 12, 3), "x"), 8, 3)
    mod = net.finish(net.global_pool(net.add(x, net.conv(x, 8, 1))))
    for sram, objective in ((None, "time"), ("3KiB", "time"), (None, "bytes")):
        request = PlanRequest(memory=(Ram("fast", 900, 0.25), SLOW), sram=sram, objective=objective)
        found = plan_network(mod, request, CORE)
        if objective == "bytes":
            assert found.least_cycles is None
        else:
            least = min(p.cycles for p in found.placements)
            near = [p.placement.bytes for p in found.placements if p.cycles <= WITHIN_CAP * least]
            assert found.placements[0].placement.bytes == min(near) and found.placements[0].cycles <= WITHIN_CAP * least
            assert least >= (found.least_cycles or 0) > 0.9 * least
            assert sram is None or found.plan.peak <= 3 << 10
