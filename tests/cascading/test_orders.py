"""The choice of an execution order among all down-closed sets: how much work it may take, and what that leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from tvm_cascade.cascading import cascade, search_cache
from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.orders import MOST_COSTS, best_order, down_sets
from tvm_cascade.cascading.validate import validate
from tvm_cascade.graph import Graph
from tvm_cascade.testing.graphs import Builder
from tvm_cascade.testing.plan_options import rows_alone


def _branches(count: int, depth: int) -> Graph:
    """Chains of convolutions beside each other, of growing channels, which a sum of all ends."""
    b = Builder()
    x = b.input(6, 6, 2)
    ends = []
    for k in range(count):
        end = b.conv(x, 2 + k, 3)
        for at in range(depth - 2):
            end = b.conv(end, 3 + (k + at) % 3, 3)
        ends.append(b.conv(end, 2, 3))
    total = ends[0]
    for end in ends[1:]:
        total = b.add(total, end)
    return b.finish(total)


def test_costs_are_worked_out_up_to_a_count() -> None:
    """One call fewer than are needed proves nothing, and the file's order is returned."""
    graph = _branches(3, 3)
    tables, calls = AccessTables(graph), []

    def cost(order: tuple[int, ...], i: int, j: int) -> int:
        calls.append((order, i, j))
        return 10 + i + len(graph.ops) - j  # the whole network at once is best

    rings = [0] * len(graph.tensors)
    found, proven = best_order(tables, cost, lambda: 1 << 40, rings)
    needed = len(calls)
    assert proven and sorted(found) == list(range(len(graph.ops))) and 50 < needed < MOST_COSTS
    assert best_order(tables, cost, lambda: 1 << 40, rings, most_costs=needed) == (found, True)
    calls.clear()
    filed = tuple(range(len(graph.ops)))
    assert best_order(tables, cost, lambda: 1 << 40, rings, most_costs=needed - 1) == (filed, False)
    assert len(calls) == needed - 1


def test_an_order_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs of an order share its search, of which no more are made than pairs may be worked out."""
    made: list[tuple[int, ...]] = []

    class Counted(search_cache.Search):
        def __init__(self, tables: Any, order: Any, *how: Any, **known: Any) -> None:
            made.append(tuple(order))
            super().__init__(tables, order, *how, **known)

    monkeypatch.setattr(search_cache, "Search", Counted)
    graph = _branches(3, 4)
    sets = down_sets(graph)
    assert sets is not None and len(sets) > 100
    plan = cascade(graph, rows_alone(overlap=False))
    validate(plan)
    assert len(made) == len(set(made)) <= MOST_COSTS
