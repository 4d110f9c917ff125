"""Plans under a limit that strikes after every number of looks at the clock: valid, and never worse with more time."""

from __future__ import annotations

import pytest

from tvm_cascade.cascading import (
    Plan,
    PlanOptions,
    assemble,
    bounds,
    frontier,
    layerwise,
    plan_graph,
    planner,
    row_addresses,
    search_cache,
    validate,
)
from tvm_cascade.cores import get_core
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph
from tvm_cascade.search_monitor import Progress, SearchMonitor, SearchStopped
from tvm_cascade.testing.graphs import Builder
from tvm_cascade.testing.looks import after_looks, with_more_and_more_time


def network() -> Graph:
    """An inverted bottleneck with a skip, and a branch that joins."""
    b = Builder()
    x = b.conv(b.input(12, 12, 3), 8, 3, 2)
    wide = b.depthwise(b.conv(x, 24))
    x = b.add(b.conv(wide, 8), x)
    return b.finish(b.concat((b.conv(x, 8), b.max_pool(x, 3, 1))))


GRAPH = network()


def forget() -> None:
    """Empty the planner's caches, so that every run does all of its work."""
    for kept in (
        planner._in_time,
        planner._smallest,
        planner._of_fewest_live_bytes,
        search_cache.least_memory_order,
        search_cache._kept_searches,
        search_cache._costs,
        search_cache._row_lives,
        row_addresses._least,
        row_addresses._smallest,
        assemble._tried,
    ):
        kept.cache_clear()


@pytest.fixture(autouse=True)
def enough_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of whole rows is always ready in the time after a limit has struck, which is counted in looks here too."""
    monkeypatch.setattr(planner, "GRACE", 1e9)


def test_the_search_for_cuts_tells_what_is_known_beside_its_bound() -> None:
    shown: list[Progress] = []
    with SearchMonitor(show=shown.append):
        planned(PlanOptions())
    cuts = [progress for progress in shown if progress.phase == "cuts"]
    assert cuts and all(p.best is not None and p.bound is not None and p.best >= p.bound > 0 for p in cuts)


def planned(options: PlanOptions) -> Plan:
    forget()
    return plan_graph(GRAPH, options)


@pytest.mark.parametrize(
    "options",
    [
        PlanOptions(steps=get_core("cortex-m4").steps),
        PlanOptions(steps=get_core("cortex-m4").steps, max_macs=1.5),
        PlanOptions(granularity="row", overlap=False),
        PlanOptions(stream_input=True, steps=get_core("cortex-m4").steps),
    ],
)
def test_more_time_never_gives_a_larger_arena(options: PlanOptions) -> None:
    whole, flat = planned(options), layerwise(GRAPH, options)
    found = list(with_more_and_more_time(lambda: planned(options)))
    for plan in found:
        validate(plan, options.alignment)
        assert plan.bound <= whole.peak
        assert options.stream_input or plan.peak <= flat.peak
    peaks = [p.peak for p in found]
    assert peaks == sorted(peaks, reverse=True)
    assert len(peaks) > 10 and peaks[0] > peaks[-1]
    assert (found[-1].peak, found[-1].bound, found[-1].segments) == (whole.peak, whole.bound, whole.segments)


def test_a_limited_plan_is_not_remembered() -> None:
    options = PlanOptions(steps=get_core("cortex-m4").steps)
    whole = planned(options)
    early, limited = after_looks(40, lambda: planned(options))
    assert limited and early.peak > whole.peak
    again = plan_graph(GRAPH, options)
    assert (again.peak, again.segments, again.storages) == (whole.peak, whole.segments, whole.storages)


def test_a_cap_that_was_not_met_in_time_says_so() -> None:
    options = PlanOptions(sram=plan_graph(GRAPH).peak)
    assert plan_graph(GRAPH, options).peak <= (options.sram or 0)
    forget()
    with (
        SearchMonitor() as own,
        pytest.raises(InfeasibleError, match="the time limit ended the search: give more time"),
    ):
        own.interrupt()
        plan_graph(GRAPH, options)


def test_a_frontier_has_the_points_found_in_time_and_bounds_are_proven_or_not_given() -> None:
    options = PlanOptions(steps=get_core("cortex-m4").steps, max_macs=1.5)
    forget()
    whole = frontier(GRAPH, options)
    with SearchMonitor() as own:
        own.interrupt()
        forget()
        for search in (frontier, bounds):
            with pytest.raises(SearchStopped):
                search(GRAPH, options)
    assert [(p.peak, p.macs) for p in frontier(GRAPH, options)] == [(p.peak, p.macs) for p in whole]


def test_the_bound_of_a_limited_search_is_not_above_what_more_time_finds() -> None:
    """With recompute it was that of plans without, as long as no smaller plan was found."""
    b = Builder()
    x = b.conv(b.conv(b.input(12, 12, 2), 4, 3), 4, 3)
    graph = b.finish(b.max_pool(x, 4, 4))
    options = PlanOptions(steps=get_core("cortex-m4").steps, max_macs=2.0, max_time=2.0)

    def found() -> Plan:
        forget()
        return planner.cascade(graph, options)

    *limited, whole = with_more_and_more_time(found)
    assert whole.macs > whole.baseline_macs and len(limited) > 10
    assert all(plan.bound <= whole.peak <= plan.peak for plan in limited)
