"""Exhaustive search for graphs of very few operators: all orders, cuts and interleavings, each with its arena allocated.

The usual search (`search`) ranks layouts by live bytes, and may miss a layout with more live bytes but a smaller arena.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations, product

from tvm_cascade.cascading.assemble import Figures, Layout, assemble
from tvm_cascade.cascading.layout_search import Search
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.search_monitor import monitor

MOST_OPERATORS = 4


def smallest_of_all(search: Search, figures: Figures, best: Plan) -> Plan:
    """Search all orders, cuts and interleavings for the smallest arena without recompute; `best` if none is smaller.

    If a limit strikes, only the orders tried count.
    """
    graph = search.costs.tables.graph
    for order in permutations(range(search.size)):
        if best.peak <= figures.bound or monitor().over():
            break
        if not graph.is_order(order):
            continue
        tried = Search(search.costs.tables, order, search.options, search)
        for layout in _layouts(tried):
            if max(tried.costs.exact_cost(*segment) for segment in layout.segments) < best.peak:
                plan = assemble(tried.costs, layout, figures, optimise=True)
                best = plan if plan.peak < best.peak else best
    return best


def _layouts(search: Search) -> Iterator[Layout]:
    """Yield every layout of a search's order."""
    n = search.size
    for count in range(n):
        for inner in combinations(range(1, n), count):
            cuts: Sequence[int] = (0, *inner, n)
            if all(search.possible(i, j) for i, j in pairwise(cuts)):
                for interleavings in product(*(search.interleavings(i, j) for i, j in pairwise(cuts))):
                    yield Layout(tuple(cuts), interleavings)
