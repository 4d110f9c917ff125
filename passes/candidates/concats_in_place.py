"""Candidate: concats turned into joins, so producers write into the output (`join_concats`): no copy, often no bytes.

First all joinable concats at once; if that makes the plan worse and there are few, each in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvm_cascade.cascading import Plan, baseline_peak, plan_graph
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.passes.candidates.candidate import Best, Candidate, Network, Outcome, PlannedCandidate, Proposals
from tvm_cascade.passes.join_concats import FEW_CONCATS, joinable, joined, listed
from tvm_cascade.passes.prices import TimeRule


@dataclass(frozen=True)
class ConcatsInPlace(Candidate):
    """The network with the concats of `joins` (from `joinable`) turned into joins, which need no kernel."""

    name = "concats in place"
    network: Network
    joins: Mapping[str, tuple[int, ...]]
    plain: Best  # the plan without joins

    def apply(self) -> PlannedCandidate:
        prepared = self.network.kernels.prices.add(joined(self.network.prepared, self.joins))
        plan = plan_graph(prepared.graph, self.network.options)
        plan = replace(plan, baseline_peak=baseline_peak(self.network.prepared.graph, self.network.options.alignment))
        return PlannedCandidate(prepared, plan, joined=tuple(self.joins))

    def beats(self, found: PlannedCandidate, best: Best, rule: TimeRule) -> bool:
        """Return True if the plan is no worse than the best so far: in arena bytes, or in work if both fit a cap."""
        if isinstance(best, InfeasibleError):
            return True
        if self.network.options.sram is None:
            return rule.allows(found.plan) and (found.plan.peak <= best.plan.peak or not rule.allows(best.plan))
        if rule.taken(found.plan) is None:
            return _kernel_calls(found.plan) <= _kernel_calls(best.plan)
        return not rule.prefers(best.plan, found.plan)

    def explained(self, found: PlannedCandidate, best: Best) -> PlannedCandidate:
        change, peak = self.change(found.plan, self.plain), found.plan.peak
        if isinstance(self.plain, PlannedCandidate) and self.plain.plan.peak == peak:
            change = f"no copies, {peak} bytes as with them"
        return found.told(f"writes the parts of {listed(tuple(self.joins))} into place: {change}")


def concats_in_place(network: Network, best: Best) -> Proposals:
    """Propose all joinable concats; if dropped, each in turn (if there are few, or the plan is layerwise)."""
    joins = joinable(network.prepared)
    if not joins or (yield ConcatsInPlace(network, joins, best)) is Outcome.KEPT:
        return ""
    kept: dict[str, tuple[int, ...]] = {}
    one_by_one = len(joins) > 1 and (network.options.layerwise or len(joins) <= FEW_CONCATS)
    for name, offsets in joins.items() if one_by_one else ():
        if (yield ConcatsInPlace(network, {**kept, name: offsets}, best)) is Outcome.KEPT:
            kept[name] = offsets
    return ""


def _kernel_calls(plan: Plan) -> int:
    return sum(len(segment.trace) for segment in plan.segments)
