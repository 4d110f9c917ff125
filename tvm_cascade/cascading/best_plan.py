"""The smallest plan of a search: layouts are tried, best first, and the best layouts' arenas searched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from tvm_cascade.cascading.assemble import SHORT_SEARCH, Figures, Layout, assemble, simple_arena
from tvm_cascade.cascading.layerwise import smaller
from tvm_cascade.cascading.layout_search import Leaders, Search
from tvm_cascade.cascading.lower_bounds import INFEASIBLE
from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.search_cache import least_memory_order
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.memory import AllocateOptions
from tvm_cascade.search_monitor import SearchStopped, monitor, until_stopped

_MOST_LAYOUTS = 4  # arenas laid out for one point of a frontier
Efforts = tuple[AllocateOptions, ...]  # limits of the arena searches of the best, second best, ... layout
_TWO_SEARCHES: Efforts = (AllocateOptions(), AllocateOptions())
ONE_AND_A_SHORT_SEARCH: Efforts = (AllocateOptions(), SHORT_SEARCH)  # with recompute
ONE_SHORT_SEARCH: Efforts = (SHORT_SEARCH,)  # points of a frontier that are not its smallest


def best_plan(
    search: Search,
    figures: Figures,
    options: PlanOptions,
    least: int,
    efforts: Efforts | None = None,
    known: Plan | None = None,
) -> Plan:
    """Return the first layout's plan with an arena within the goal, else the smallest plan, `known` if none is smaller.

    The goal is the cap; without a cap the bound. If the allocator's heuristics miss the goal, the arenas of the best
    layouts are searched, the k-th with the limits `efforts[k]`. A limit ends the search with the best plan so far;
    raises `SearchStopped` if there is none yet.
    """
    goal = figures.bound if options.sram is None else options.sram
    efforts = efforts or (ONE_AND_A_SHORT_SEARCH if search.recompute else _TWO_SEARCHES)
    leaders = Leaders(len(efforts), INFEASIBLE if known is None else known.peak)
    tries = islice(_layouts(search, options, goal, least, leaders), _MOST_LAYOUTS if search.recompute else None)
    for count, (tried, layout) in enumerate(until_stopped(tries), 1):
        if leaders.beyond(max(tried.costs.exact_cost(*segment) for segment in layout.segments)):
            continue
        arena = simple_arena(tried.costs, layout)
        if arena.peak <= goal:
            return assemble(tried.costs, layout, figures)
        leaders.add(arena, tried, layout)
        if leaders.first:
            monitor().report("layouts", count, None, leaders.first[0][0].peak, figures.bound)
    # then smaller plans; empty where no layout stays within the goal
    best = (
        [assemble(tried.costs, layout, figures) for _, tried, layout in leaders.first[:1]] if known is None else [known]
    )
    if best and search.recompute and best[0].peak <= max(goal, least):
        return best[0]
    searched = list(zip(leaders.first, efforts, strict=False))
    if leaders.tightest is not None and all(entry is not leaders.tightest for entry in leaders.first):
        searched.append((leaders.tightest, SHORT_SEARCH))
    for (arena, tried, layout), effort in searched:
        if arena.bound >= smaller(*best).peak:
            continue  # no arena of this layout is smaller
        best.append(assemble(tried.costs, layout, figures, optimise=True, effort=effort))
        if best[-1].peak <= goal:
            return best[-1]
    if not options.stream_input and known is None:
        # many offset constraints can make an arena far larger than its live bytes: never larger than layer by layer
        best.append(assemble(search.costs, Layout.one_by_one(search.size), figures))
    if not best:
        raise SearchStopped
    return smaller(*best)


def or_whole_tensors(search: Search, figures: Figures, options: PlanOptions, best: Plan) -> Plan:
    """Return the smaller of `best` and the plans that run every operator alone on whole tensors.

    Many offset constraints can make an arena far larger than the live bytes; plans on whole tensors without such
    constraints avoid this. Two are tried, in the file's order and in the order of least memory, so no result is larger
    than the better of both.
    """
    graph = search.costs.tables.graph
    settings = replace(options.settings, overlap=False)
    alone = Layout.one_by_one(search.size)
    for order in dict.fromkeys((tuple(range(search.size)), least_memory_order(graph, settings.in_place))):
        costs = SegmentCosts(search.costs.tables, order, settings, search.costs)
        needed = max((costs.exact_cost(k, k + 1) for k in range(search.size)), default=0)
        if max(needed, options.sram or 0) < best.peak:
            best = smaller(best, assemble(costs, alone, figures, optimise=True))
    return best


def _layouts(
    search: Search, options: PlanOptions, goal: int, least: int, leaders: Leaders
) -> Iterator[tuple[Search, Layout]]:
    """Yield layouts to try, best first: with rings in the dead part of dying inputs, then without.

    The second kind may give smaller arenas; they are left out if none can be among the `leaders`, or smaller than the
    first.
    """

    def of(search: Search, least: int) -> Iterator[tuple[Search, Layout]]:
        def most() -> int:
            return leaders.worth(0 if search.recompute else search.bound)

        return ((search, layout) for layout in search.layouts(max(goal, least), least, most))

    yield from of(search, least)
    if options.overlap and not search.recompute:
        plain = search.without_ring_constraints()
        if leaders.worth(plain.bound) >= plain.bound:
            yield from of(plain, plain.smallest)
