"""Schedules under a limit that strikes after every number of looks at the clock: valid, and never dearer with more time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, lattice, schedule, validate_schedule
from tvm_cascade.parallel.scheduler import NetworkSchedule
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.testing.looks import with_more_and_more_time
from tvm_cascade.testing.zoo.squeezenet import squeezenet

V100 = AnalyticCost(find_device("v100"))
GRAPH = stage_graph(squeezenet(1, 47, 0.5, 10)).graph


@pytest.mark.parametrize("options", [Options(), Options(r=None, s=None, unit="op"), Options(max_states=40)])
def test_more_time_never_gives_a_slower_schedule(options: Options) -> None:
    def search() -> NetworkSchedule:
        lattice._pairs.cache_clear()  # every run does all of its work
        return schedule(GRAPH, V100, options)

    whole = search()
    found = list(with_more_and_more_time(search))
    for network in found:
        validate_schedule(GRAPH, network.schedule)
        assert network.schedule.cost_ms <= min(network.sequential_ms, network.greedy_ms) * (1 + 1e-9)
        assert 0 < network.schedule.bound_ms <= whole.schedule.cost_ms
    costs = [n.schedule.cost_ms for n in found]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(costs))
    assert len(found) > 5 and costs[0] > costs[-1] and not found[0].schedule.optimal
    assert found[-1].schedule.stages == whole.schedule.stages
    assert found[-1].schedule.optimal == whole.schedule.optimal
    if whole.schedule.optimal:
        assert whole.schedule.bound_ms == whole.schedule.cost_ms
