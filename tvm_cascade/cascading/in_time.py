"""The smallest plan that takes at most `PlanOptions.max_time` times the instructions of the fastest plan.

Steps get coarser, and stripes wider, until the plan is within the limit. The fastest plan runs a single operator after
another. Every plan is priced by `timing.instructions`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from tvm_cascade.cascading.layerwise import smaller, without_search
from tvm_cascade.cascading.options import CHUNKS, PlanOptions
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.raise_tile_rows import raise_tile_rows
from tvm_cascade.cascading.search_cache import plain_costs, searches
from tvm_cascade.cascading.timing import instructions, stripe_columns
from tvm_cascade.graph import Graph
from tvm_cascade.search_monitor import SearchStopped, cached, monitor

_ALIKE = 1.005  # factor within which two estimates are alike
PlanOf = Callable[[Graph, PlanOptions], Plan]  # the plan of one search, without a limit on instructions


@dataclass(frozen=True, slots=True)
class InTime:
    """The smallest plan within the limit, and the plans compared."""

    plan: Plan
    options: PlanOptions  # with the steps that gave it
    tried: tuple[Plan, ...] = ()  # the smallest, the fastest ones and those in between; empty without a limit
    least: float = inf  # instructions of the fastest plan

    def allows(self, plan: Plan, factor: float) -> bool:
        """Return True if `plan` takes at most `factor` times the instructions of the fastest plan."""
        taken = instructions(plan, self.options)
        return taken is None or taken <= max(factor, _ALIKE) * self.least

    def refused(self, plan: Plan) -> tuple[int, float]:
        """Return the arena of a plan refused by the limit, and the instructions as a factor of the fastest plan's."""
        return plan.peak, (instructions(plan, self.options) or 0.0) / self.least


def smallest_in_time(graph: Graph, options: PlanOptions, plan_of: PlanOf) -> InTime:
    """Return the smallest plan of `graph` within `options.max_time`.

    Raises `SearchStopped` if a limit on the search strikes before there is such a plan.
    """
    smallest = plan_of(graph, options)
    if options.steps is None or options.granularity == "pixel":
        return InTime(smallest, options)
    fast = _fast_plans(graph, replace(options, max_time=1.0))
    least = min(instructions(plan, options) or 0.0 for plan in (smallest, *fast))
    return _Walk(graph, InTime(smallest, options, (smallest, *fast), least), plan_of).found()


@cached(maxsize=8)
def _fast_plans(graph: Graph, options: PlanOptions) -> list[Plan]:
    """Return the plans without cascades, in steps of a single row and of several rows: nothing is faster."""
    plan = without_search(graph, plain_costs(graph, options), options)
    return [plan] if options.draft else list(dict.fromkeys((plan, raise_tile_rows(plan, options))))


class _Walk:
    """The way from the smallest plan to one within the limit."""

    def __init__(self, graph: Graph, start: InTime, plan_of: PlanOf) -> None:
        self.graph, self.start, self.options, self.plan_of = graph, start, start.options, plan_of
        self.tried = list(start.tried)

    def found(self) -> InTime:
        """Return the smallest plan within the limit."""
        smallest = self.start.plan
        plan = self._coarser(smallest)
        if not self._within(plan):
            plan = smaller(*(p for p in self.tried if self._within(p)))
        with suppress(SearchStopped):
            plan = self._in_wider_stripes(smallest, plan)
        alike = (p for p in self.tried if p.peak == plan.peak)
        plan = min((plan, *alike), key=lambda p: instructions(p, self.options) or 0.0)
        finer = self.start.refused(smallest) if smallest.peak < plan.peak else None
        bound = min(p.bound for p in (smallest, *self.tried[len(self.start.tried) :]))
        made = replace(plan, bound=bound, baseline_peak=smallest.baseline_peak, finer=finer)
        return replace(self.start, plan=made, options=self.options, tried=tuple(self.tried))

    def _within(self, plan: Plan) -> bool:
        return self.start.allows(plan, self.options.max_time)

    def _planned(self, options: PlanOptions) -> Plan:
        monitor().check()
        self.tried.append(self.plan_of(self.graph, options))
        return self.tried[-1]

    def _coarser(self, plan: Plan) -> Plan:
        """Plan again in coarser steps until the plan keeps the limit on time; return the last plan, in whole rows, even
        if it does not.
        """
        asked = self.options
        chunks = CHUNKS[::-1] if asked.granularity == "auto" else ()
        same = () if any(s.stripes for s in plan.segments) else (asked.finest,)  # that is `plan`, which has no stripes
        for finest in (asked.finest, *(c for c in (*chunks, 0) if c > asked.finest or not c)):
            if self._within(plan):
                break
            if finest in same:
                continue
            self.options = replace(asked, finest=finest, stripes=False)
            plan = self._planned(self.options)
        if self.options != asked and any(s.tile.by_pixels for s in plan.segments):  # finer steps do not always win
            by_rows = replace(self.options, finest=0)
            with suppress(SearchStopped):
                if searches(self.graph, by_rows)[0].bound < plan.peak:
                    rows = self._planned(by_rows)
                    plan = smaller(rows, plan) if self._within(rows) else plan
        return plan

    def _in_wider_stripes(self, striped: Plan, plan: Plan) -> Plan:
        """Return `striped` with stripes as wide as the limit asks for, or `plan`, without stripes, if smaller."""
        while striped.peak < plan.peak and not self._within(striped):
            narrower, width = striped, stripe_columns(striped)
            if not width:
                return plan
            striped = self._planned(replace(self.start.options, stripes=True, narrowest=width + 1))
            if not self._within_in_one_stripe(narrower, striped):
                return plan
        return smaller(plan, striped)

    def _within_in_one_stripe(self, narrower: Plan, wider: Plan) -> bool:
        """Return False if stripes exceed the limit in any width, judged by plans with two stripe widths.

        The stripes' extra instructions fall in proportion to the number of stripes, and the rest stays.
        """
        widths = stripe_columns(narrower), stripe_columns(wider)
        if widths[1] <= widths[0]:
            return True
        narrow, wide = (instructions(plan, self.options) or 0.0 for plan in (narrower, wider))
        rest = (wide * widths[1] - narrow * widths[0]) / (widths[1] - widths[0])
        return min(rest, wide) <= self.options.max_time * self.start.least
