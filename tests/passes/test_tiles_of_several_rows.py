"""Steps of several rows are taken where kernels of several rows take fewer instructions than those of one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_cascade.cascading import PlanOptions
from tvm_cascade.cascading.layerwise import layerwise
from tvm_cascade.cascading.plan_graph import plan_graph
from tvm_cascade.cores import kernel_target
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.passes.lower_quantized import lowered
from tvm_cascade.passes.plan_network import plan_options
from tvm_cascade.passes.prices import Prices
from tvm_cascade.request import PlanRequest
from tvm_cascade.testing.builder import Net

CORE = kernel_target("cortex-m4")


def planned(kernel: int, price: bool = True) -> tuple[set[int], float, float]:
    """The rows of steps of a plan of one operator after the other; its instructions, and those in steps of one row."""
    net = Net("int8", seed=1)
    x = net.conv(net.input((1, 8, 8, 32)), 64, kernel)
    prepared = KernelSource(CORE).prepare(lowered(net.finish(net.conv(x, 64, kernel))))
    prices = Prices()
    prices.add(prepared)
    options: PlanOptions = plan_options(PlanRequest(layerwise=True), CORE, prices=prices)
    plan = plan_graph(prepared.graph, options if price else replace(options, price=None))
    taken, before = prices(plan), prices(layerwise(prepared.graph, options))
    assert taken is not None and before is not None
    return {s.tile.rows for s in plan.segments}, taken, before


@pytest.mark.parametrize(("kernel", "rows"), [(1, 8), (3, 1)])
def test_no_operator_takes_more_instructions_in_steps_of_several_rows(kernel: int, rows: int) -> None:
    found, taken, before = planned(kernel)
    assert found == {rows} and (taken < before if rows > 1 else taken == before)


def test_the_model_of_steps_alone_takes_them_where_they_cost_more() -> None:
    rows, taken, before = planned(3, price=False)
    assert rows == {8} and taken > before
