"""Concats read in parts inside of plans: taken where the arena shrinks, and to the bit."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import tvm

from tvm_cascade import pipeline
from tvm_cascade.cascading import PlanOptions, plan_graph, validate
from tvm_cascade.cores import KernelTarget, get_core, kernel_target
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.schedules.driver.lower_plan import lower_plan
from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.host_check import plan_prepared
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.planned_module import planned_module
from tvm_cascade.testing.quick_build import virtual_machine


@pytest.fixture(autouse=True)
def arenas_by_heuristics_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested does not depend on the last bytes, which take longest."""
    for step in ("_integer_program", "_search"):
        monkeypatch.setattr(sys.modules["tvm_cascade.memory.allocate"], step, lambda *_: None)


PIXELS = rows_alone(pixels=True, accumulators=True, stripes=True)


def reader(net: Net, kind: str, y: Value, dilation: int) -> Value:
    if kind == "depthwise":
        return net.conv(net.depthwise(y, 3), 8, 1)
    return net.conv(y, 8, 3, dilation=dilation, activation="relu")


def cell(kind: str, scales: str, dilation: int = 1) -> tvm.IRModule:
    """Two maps that are read separately and, concatenated, together: the concat is a copy of both."""
    net = Net("int8", seed=3, scales="varied" if scales == "varied" else "shared")
    x = net.input((1, 10, 10, 4))
    a, b = net.conv(x, 12, 3, activation="relu"), net.conv(x, 12, 1)
    y = reader(net, kind, net.concat([a, b]), dilation)
    for part in (a, b):
        pooled = net.mul(part, net.global_pool(part))  # wants all of the part, then all of it again
        y = net.add(y, net.conv(pooled, 8, 1))
    return net.finish(y)


def run(mod: tvm.IRModule, xs: list[np.ndarray]) -> list[np.ndarray]:
    machine = virtual_machine(mod)
    return [machine["main"](tvm.runtime.tensor(x)).numpy() for x in xs]


@pytest.mark.parametrize(
    ("kind", "scales", "options"), [("conv", "varied", rows_alone()), ("depthwise", "shared", PIXELS)]
)
def test_a_rewrite_that_pays_is_emitted_to_the_bit(kind: str, scales: str, options: PlanOptions) -> None:
    mod = cell(kind, scales)
    prepared = pipeline.prepare(mod, KernelTarget())
    plain = plan_graph(prepared.graph, options)
    chosen = plan_prepared(mod, prepared, options)
    assert "concats in parts" in chosen.kept and chosen.plan.peak < plain.peak
    assert chosen.reason == f"reads the parts of concat where they lie: {plain.peak} -> {chosen.plan.peak} bytes"
    validate(chosen.plan)
    low = LowerQuantized()(mod)
    planned = planned_module(low, lower_plan(chosen.plan, chosen.prepared.kernels_of(chosen.plan)))
    random = np.random.default_rng(1)
    xs = [random.integers(-128, 128, (1, 10, 10, 4)).astype("int8") for _ in range(2)]
    for one, other in zip(run(low, xs), run(planned, xs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_caps() -> None:
    """With a cap nothing is rewritten that fits; what only fits rewritten is."""
    mod = cell("conv", "shared")
    prepared = pipeline.prepare(mod, KernelTarget())
    plain, best = (
        plan_graph(prepared.graph, rows_alone()).peak,
        plan_prepared(mod, prepared, rows_alone()).plan.peak,
    )
    fits = plan_prepared(mod, prepared, rows_alone(sram=plain))
    assert "concats in parts" not in fits.kept and "fits as it is" in fits.reason
    tight = plan_prepared(mod, prepared, rows_alone(sram=best))
    assert "concats in parts" in tight.kept and tight.plan.peak <= best
    with pytest.raises(InfeasibleError):
        plan_prepared(mod, prepared, rows_alone(sram=best // 4))


def test_nothing_to_rewrite() -> None:
    net = Net("int8")
    mod = net.finish(net.conv(net.input((1, 6, 6, 4)), 8, 3))
    chosen = plan_prepared(mod, pipeline.prepare(mod, KernelTarget()), rows_alone())
    assert (chosen.kept, chosen.reason) == ({}, "")


@pytest.mark.parametrize(("dilation", "dear"), [(1, False), (2, True)])
def test_without_a_cap_the_time_limit_holds(dilation: int, dear: bool) -> None:
    """Parts are read by kernels of their own, or by the generic one: what that is estimated to take must be allowed."""
    mod = cell("conv", "varied", dilation)
    prepared = pipeline.prepare(mod, kernel_target("cortex-m4"))
    options = rows_alone(steps=get_core("cortex-m4").steps)
    limited = plan_prepared(mod, prepared, options)
    assert ("concats in parts" in limited.kept) != dear
    if dear:
        assert "times the instructions (--max-time allows 1.2)" in limited.reason
        allowed = plan_prepared(mod, prepared, replace(options, max_time=100.0))
        assert "concats in parts" in allowed.kept and allowed.plan.peak < limited.plan.peak
