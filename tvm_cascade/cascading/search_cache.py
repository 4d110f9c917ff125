"""Searches and costs for the graphs planned last, kept for further plans on the same graphs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.cached_method import drop_results
from tvm_cascade.cascading.geometry import streamable
from tvm_cascade.cascading.layout_search import Search
from tvm_cascade.cascading.options import PlanOptions, Settings
from tvm_cascade.cascading.orders import best_order
from tvm_cascade.cascading.regions import region_order
from tvm_cascade.cascading.row_lives import RowLives
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.cascading.structure import structure
from tvm_cascade.graph import Graph
from tvm_cascade.search_monitor import cached

_MOST_OPERATORS = 200  # of graphs whose rows may have addresses of their own
_LARGE = 300  # operators of a graph whose searches are too large to be kept beside those of another


def searches(graph: Graph, options: PlanOptions) -> list[Search]:
    """Return a `Search` for each execution order tried, the smallest bound first.

    The searches' graph, and the graph of all plans made from them, is the graph's `structure`.
    """
    plain = structure(graph)
    if len(plain.ops) > _LARGE:
        _forget_others(plain)
    return _kept_searches(plain, replace(options.untimed, sram=None, draft=False))


@lru_cache(maxsize=1)
def _forget_others(_graph: Graph) -> None:
    """Drop the cached results for other graphs, unless this graph was searched last."""
    forget_searches()


def plain_costs(graph: Graph, options: PlanOptions) -> SegmentCosts:
    """Return the segment costs of the file's order, over the graph's `structure`."""
    return _costs(structure(graph), options.stream_input, options.accumulators, options.settings)


@lru_cache(maxsize=16)
def _costs(graph: Graph, streamed: bool, accumulators: bool, settings: Settings) -> SegmentCosts:
    """Return the segment costs of the file's order, shared by searches with different options in other fields."""
    rowwise = [t for t in graph.inputs if streamable(graph, t)]
    return SegmentCosts(AccessTables(graph, rowwise if streamed else (), accumulators), range(len(graph.ops)), settings)


@cached(maxsize=16)
def least_memory_order(graph: Graph, in_place: bool) -> tuple[int, ...]:
    """Return the order in which whole tensors need the fewest bytes; `in_place`: element-wise operators overwrite
    inputs.
    """
    from tvm_cascade.ordering import OrderOptions, order  # few plans are compared with it

    return order(graph, OrderOptions(in_place=in_place)).order


@cached(maxsize=16)
def _kept_searches(graph: Graph, options: PlanOptions) -> list[Search]:
    """Return `searches`, cached; unrelated options have been reset."""
    known = plain_costs(graph, options)
    tables, at_once = known.tables, replace(options, max_macs=1.0)
    if options != at_once and not tables.streamed:
        return [search.with_recompute(options) for search in _kept_searches(graph, at_once)]
    filed = Search(tables, range(len(graph.ops)), options, known=known)

    @cache
    def search_of(order: tuple[int, ...]) -> Search:
        return filed if order == filed.costs.order else Search(tables, order, options, filed)

    def bytes_of(order: tuple[int, ...], i: int, j: int) -> int:
        return search_of(order).least_exact(i, j)

    chosen, proven = best_order(tables, bytes_of, filed.bound, filed.lower_bounds.least_rings)
    by_memory = (
        least_memory_order(graph, over) for over in dict.fromkeys((options.overlap, options.settings.in_place))
    )
    others = [chosen] if proven else list(dict.fromkeys(by_memory))
    if not (proven or filed.regions.whole):
        others.append(region_order(graph, filed.regions))
    tried = [filed, *(search_of(o) for o in others if o != filed.costs.order)]
    return sorted(tried, key=lambda search: search.bound)


def not_searched(graph: Graph, options: PlanOptions) -> str:
    """Return the text on searches left out because of the graph's size; empty if none is."""
    if options.layerwise or len(graph.ops) <= _MOST_OPERATORS:
        return ""
    return (
        f"no rows with addresses of their own for {len(graph.ops)} operators: a cap (--sram) may find a smaller arena"
    )


@lru_cache(maxsize=4)
def row_lives(graph: Graph, options: PlanOptions) -> tuple[RowLives, ...]:
    """Return the lives of rows in every execution order tried; empty if rows cannot have separate addresses."""
    if len(graph.ops) > _MOST_OPERATORS or graph.states:
        return ()
    known = plain_costs(graph, options)
    settings = replace(options.settings, overlap=False, in_place=False)
    orders = dict.fromkeys((known.order, least_memory_order(graph, options.settings.in_place)))
    return tuple(RowLives(SegmentCosts(known.tables, order, settings, known), options.overlap) for order in orders)


def forget_searches() -> None:
    """Drop the planner's results for further plans of the same graphs: 200 MB for a graph of a thousand operators."""
    _kept_searches.cache_clear()
    _costs.cache_clear()
    row_lives.cache_clear()
    drop_results()
