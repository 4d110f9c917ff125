"""Channels in groups (`cascading.channels`), where the work that they cost is allowed.

Which blocks, and in how many groups, is found on the graph; the module is then rewritten (`split_channels`) and planned with
its real kernels, and taken only if its arena is smaller. Under a cap groups are tried where nothing else fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvm_cascade.cascading import Plan
from tvm_cascade.cascading.channel_search import best_groups, plan_in_groups
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.passes.candidates.candidate import Best, Candidate, Network, Outcome, PlannedCandidate, Proposals
from tvm_cascade.passes.split_channels import with_channel_groups


@dataclass(frozen=True)
class ChannelGroups(Candidate):
    """The network with the channels before some projections made in groups."""

    name = "channel groups"
    network: Network
    groups: Mapping[str, int]  # by the projection that sums the channels up

    def apply(self) -> PlannedCandidate:
        graph = self.network.prepared.graph
        prepared = self.network.kernels.prepare(with_channel_groups(self.network.lowered, self.groups))
        plan = plan_in_groups(graph, prepared.graph, self.network.options)
        return PlannedCandidate(prepared, plan, groups=self.groups, plain=graph)

    def explained(self, found: PlannedCandidate, best: Best) -> PlannedCandidate:
        blocks = ", ".join(f"{name} in {count}" for name, count in self.groups.items())
        what = f"makes the wide channels before {blocks} groups, one group after the other"
        return found.told(f"{what}: {self._change(found.plan, best)}")

    def dropped(self, found: Best, best: PlannedCandidate) -> PlannedCandidate:
        if isinstance(found, InfeasibleError):
            return best
        return best.told(f"no channels were split: in groups, {self._change(found.plan, best)}")

    def _change(self, plan: Plan, best: Best) -> str:
        work = plan.macs / max(self.network.prepared.graph.macs, 1)
        return f"{self.change(plan, best)} at {work:.3f}x work"


def channel_groups(network: Network, best: Best) -> Proposals:
    """The groups that promise the smallest arena, or to fit the cap where nothing else does."""
    graph, options = network.prepared.graph, network.options
    if isinstance(best, PlannedCandidate) and options.sram is not None:
        return ""
    # groups that just fit by their bytes may not by their addresses: then those of the smallest arena
    for wanted in dict.fromkeys((options, replace(options, sram=None))):
        groups = {graph.ops[b.project].name: n for b, n in best_groups(graph, wanted).items()}
        if not groups or (yield ChannelGroups(network, groups)) is not Outcome.INFEASIBLE:
            break
    return ""
