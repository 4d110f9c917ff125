"""Candidate: float layers not fused with their biases and activations (`passes.fuse_float_layers`).

Fused layers take a fraction of the instructions and, mostly, fewer bytes. A convolution apart writes a small ring the
bias takes over, though, and the output may then follow the input through the same memory more closely. So if no fused
layer fits the cap, the network is planned once more with operators apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_cascade.cascading import plan_graph
from tvm_cascade.passes.candidates.candidate import Best, Candidate, Network, PlannedCandidate, Proposals


@dataclass(frozen=True)
class FloatLayersApart(Candidate):
    """The network with all float layers' operators separate."""

    name = "float layers apart"
    network: Network

    def apply(self) -> PlannedCandidate:
        made = replace(self.network.kernels, fused_floats=False).prepare(self.network.lowered)
        return PlannedCandidate(made, plan_graph(made.graph, self.network.options))

    def explained(self, found: PlannedCandidate, best: Best) -> PlannedCandidate:
        return found.told(f"float layers apart, which is slower: {self.change(found.plan, best)}")


def float_layers_apart(network: Network, best: Best) -> Proposals:
    """Propose the candidate, if nothing fits the cap yet and the network has fused float layers."""
    fused = any("bounds" in op.attrs for op in network.prepared.graph.ops)
    if fused and not isinstance(best, PlannedCandidate):
        yield FloatLayersApart(network)
    return ""
