"""Candidate: channel tiling of inverted bottlenecks (`cascading.channels`), within the allowed extra work.

The blocks and their numbers of groups are chosen on the graph. The module is then rewritten (`split_channels`), planned
with real kernels, and kept only if the arena is smaller. Under a cap this is tried only if nothing else fits.
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
    """The network with some inverted bottlenecks tiled along the intermediate's channels."""

    name = "channel groups"
    network: Network
    groups: Mapping[str, int]  # number of channel groups, by name of the bottleneck's projection

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
    """Propose the groups with the smallest estimated arena; under a cap, fitting groups if nothing else fits."""
    graph, options = network.prepared.graph, network.options
    if isinstance(best, PlannedCandidate) and options.sram is not None:
        return ""
    # groups that just fit by live bytes may not fit once addresses are assigned: then try those of the smallest arena
    for wanted in dict.fromkeys((options, replace(options, sram=None))):
        groups = {graph.ops[b.project].name: n for b, n in best_groups(graph, wanted).items()}
        if not groups or (yield ChannelGroups(network, groups)) is not Outcome.INFEASIBLE:
            break
    return ""
