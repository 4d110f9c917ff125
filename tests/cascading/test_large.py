"""Networks of many operators: their layouts are looked for as in small ones."""

from __future__ import annotations

from tvm_cascade.cascading import cascade
from tvm_cascade.cascading.search_cache import forget_searches
from tvm_cascade.graph import Graph
from tvm_cascade.testing.graphs import Builder
from tvm_cascade.testing.plan_options import rows_alone


def chain(operators: int) -> Graph:
    """Convolutions of 3 x 3 over maps of 16 x 16 x 8."""
    builder = Builder()
    x = builder.input(16, 16, 8)
    for _ in range(operators):
        x = builder.conv(x, 8, 3)
    return builder.finish(x)


def test_one_more_operator_costs_no_memory() -> None:
    """Rings of rows need what they need however long the chain is."""
    options = rows_alone(overlap=True)
    small = cascade(chain(40), options)
    large = cascade(chain(201), options)
    forget_searches()
    assert large.peak <= small.peak * 1.01
