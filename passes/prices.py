"""Prices of plans for a network and the candidates: instructions counted in the kernels' code, each plan once.

`Prices` is the price in `PlanOptions.price`, by which the planner keeps to `max_time`; `TimeRule` compares candidates
by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from tvm_cascade.cascading import Plan, PlanOptions
from tvm_cascade.cascading.planner import in_time
from tvm_cascade.cascading.timing import WITHIN_CAP, allowed_factor, instructions
from tvm_cascade.cores.work import Work
from tvm_cascade.graph import Graph
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.search_monitor import SearchStopped, monitor

Estimator = Callable[[Plan], Sequence[Work] | None]


class Prices:
    """Estimator of plans for every added graph; estimates are kept."""

    def __init__(self) -> None:
        self._estimators: list[tuple[Graph, Estimator]] = []  # latest first
        self._known: dict[tuple[object, ...], tuple[Sequence[Work] | None, object]] = {}
        self.least = inf  # instructions of the fastest plan of all candidates

    def add(self, prepared: PreparedGraph) -> PreparedGraph:
        """Make plans of `prepared.graph` known; returns `prepared`."""
        self._estimators.insert(0, (prepared.graph, prepared.estimator()))
        return prepared

    def work(self, plan: Plan) -> Sequence[Work] | None:
        """Return instructions and cycles by operator; None for graphs that were not added, and for the host."""
        for graph, estimator in self._estimators:
            if graph is plan.graph or graph.ops == plan.graph.ops:
                key = (id(estimator), plan.segments, plan.storages)  # where whole blocks lie changes nothing
                if key not in self._known:
                    with monitor().shield():
                        self._known[key] = estimator(plan), estimator
                return self._known[key][0]
        return None

    def __call__(self, plan: Plan) -> float | None:
        """Return a plan's instructions; None if `work` is unknown."""
        work = self.work(plan)
        return None if work is None else sum(w.instructions for w in work)

    def by_operator(self, plan: Plan) -> Sequence[float] | None:
        """Return a plan's instructions by operator; None if `work` is unknown."""
        work = self.work(plan)
        return None if work is None else [w.instructions for w in work]


@dataclass(frozen=True)
class TimeRule:
    """The rule for deciding between two candidates' plans, by arena and by cost."""

    options: PlanOptions
    prices: Prices

    def taken(self, plan: Plan) -> float | None:
        """Return a plan's instructions; None if unknown."""
        return instructions(plan, self.options)

    def allows(self, plan: Plan) -> bool:
        """Return False for a plan without a cap that takes too long beside the fastest plan of any candidate."""
        return self.factor(plan) <= allowed_factor(self.options) * (1 + 1e-9)

    def factor(self, plan: Plan) -> float:
        """Return a plan's instructions relative to the fastest plan's, at least 1; 1 if a cap decides."""
        options = self.options
        if options.sram is not None or options.layerwise or options.draft or options.granularity == "pixel":
            return 1.0
        taken = self.taken(plan)
        if taken is None:
            return 1.0
        with suppress(SearchStopped):
            self.prices.least = min(self.prices.least, in_time(plan.graph, options).least)
        return max(1.0, taken / self.prices.least) if self.prices.least else 1.0  # views alone take none

    def prefers(self, plan: Plan, best: Plan) -> bool:
        """Return True if `plan` is better than `best`."""
        if self.options.sram is None:
            return self.allows(plan) and (plan.peak < best.peak or not self.allows(best))
        taken, least = self.taken(plan), self.taken(best)
        if taken is None or least is None:
            return plan.peak < best.peak
        return (taken <= WITHIN_CAP * least and plan.peak < best.peak) or WITHIN_CAP * taken < least
