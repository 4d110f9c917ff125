"""Candidate: concats fused into their consumers, which read the parts instead (`rewrite_for_memory`).

The concatenated tensor disappears, but each part has to live until its last reader. The effect on the peak depends on
order, cuts, rings and addresses, so both networks are planned. The concats are chosen on graphs, which is cheap: all
foldable concats, the concats to remove for a lower peak of the best order and, if there are few, with each left out in
turn. The best choice is then built with its real kernels, and kept only if its arena is smaller; without a cap it must
also keep to `max_time`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_cascade.cascading import PlanOptions, plan_graph
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph
from tvm_cascade.ordering.rewriting import fold_concats
from tvm_cascade.passes.candidates.candidate import (
    Best,
    Candidate,
    Network,
    PlannedCandidate,
    Proposals,
    RefusedCandidate,
)
from tvm_cascade.passes.join_concats import FEW_CONCATS, joinable, joined, listed
from tvm_cascade.passes.rewrite_for_memory import foldable, paying_concats, without_concats
from tvm_cascade.search_monitor import monitor

_NONE_READ = "no parts are read where they lie"


@dataclass(frozen=True)
class ConcatsInParts(Candidate):
    """The network with the concats in `names` fused; if `before` has joins, remaining concats are joined if possible."""

    name = "concats in parts"
    network: Network
    names: tuple[str, ...]
    before: Best
    hoped: int  # arena bytes estimated on the graph

    def apply(self) -> PlannedCandidate:
        network, options = self.network, self.network.options
        made = network.kernels.prepare(without_concats(network.lowered, self.names))
        if isinstance(self.before, PlannedCandidate):
            if self.before.joined and (rest := joinable(made)):
                made = network.kernels.prices.add(joined(made, rest))
                found = replace(self.before, prepared=made, plan=plan_graph(made.graph, options), joined=tuple(rest))
                return self._in_time(found, self.before)
            return self._in_time(PlannedCandidate(made, plan_graph(made.graph, options)), self.before)
        return PlannedCandidate(made, plan_graph(made.graph, options))

    def _in_time(self, found: PlannedCandidate, before: PlannedCandidate) -> PlannedCandidate:
        """Return `found`; refuse a plan beyond `max_time`."""
        options, rule = self.network.options, self.network.rule
        rule.factor(before.plan)
        factor = rule.factor(found.plan)
        if not rule.allows(found.plan):
            price = f"would take about {factor:.2f} times the instructions (--max-time allows {options.max_time})"
            raise RefusedCandidate(f"{_NONE_READ}: {before.plan.peak} -> {found.plan.peak} bytes {price}")
        return found

    def explained(self, found: PlannedCandidate, best: Best) -> PlannedCandidate:
        change = "else it does not fit" if isinstance(best, InfeasibleError) else self.change(found.plan, best)
        return found.told(f"reads the parts of {listed(self.names)} where they lie: {change}")

    def dropped(self, found: Best, best: PlannedCandidate) -> PlannedCandidate:
        if isinstance(found, InfeasibleError):
            return best
        return best.told(f"{_NONE_READ}: those of {listed(self.names)} would change {self.change(found.plan, best)}")


def concats_in_parts(network: Network, best: Best) -> Proposals:
    """Propose removing the concats for the smallest estimated arena; under a cap only if nothing fits yet."""
    options = network.options
    graph = network.prepared.graph if isinstance(best, InfeasibleError) else best.prepared.graph
    names = () if options.layerwise else foldable(graph)
    if not names:
        return ""
    if isinstance(best, PlannedCandidate) and options.sram is not None:
        return f"{_NONE_READ}: the network fits as it is"
    chosen, hoped = _smallest(graph, names, options)
    if isinstance(best, PlannedCandidate) and hoped >= best.plan.peak:
        return f"{_NONE_READ}: that would take {hoped} bytes, not less than {best.plan.peak}"
    yield ConcatsInParts(network, chosen, best, hoped)
    return ""


def _smallest(graph: Graph, names: tuple[str, ...], options: PlanOptions) -> tuple[tuple[str, ...], int]:
    """Find the concats to remove for the smallest arena, the fewest in a tie; return them with the arena's bytes."""
    tried: dict[tuple[str, ...], int] = {}

    def peak(chosen: tuple[str, ...]) -> int:
        if chosen not in tried:
            monitor().check()
            try:
                tried[chosen] = plan_graph(fold_concats(graph, chosen), options).peak
            except InfeasibleError as error:
                tried[chosen] = error.needed
        return tried[chosen]

    best = min((c for c in dict.fromkeys((paying_concats(graph), names)) if c), key=lambda c: (peak(c), len(c)))
    for name in best if len(best) <= FEW_CONCATS else ():
        fewer = tuple(n for n in best if n != name)
        if fewer and peak(fewer) <= peak(best):
            best = fewer
    return best, peak(best)
