"""`plan_graph`, the planner's entry point: a search, then tiles of several rows, then separate row addresses.

The plans' instructions decide: without a cap at most `PlanOptions.max_time` times the fastest plan's, under a cap at
most `WITHIN_CAP` times the instructions of the fastest plan within the cap.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from tvm_cascade.cascading.layerwise import layerwise, smaller
from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.planner import cascade, in_rings_or_addresses, in_time
from tvm_cascade.cascading.raise_tile_rows import raise_tile_rows
from tvm_cascade.cascading.row_addresses import or_row_addresses
from tvm_cascade.cascading.timing import WITHIN_CAP, instructions
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph
from tvm_cascade.search_monitor import SearchStopped, cached, monitor

_DEFAULTS = PlanOptions()


def plan_graph(graph: Graph, options: PlanOptions = _DEFAULTS) -> Plan:
    """Plan a graph as the options ask, with multi-row tiles as far as the arena has room.

    Raises
    ------
    InfeasibleError
        The arena exceeds `options.sram`.
    """
    if options.layerwise:
        return raise_tile_rows(layerwise(graph, options), options)
    if options.sram is not None:
        return _within_cap(graph, options)
    return _without_cap(graph, options)


def _without_cap(graph: Graph, options: PlanOptions) -> Plan:
    plan = cascade(graph, options)
    return in_rings_or_addresses(graph, options, plan if options.draft else raise_tile_rows(plan, options))


def _within_cap(graph: Graph, options: PlanOptions) -> Plan:
    """Return the smallest plan that takes hardly more instructions than the fastest within the cap.

    If the plan with this property and no cap fits, that plan is returned.
    """
    timed = options.steps is not None and not options.draft and options.granularity != "pixel"
    plans = list(_hardly_slower(graph, options)) if timed else []
    if plans and plans[0].peak <= (options.sram or 0):
        return plans[0]
    try:
        found: Plan | InfeasibleError = cascade(graph, options)
        found = found if options.draft else raise_tile_rows(found, options)
    except InfeasibleError as error:
        found = error
    best = or_row_addresses(graph, options, found)
    if isinstance(best, InfeasibleError):
        raise best
    fitting = [best, *(p for p in (found, *plans) if isinstance(p, Plan) and p.peak <= (options.sram or 0))]
    priced = [(instructions(plan, options) or 0.0, plan) for plan in fitting] if timed else [(0.0, best)]
    least = min(taken for taken, _ in priced)
    chosen = smaller(*(plan for taken, plan in priced if taken <= WITHIN_CAP * least))
    bound = min(plan.bound for plan in fitting)
    return replace(chosen, bound=bound, baseline_peak=best.baseline_peak, finer=None)


@cached(maxsize=4)
def _smallest_without_cap(graph: Graph, options: PlanOptions) -> Plan:
    """Return the plan of `_without_cap`, which every cap is compared with."""
    return _without_cap(graph, options)


def _hardly_slower(graph: Graph, options: PlanOptions) -> Iterator[Plan]:
    """Yield the smallest plan without a cap that takes hardly more than the fastest, then the plans compared."""
    free = replace(options, sram=None, max_macs=1.0, max_time=WITHIN_CAP)
    with suppress(SearchStopped):
        monitor().check()
        known = in_time(graph, free)
        yield replace(_smallest_without_cap(graph, free), finer=None)
        yield from known.tried
