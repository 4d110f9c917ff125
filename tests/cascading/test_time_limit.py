"""Time against bytes: how fine steps become without a cap."""

from __future__ import annotations

import pytest

from tvm_cascade.cascading import PlanOptions, cascade
from tvm_cascade.cascading.timing import instruction_factor
from tvm_cascade.cores import get_core
from tvm_cascade.errors import UsageError
from tvm_cascade.graph import Graph
from tvm_cascade.testing.graphs import Builder
from tvm_cascade.testing.plan_options import rows_alone


def separable() -> Graph:
    """Two depthwise-separable layers behind a convolution."""
    b = Builder()
    x = b.conv(b.input(24, 24, 3), 8, 3, 2)
    for channels in (16, 16):
        x = b.conv(b.depthwise(x), channels)
    return b.finish(b.max_pool(x, 2, 2))


GRAPH = separable()
CAN = rows_alone(pixels=True, accumulators=True)


def options(max_time: float, target: str = "cortex-m4", sram: int | None = None) -> PlanOptions:
    return rows_alone(pixels=True, accumulators=True, max_time=max_time, steps=get_core(target).steps, sram=sram)


@pytest.mark.parametrize("target", ["cortex-m3", "cortex-m4", "cortex-m55"])
def test_the_smallest_plan_keeps_to_the_time(target: str) -> None:
    model = get_core(target).steps
    peaks = []
    for most in (1.0, 1.02, 1.1, 100.0):
        plan = cascade(GRAPH, options(most, target))
        assert instruction_factor(plan, model) <= most
        peaks.append(plan.peak)
    assert max(peaks) == peaks[0] and peaks[-1] < peaks[0]
    assert peaks[-1] == cascade(GRAPH, CAN).peak


def test_a_cap_is_met_whatever_it_takes() -> None:
    smallest = cascade(GRAPH, CAN).peak
    plan = cascade(GRAPH, options(1.0, sram=smallest))
    assert plan.peak <= smallest and instruction_factor(plan, get_core("cortex-m4").steps) > 1.0


def test_the_bound_holds_for_every_step() -> None:
    assert cascade(GRAPH, options(1.0)).bound == cascade(GRAPH, CAN).bound


def test_rows_cost_nothing_more() -> None:
    plan = cascade(GRAPH, rows_alone(granularity="row", accumulators=True))
    assert instruction_factor(plan, get_core("cortex-m4").steps) == 1.0


def test_options_that_no_request_has_are_checked_too() -> None:
    with pytest.raises(UsageError, match="an alignment"):
        rows_alone(alignment=0)


@pytest.mark.parametrize("factor", [0.9, float("nan")])
def test_factors_below_one_are_refused(factor: float) -> None:
    with pytest.raises(UsageError, match="max-time"):
        rows_alone(max_time=factor)


def test_the_arena_of_the_fewest_live_bytes_is_searched() -> None:
    """First fit needs more for it than for the arenas of coarser steps, and a search less."""
    b = Builder()
    x = b.conv(b.conv(b.conv(b.input(12, 12, 3), 16, 1, 2), 16, 3, 2), 16, 1, 2)
    x = b.conv(b.add(x, b.conv(x, 16, 3)), 16, 3)
    plan = cascade(b.finish(x), PlanOptions(steps=get_core("cortex-m4").steps))
    assert plan.peak <= 560
