"""Candidates of large networks are compared by drafts of their plans: the best of them is planned in full."""

from __future__ import annotations

import pytest
import tvm

from tvm_cascade.cascading import PlanOptions, forget_searches, planner, validate
from tvm_cascade.graph import Graph
from tvm_cascade.passes import plan_network as planning
from tvm_cascade.passes.candidates import concats_in_parts, concats_in_place
from tvm_cascade.passes.plan_network import plan_network
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.looks import after_looks


def cells() -> tvm.IRModule:
    """Two maps that are read separately and, concatenated, together."""
    net = Net("int8", seed=3)
    x = net.input((1, 10, 10, 4))
    a, b = net.conv(x, 12, 3, activation="relu"), net.conv(x, 12, 1)
    y = net.conv(net.concat([a, b]), 8, 3, activation="relu")
    for part in (a, b):
        y = net.add(y, net.conv(net.mul(part, net.global_pool(part)), 8, 1))
    return net.finish(y)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Every network counts as large; of each graph that is planned, in turn, whether a draft was asked for."""
    found: list[bool] = []
    for module in (planning, concats_in_place, concats_in_parts):
        plan_graph = module.plan_graph

        def noted(graph: Graph, options: PlanOptions, plan_graph=plan_graph):
            found.append(options.draft)
            return plan_graph(graph, options)

        monkeypatch.setattr(module, "plan_graph", noted)
    monkeypatch.setattr(planning, "LARGE", 0)
    return found


def test_the_best_of_the_drafts_is_planned_in_full(asked: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    drafted = plan_network(cells())
    assert len(asked) > 2 and asked == [True] * (len(asked) - 1) + [False]
    monkeypatch.setattr(planning, "LARGE", 200)
    full = plan_network(cells())
    assert not any(asked[-2:])
    assert (drafted.plan.peak, drafted.plan.baseline_peak) == (full.plan.peak, full.plan.baseline_peak)
    assert drafted.kept.keys() == full.kept.keys()
    validate(drafted.plan)


@pytest.mark.parametrize("looks", [1, 8, 60, 400, 3000])
def test_a_limit_ends_drafts_and_what_follows_them(
    looks: int, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan comes whenever the limit strikes, and it is no larger than one operator after the other."""
    monkeypatch.setattr(planner, "GRACE", 1e9)
    forget_searches()
    for kept in (planner._in_time, planner._smallest, planner._of_fewest_live_bytes):
        kept.cache_clear()  # type: ignore[attr-defined]
    found, _ = after_looks(looks, lambda: plan_network(cells()))
    validate(found.plan)
    assert found.plan.peak <= found.plan.baseline_peak
