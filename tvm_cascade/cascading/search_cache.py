"""Searches and costs for the graphs planned last, kept for further plans on the same graphs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.cached_method import drop_results
from tvm_cascade.cascading.geometry import streamable
from tvm_cascade.cascading.layout_search import LARGE, LONGEST_IN_LARGE, Search
from tvm_cascade.cascading.lower_bounds import INFEASIBLE
from tvm_cascade.cascading.options import PlanOptions, Settings
from tvm_cascade.cascading.orders import best_order
from tvm_cascade.cascading.regions import region_order
from tvm_cascade.cascading.row_lives import RowLives
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.cascading.structure import structure
from tvm_cascade.cascading.unread_columns import may_leave_out_columns
from tvm_cascade.graph import Graph
from tvm_cascade.search_monitor import SearchStopped, cached

_MOST_ROWS = 30_000  # of graphs whose rows may have addresses of their own: each is placed beside all that live with it
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

    chosen, proven = best_order(tables, bytes_of, lambda: filed.bound, filed.lower_bounds.least_rings)
    by_memory = (
        least_memory_order(graph, over) for over in dict.fromkeys((options.overlap, options.settings.in_place))
    )
    others = [chosen] if proven else list(dict.fromkeys(by_memory))
    if not (proven or filed.regions.whole):
        others.append(region_order(graph, filed.regions))
    tried = [filed, *(search_of(o) for o in others if o != filed.costs.order)]
    least = INFEASIBLE
    for search in reversed(tried):  # the file's order, which is the worst of many branches, last
        if search is not filed:
            search.use_own_rows()
        least = min(least, search.bound_up_to(least))
    return sorted(tried, key=lambda search: search.bound_up_to(least))


def not_searched(graph: Graph, options: PlanOptions, peak: int | None = None) -> str:
    """Return the text on searches left out because of the graph's size that may find an arena below `peak` bytes.

    Empty if none is left out, or if lower bounds prove that plans left out need at least `peak` bytes.
    """
    rows = sum(t.rows for t in graph.tensors)
    if options.layerwise:
        return ""
    if options.row_addresses and rows > _MOST_ROWS:
        return f"no rows with addresses of their own for {rows} rows: a cap (--sram) may find a smaller arena"
    if len(graph.ops) > LARGE and (peak is None or _longer_may_win(graph, options, peak)):
        return f"no rings in segments of more than {LONGEST_IN_LARGE} of the {len(graph.ops)} operators"
    return ""


def _longer_may_win(graph: Graph, options: PlanOptions, peak: int) -> bool:
    """Test whether segments longer than all searched ones may need less than `peak` bytes, in any order tried."""
    with suppress(SearchStopped):
        return any(s.longer_bound < peak for s in searches(graph, may_leave_out_columns(graph, options)))
    return True


def row_lives(graph: Graph, options: PlanOptions) -> tuple[RowLives, ...]:
    """Return the lives of rows in every execution order tried; empty if rows cannot have separate addresses."""
    return _row_lives(structure(graph), options.stream_input, options.accumulators, options.settings)


@lru_cache(maxsize=4)
def _row_lives(graph: Graph, streamed: bool, accumulators: bool, settings: Settings) -> tuple[RowLives, ...]:
    if graph.states or sum(t.rows for t in graph.tensors) > _MOST_ROWS:
        return ()
    known = _costs(graph, streamed, accumulators, settings)
    alone = replace(settings, overlap=False, in_place=False)
    orders = dict.fromkeys((known.order, least_memory_order(graph, settings.in_place)))
    made = (RowLives(SegmentCosts(known.tables, order, alone, known), settings.overlap) for order in orders)
    return tuple(lives for lives in made if lives.separate)


def forget_searches() -> None:
    """Drop the planner's results for further plans of the same graphs: 200 MB for a graph of a thousand operators."""
    _kept_searches.cache_clear()
    _costs.cache_clear()
    _row_lives.cache_clear()
    drop_results()
