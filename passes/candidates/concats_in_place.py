"""Concats whose makers write into place (`join_concats`): they cost no copy, and often no bytes.

All that can be are, unless the plan needs more so; then one after the other, those that cost it nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_cascade.cascading import Plan, baseline_peak, plan_graph
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.passes.candidates.candidate import Best, Candidate, Network, Outcome, PlannedCandidate, Proposals
from tvm_cascade.passes.join_concats import FEW_CONCATS, joinable, joined, listed


@dataclass(frozen=True)
class ConcatsInPlace(Candidate):
    """The network with the concats of some names as joins, which no kernel runs."""

    name = "concats in place"
    network: Network
    names: tuple[str, ...]
    plain: Best  # with all concats as they are

    def apply(self) -> PlannedCandidate:
        prepared = joined(self.network.prepared, self.names)
        plan = plan_graph(prepared.graph, self.network.options)
        plan = replace(plan, baseline_peak=baseline_peak(self.network.prepared.graph))
        return PlannedCandidate(prepared, plan, joined=self.names)

    def beats(self, found: PlannedCandidate, best: Best) -> bool:
        """Whether the plan needs no more than the plain one: bytes, or kernel calls where both fit a cap."""
        if isinstance(self.plain, InfeasibleError):
            return True
        if self.network.options.sram is None:
            return found.plan.peak <= self.plain.plan.peak
        return _kernel_calls(found.plan) <= _kernel_calls(self.plain.plan)

    def explained(self, found: PlannedCandidate, best: Best) -> PlannedCandidate:
        change, peak = self.change(found.plan, self.plain), found.plan.peak
        if isinstance(self.plain, PlannedCandidate) and self.plain.plan.peak == peak:
            change = f"no copies, {peak} bytes as with them"
        return found.told(f"writes the parts of {listed(self.names)} into place: {change}")


def concats_in_place(network: Network, best: Best) -> Proposals:
    """All concats that can be written into place; where that needs more, and they are few, each in turn."""
    names = joinable(network.prepared)
    if not names or (yield ConcatsInPlace(network, names, best)) is Outcome.KEPT:
        return ""
    kept: tuple[str, ...] = ()
    one_by_one = len(names) > 1 and (network.options.layerwise or len(names) <= FEW_CONCATS)
    for name in names if one_by_one else ():
        if (yield ConcatsInPlace(network, (*kept, name), best)) is Outcome.KEPT:
            kept = (*kept, name)
    return ""


def _kernel_calls(plan: Plan) -> int:
    return sum(len(segment.trace) for segment in plan.segments)
