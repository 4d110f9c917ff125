"""The memory planner's searches, `cascade` and `frontier`, which `plan_graph` combines.

Cut positions and interleavings come from dynamic programming (`cuts`), ring sizes from a closed form or simulation
(`ring_sizes`), offsets from `tvm_cascade.memory`. A plan's peak is the size of its allocated arena, not a sum of live bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf

from tvm_cascade.cascading.assemble import Figures
from tvm_cascade.cascading.best_plan import ONE_AND_A_SHORT_SEARCH, ONE_SHORT_SEARCH, best_plan, or_whole_tensors
from tvm_cascade.cascading.cuts import least_peak, undominated
from tvm_cascade.cascading.exhaustive import MOST_OPERATORS, smallest_of_all
from tvm_cascade.cascading.in_time import InTime, smallest_in_time
from tvm_cascade.cascading.layerwise import baseline_peak, bounded, remedy, smaller, within_cap, without_search
from tvm_cascade.cascading.layout_search import Search
from tvm_cascade.cascading.lower_bounds import INFEASIBLE
from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.raise_tile_rows import raise_tile_rows
from tvm_cascade.cascading.row_addresses import or_row_addresses
from tvm_cascade.cascading.search_cache import plain_costs, searches
from tvm_cascade.cascading.structure import structure
from tvm_cascade.cascading.timing import WITHIN_CAP, allowed_factor, instructions
from tvm_cascade.cascading.unread_columns import may_leave_out_columns
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph
from tvm_cascade.search_monitor import SearchMonitor, SearchStopped, cached, monitor, until_stopped

_DEFAULTS = PlanOptions()
_LITTLE = 0.005  # of an arena: trades that save less are not looked for
_FEWER = 0.95  # of the smallest plan's instructions, at most, for a hardly larger plan
GRACE = 2.0  # seconds: after a limit has struck, for a plan of whole rows


def cascade(graph: Graph, options: PlanOptions = _DEFAULTS) -> Plan:
    """Plan the graph for the smallest peak; with a cap (`options.sram`) for the least overhead that fits.

    Without a cap `options.max_time` limits instructions: fewer pixels in a step, and stripes, give smaller rings and
    more instructions. A plan under a cap may therefore be smaller than the smallest plan without a cap.

    If a limit (`search_monitor`) strikes, the result is the best plan so far, and never larger than `layerwise`'s.

    Raises
    ------
    InfeasibleError
        No plan fits `options.sram`. The error carries the bytes needed and the operators at the peak.
    """
    options = may_leave_out_columns(graph, options)
    found: Plan | InfeasibleError | None = None
    with SearchMonitor() as own:
        try:
            found = _searched(graph, options)
        except SearchStopped:
            pass
        except InfeasibleError as error:
            found = error
    if own.limited:
        found = _at_least(graph, options, found)
    if not isinstance(found, Plan):
        raise found or SearchStopped
    return found


def _searched(graph: Graph, options: PlanOptions) -> Plan:
    """Run `cascade`; raises `SearchStopped` if a limit strikes before there is a plan within `options.max_time`."""
    if options.sram is not None:
        return _capped(graph, options)
    if options.granularity == "pixel" or (_again(options) and options.steps is None):
        return _directly(graph, options)
    return _smallest_traded(graph, options) if _again(options) else in_time(graph, options).plan


def _again(options: PlanOptions) -> bool:
    """Test whether plans may do work twice."""
    return options.stripes and options.max_macs > 1.0


def _directly(graph: Graph, options: PlanOptions) -> Plan:
    """Plan by a single search, with or without recompute; `options.max_time` is ignored."""
    return (_no_worse_than_at_once if _again(options) else _cascade)(graph, options)


def _capped(graph: Graph, options: PlanOptions) -> Plan:
    """Plan with least overhead within the cap; if that search misses the cap, return a fitting plan found without a
    cap.
    """
    try:
        return _directly(graph, options)
    except InfeasibleError as error:
        needed, bound = error.needed, _bound(graph, options)
        for plan in until_stopped(_without_cap(graph, options)) if bound <= (options.sram or 0) else ():
            if plan.peak <= (options.sram or 0):
                return replace(bounded(plan, bound), finer=None)
            needed = min(needed, plan.peak)
        raise InfeasibleError(needed, error.available, error.culprits, error.remedy) from None


def _without_cap(graph: Graph, options: PlanOptions) -> Iterator[Plan]:
    """Yield the plans a user may have seen before giving a cap."""
    free = replace(options, sram=None)
    yield finest(graph, free)
    yield _searched(graph, free)
    if _again(options):
        yield _smallest_traded(graph, free)


def _bound(graph: Graph, options: PlanOptions) -> int:
    """Compute a lower bound in bytes on the arenas of all searched plans, with recompute if allowed."""
    search = searches(graph, options)[0]
    return search.frontier(exact=True)[0][0] if search.recompute else search.bound


def _no_worse_than_at_once(graph: Graph, options: PlanOptions) -> Plan:
    """Plan with recompute; fall back on the plan without if only that fits, or is smaller (its arenas get longer
    searches).
    """
    at_once = replace(options, max_macs=1.0)
    try:
        plan = _cascade(graph, options)
    except InfeasibleError:
        with suppress(InfeasibleError):
            if searches(graph, at_once)[0].bound <= (options.sram or 0):
                return bounded(_cascade(graph, at_once), _bound(graph, options))
        raise
    if options.sram is None and plan.peak > plan.bound:
        with suppress(SearchStopped):
            return bounded(smaller(plan, _cascade(graph, at_once)), plan.bound)
    return plan


def _at_least(graph: Graph, options: PlanOptions, found: Plan | InfeasibleError | None) -> Plan | InfeasibleError:
    """Return the search's result when a limit struck, or a simple plan if smaller.

    The simple plans run one operator after another, and steps of whole rows as far as `GRACE` seconds allow.
    """
    bound = found.bound if isinstance(found, Plan) else _known_bound(graph, options)
    with monitor().shield():
        plans = [without_search(graph, plain_costs(graph, options), options)]
        with SearchMonitor(GRACE), suppress(SearchStopped):
            plans.append(_cascade(graph, replace(options, sram=None, max_macs=1.0, granularity="row", stripes=False)))
            bound = min(bound, plans[-1].bound)
    best = replace(smaller(*plans), bound=bound)
    if isinstance(found, Plan):
        return smaller(found, best)
    if options.sram is None or best.peak <= options.sram:
        return best
    needed = best.peak if found is None else min(best.peak, found.needed)
    culprits = () if found is None else found.culprits
    return InfeasibleError(needed, options.sram, culprits, "the time limit ended the search: give more time or memory")


def _known_bound(graph: Graph, options: PlanOptions) -> int:
    """Return the search's lower bound if known, else the file order's, from the least bytes of every segment."""
    if not _again(options):
        with suppress(SearchStopped):
            return searches(graph, options)[0].bound
    costs = plain_costs(graph, options)
    return least_peak(Search(costs.tables, costs.order, options, known=costs).least_bytes)


def in_time(graph: Graph, options: PlanOptions) -> InTime:
    """Return the plan of smallest peak within `options.max_time`, without recompute or a cap.

    Raises `SearchStopped` if a limit strikes before there is such a plan.
    """
    return _in_time(graph, replace(options, sram=None, max_macs=1.0))


def in_rings_or_addresses(graph: Graph, options: PlanOptions, plan: Plan) -> Plan:
    """Return the smaller plan with row addresses if `options.max_time` allows such a plan, else `plan`.

    A plan smaller than the plan refused by the limit is tried first. A hardly larger plan may win at last
    (`_hardly_larger`).
    """
    return _hardly_larger(graph, options, _rings_or_addresses(graph, options, plan))


def _hardly_larger(graph: Graph, options: PlanOptions, smallest: Plan) -> Plan:
    """Return the fastest plan of at most `options.spare` more bytes if it takes `_FEWER` of the instructions, else
    `smallest`.

    Plans with recompute stay as they are.
    """
    if not options.spare or options.steps is None or options.draft or options.granularity == "pixel" or _again(options):
        return smallest
    with suppress(SearchStopped):
        monitor().check()
        taken = instructions(smallest, options) or 0.0
        if _FEWER * taken < in_time(graph, options).least:
            return smallest
        known = in_time(graph, replace(options, max_time=min(WITHIN_CAP, options.max_time)))
        near = [p for p in (known.plan, *known.tried) if smallest.peak < p.peak <= (1 + options.spare) * smallest.peak]
        priced = [
            (instructions(p, options) or 0.0, p) for p in dict.fromkeys(raise_tile_rows(p, options) for p in near)
        ]
        least, plan = min(priced, key=lambda entry: entry[0], default=(inf, smallest))
        if least <= _FEWER * taken:
            bound, finer = min(plan.bound, smallest.bound), known.refused(smallest)
            return replace(plan, bound=bound, baseline_peak=smallest.baseline_peak, finer=finer)
    return smallest


def _rings_or_addresses(graph: Graph, options: PlanOptions, plan: Plan) -> Plan:
    """Return the result for `in_rings_or_addresses`, without larger plans."""
    bounds = [plan.peak] if plan.finer is None else [plan.finer[0], plan.peak]
    for below in bounds:
        found = or_row_addresses(graph, options, replace(plan, allocation=replace(plan.allocation, peak=below)))
        if any(s.row_addresses for s in found.storages):
            break
    else:
        return replace(plan, bound=min(plan.bound, found.bound))
    with suppress(SearchStopped):
        known = in_time(graph, options) if options.steps is not None else None
        if known is not None and not known.allows(found, allowed_factor(options)):
            return replace(plan, bound=found.bound, finer=known.refused(found))
    return found


@cached(maxsize=8)
def _in_time(graph: Graph, options: PlanOptions) -> InTime:
    return smallest_in_time(graph, options, _cascade)


def _cascade(graph: Graph, options: PlanOptions) -> Plan:
    """Run `cascade` for a single set of tiles, without the limit `options.max_time`; may raise `SearchStopped`."""
    best = _smallest(structure(graph), options.untimed)
    return within_cap(replace(best, graph=graph), plain_costs(graph, options), options, remedy(options))


@cached(maxsize=16)
def _smallest(graph: Graph, options: PlanOptions) -> Plan:
    """Run `_cascade` on a graph's `structure`, even if the plan exceeds the cap; unrelated options have been reset."""
    best, figures = _of_fewest_live_bytes(graph, replace(options, draft=False))
    if options.draft:
        return best
    tried = searches(graph, options)
    for plan in until_stopped(_of_others(graph, options, tried, figures, best)):
        best = bounded(smaller(best, plan), best.bound, plan.bound)
    search, figures = tried[0], replace(figures, bound=best.bound)
    if best.peak > max(figures.bound, options.sram or 0) and search.size <= MOST_OPERATORS and not search.recompute:
        best = smallest_of_all(search, figures, best)
    return best


@cached(maxsize=16)
def _of_fewest_live_bytes(graph: Graph, options: PlanOptions) -> tuple[Plan, Figures]:
    """Return the smallest plan for the order and steps with the fewest live bytes, and the peaks for comparison."""
    search, bound = searches(graph, options)[0], _bound(graph, options)
    least = search.frontier()[0][0] if search.recompute else search.smallest
    figures = Figures(baseline_peak(graph, options.alignment), bound)
    best = best_plan(search, figures, options, least)
    if options.sram is not None and best.peak > options.sram:  # the smallest arena may be of a layout not tried yet
        with suppress(SearchStopped):
            best = smaller(best, best_plan(search, figures, replace(options, sram=None), least))
    if not options.stream_input:
        best = or_whole_tensors(search, figures, options, best)
    return best, figures


def _of_others(
    graph: Graph, options: PlanOptions, tried: Sequence[Search], figures: Figures, best: Plan
) -> Iterator[Plan]:
    """Yield plans for the orders and steps without the fewest live bytes: their arenas may be smaller than `best`."""
    others = [(other, options) for other in tried[1:]]
    if options.granularity == "auto" and best.peak > max(figures.bound, options.sram or 0):
        by_rows = replace(options, granularity="row")
        others.append((searches(graph, by_rows)[0], by_rows))
    for other, asked in others:
        least = INFEASIBLE if tried[0].recompute else other.bound_up_to(best.peak)
        if best.peak > max(least, options.sram or 0):
            figures = replace(figures, bound=min(figures.bound, least))
            best = best_plan(other, figures, asked, other.smallest, known=best)
            yield best


def frontier(
    graph: Graph, options: PlanOptions = _DEFAULTS, tell: Callable[[Plan], None] = lambda _plan: None
) -> tuple[Plan, ...]:
    """Return the plans no other plan beats in both peak and work, by ascending peak.

    Work goes up to `options.max_macs`; `options.sram` is ignored. Without recompute (`options.stripes` off, or
    `max_macs` at 1.0), and if recompute cannot save more than `_LITTLE`, there is a single plan. `tell` is called with
    every plan that does recompute, dominated plans included. A limit ends the frontier with the plans so far; raises
    `SearchStopped` if there is none yet.
    """
    options = replace(options, sram=None)
    once = replace(options, max_macs=1.0)
    at_once = in_rings_or_addresses(graph, once, in_time(graph, once).plan)
    if not _again(options) or least_peak(search_of(graph, options).least_bytes) > (1 - _LITTLE) * at_once.peak:
        return (at_once,)
    plans = [at_once]
    for _, plan in until_stopped(_traded(graph, options, at_once)):
        tell(plan)
        plans.append(plan)
    return tuple(undominated(plans, lambda p: (p.peak, p.macs)))


def _smallest_traded(graph: Graph, options: PlanOptions) -> Plan:
    """Return the frontier's plan with the smallest peak, without planning the rest.

    The search stops as soon as the next trade needs more live bytes than the smallest arena. The plan's bound covers
    all trades, even trades with larger arenas in the end.
    """
    once = in_time(graph, options)
    best, finer = once.plan, once.plan.finer
    for least, plan in until_stopped(_traded(graph, options, best)):
        if (plan.peak, plan.macs) >= (best.peak, best.macs):
            pass
        elif once.allows(plan, allowed_factor(options)):
            best = plan
        elif finer is None or plan.peak < finer[0]:
            finer = once.refused(plan)
        if least > best.peak:
            break
    try:
        least = search_of(graph, options).frontier(exact=True)[0][0]
    except SearchStopped:
        least = _known_bound(graph, options)
    finer = finer if finer is not None and finer[0] < best.peak else None
    return replace(best, bound=min(best.bound, least), finer=finer)


def _traded(graph: Graph, options: PlanOptions, at_once: Plan) -> Iterator[tuple[int, Plan]]:
    """Plans with recompute, by ascending live bytes.

    Each comes with a lower bound, in bytes, on the arenas of all later plans. Only plans that may turn out the smallest
    get a full arena search.
    """
    search, smallest = search_of(graph, options), at_once.peak
    options = replace(options, finest=search.options.finest)
    by_work = search.frontier(exact=True)  # the exact bytes of a trade are those of the same work or less
    trades = [(b, next(e[0] for e in by_work if e[1] <= extra)) for b, extra in search.frontier() if extra]
    rest = (*(exact for _, exact in trades[1:]), INFEASIBLE)
    for (least, exact), after in zip(trades, rest, strict=False):
        monitor().check()
        efforts = ONE_AND_A_SHORT_SEARCH if exact <= smallest else ONE_SHORT_SEARCH
        plan = replace(best_plan(search, Figures(at_once.baseline_peak, exact), options, least, efforts), graph=graph)
        smallest = min(smallest, plan.peak)
        yield after, plan


def finest(graph: Graph, options: PlanOptions) -> Plan:
    """Return the smallest plan in rings without double work, in the smallest possible steps, regardless of time."""
    return _cascade(graph, replace(options, sram=None, max_macs=1.0))


def finest_in_time(graph: Graph, options: PlanOptions) -> int:
    """Return the fewest pixels of a step `options.max_time` allows without recompute; 0: only whole rows are fast
    enough.
    """
    return in_time(graph, options).options.finest


def search_of(graph: Graph, options: PlanOptions, finest: int | None = None) -> Search:
    """Return the segment costs and layouts (`Search`) for building a frontier, for the order of smallest bound.

    Steps write at least `finest` pixels; by default as few as `options.max_time` allows without recompute.
    """
    finest = finest_in_time(graph, options) if finest is None else finest
    return searches(graph, replace(options, sram=None, finest=finest))[0]
