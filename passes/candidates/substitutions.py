"""An equivalent network by relaxed substitutions, where its arena is smaller.

The search minimizes a model: the largest activations of an order. Where that promises fewer bytes at no more
multiply-accumulates than allowed, both networks are planned, with all other candidates, and the smaller arena wins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from tvm.ir import IRModule

from tvm_cascade.errors import InfeasibleError
from tvm_cascade.passes.candidates.candidate import (
    Best,
    Candidate,
    Exactness,
    PlannedCandidate,
    Proposals,
    best_candidate,
)
from tvm_cascade.passes.rewriting import MAIN, Rewritten, is_quantized, search_main, unchanged
from tvm_cascade.substitution import dag
from tvm_cascade.substitution.costs import PeakMemory, macs_of, peak_bytes
from tvm_cascade.substitution.pattern import Matcher
from tvm_cascade.substitution.rules import rules


@dataclass(frozen=True)
class Substitutions(Candidate):
    """A rewritten network with its own best plan."""

    name = "substitutions"
    mod: IRModule  # as it was
    promise: Rewritten  # the rewritten module, and what the model promises of it
    plan: Callable[[IRModule], PlannedCandidate]  # the best plan of a module among all other candidates

    @property
    def exactness(self) -> Exactness:
        """Quantized networks see rules alone that keep every bit."""
        return Exactness.BITS if is_quantized(self.mod) else Exactness.REASSOCIATED

    def apply(self) -> PlannedCandidate:
        return self.plan(self.promise.mod)

    def explained(self, found: PlannedCandidate, best: Best) -> PlannedCandidate:
        before, after = best.needed if isinstance(best, InfeasibleError) else best.plan.peak, found.plan.peak
        reason = f"{before - after} bytes of arena less"
        return replace(found, rewritten=replace(self.promise, before=before, after=after, reason=reason))

    def dropped(self, found: Best, best: PlannedCandidate) -> PlannedCandidate:
        why = "does not fit the cap" if isinstance(found, InfeasibleError) else f"needs {found.plan.peak} bytes"
        return replace(best, rewritten=unchanged(self.mod, best.plan.peak, "B", f"the rewritten network {why}"))


def with_substitutions(
    mod: IRModule, promise: Rewritten, plan: Callable[[IRModule], PlannedCandidate]
) -> PlannedCandidate:
    """The better of a module and the one that its substitutions promise."""
    try:
        start: Best = plan(mod)
    except InfeasibleError as error:
        start = error

    def promised(best: Best) -> Proposals:
        if promise.steps:
            yield Substitutions(mod, promise, plan)
        return ""

    return best_candidate(start, [promised])


def promised_rewrite(mod: IRModule, max_macs: float = 1.0, floats: bool = True) -> Rewritten:
    """What the search promises: a rewritten module, or `mod` and why nothing is promised. Nothing is planned.

    A network of more than `max_macs` times the multiply-accumulates is refused, and without `floats` so is any change to a
    network whose results would not keep every bit. `before` and `after` are what the model counts: bytes of the activations
    alive at once.
    """
    if not floats and not is_quantized(mod):
        return unchanged(mod, 0, "B", "the network is not quantized: substitutions would reassociate its sums")
    done = search_main(mod, PeakMemory(), inf)
    if MAIN not in done.found:
        return unchanged(mod, 0, "B", done.skipped.get(MAIN, "the module has no function main"))
    found, plain = done.found[MAIN], _without_clips(done.read[MAIN].dag)
    before, after = peak_bytes(plain), peak_bytes(found.dag)
    if after >= before:
        return unchanged(mod, before, "B", "no substitution lowers the activations alive at once")
    macs = [sum(macs_of(n) for n in graph.nodes) for graph in (plain, found.dag)]
    if macs[1] > max_macs * macs[0]:
        return unchanged(mod, before, "B", f"the rewritten network has {macs[1]} multiply-accumulates, not {macs[0]}")
    return Rewritten(done.mod, tuple(s.rule for s in found.steps), before, after, "B", "promised by the model")


def _without_clips(graph: dag.Dag) -> dag.Dag:
    """The network as `LowerQuantized` will make it anyhow: activations on stored values inside of their operators."""
    matcher = Matcher(rules("fuse_quantized_clip"))
    while sites := matcher.sites(graph):
        graph = dag.replace(graph, sites[0].target)
    return graph
