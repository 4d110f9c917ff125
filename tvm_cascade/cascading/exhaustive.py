"""Graphs of so few operators that every plan can be laid out: all orders, cuts and interleavings, exact addresses.

The search by what is live (`search`) may miss a layout whose addresses turn out better than those of one with fewer
bytes live. With a handful of operators nothing needs to be guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations, product

from tvm_cascade.cascading.assemble import Figures, Layout, assemble
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.search import Search

MOST_OPERATORS = 4


def smallest_of_all(search: Search, figures: Figures, best: Plan) -> Plan:
    """The plan of smallest arena at 1.00x over all orders, cuts and interleavings; `best` where no plan is smaller."""
    graph = search.costs.tables.graph
    for order in permutations(range(search.size)):
        if best.peak <= figures.bound:
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
    """Every layout of the order of a search."""
    n = search.size
    for count in range(n):
        for inner in combinations(range(1, n), count):
            cuts: Sequence[int] = (0, *inner, n)
            if all(search.possible(i, j) for i, j in pairwise(cuts)):
                for interleavings in product(*(search.interleavings(i, j) for i, j in pairwise(cuts))):
                    yield Layout(tuple(cuts), interleavings)
