"""Candidate: signals in one column (`passes.layout.one_column`), so that time runs along rows instead of columns.

Rows may have addresses of their own, and no window wraps around a ring: fewer bytes. Pixels of a row share the loads of
weights: fewer instructions. Both are planned, and the smaller arena within the limit on time wins.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from tvm_cascade.cascading import Plan
from tvm_cascade.cascading.layerwise import bounded
from tvm_cascade.cascading.planner import in_time
from tvm_cascade.cascading.timing import allowed_factor
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.passes.candidates.candidate import (
    Best,
    Candidate,
    PlannedCandidate,
    Proposals,
    best_candidate,
)
from tvm_cascade.passes.prices import TimeRule
from tvm_cascade.search_monitor import SearchStopped

PlanOf = Callable[[float | None], PlannedCandidate]  # by the limit on time; None: that of the request


@dataclass(frozen=True)
class TimeAlongRows(Candidate):
    """The network with its signals in one column."""

    name = "time along rows"
    plan: PlanOf
    row: Best  # with signals in one row
    rule: TimeRule

    def apply(self) -> PlannedCandidate:
        found = self.plan(None)
        if isinstance(self.row, PlannedCandidate):
            self.rule.factor(self.row.plan)  # the fastest plan of either direction is known from here on
        if not self.rule.allows(found.plan):
            found = self._in_time(found)
        if isinstance(self.row, InfeasibleError):
            return found
        return replace(found, others=(self.row.graph,), rewritten=self.row.rewritten)

    def _in_time(self, found: PlannedCandidate) -> PlannedCandidate:
        """Return the plan within the limit relative to the fastest plan of either direction; `found` if there is none."""
        with suppress(SearchStopped):
            limit = allowed_factor(self.rule.options) / _factor(found.plan, self.rule)
            return found if limit < 1.0 else self.plan(limit)
        return found

    def explained(self, found: PlannedCandidate, best: Best) -> PlannedCandidate:
        plan = found.plan if isinstance(best, InfeasibleError) else _beside(found.plan, best.plan, self.rule)
        return replace(found, plan=plan).told(f"time runs along rows: {self.change(found.plan, best)}")

    def dropped(self, found: Best, best: PlannedCandidate) -> PlannedCandidate:
        if isinstance(found, InfeasibleError):
            return best
        return replace(best, plan=_beside(best.plan, found.plan, self.rule), others=(found.graph,))


def with_time_along_rows(row: Best, plan: PlanOf, rule: TimeRule) -> PlannedCandidate:
    """Return the better of `row` and the plan of the network with its signals in one column."""

    def proposed(best: Best) -> Proposals:
        yield TimeAlongRows(plan, best, rule)
        return ""

    return best_candidate(row, [proposed], rule)


def _factor(plan: Plan, rule: TimeRule) -> float:
    """Return the instructions of the fastest plan of this direction relative to the fastest plan of either."""
    return in_time(plan.graph, rule.options).least / rule.prices.least


def _beside(plan: Plan, other: Plan, rule: TimeRule) -> Plan:
    """Return `plan` with the bound of both directions, and without a cap the smallest plan of either that the limit on
    time refuses.
    """
    plan = bounded(plan, other.bound)
    if rule.options.sram is not None:
        return plan
    refused = [(other.peak, rule.factor(other))]
    with suppress(SearchStopped):
        for p in (plan, other):
            if p.finer is not None:
                refused.append((p.finer[0], p.finer[1] * _factor(p, rule)))
    smaller = [(peak, factor) for peak, factor in refused if peak < plan.peak and factor > 1.0]
    return replace(plan, finer=min(smaller, default=None))
