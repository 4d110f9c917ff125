"""Candidate: the network rewritten by relaxed graph substitutions, kept if its arena is smaller.

The search minimizes a model, the peak bytes of live activations in the graph's order. If the result has fewer bytes and no
more multiply-accumulates than allowed, both networks are planned with all other candidates and the smaller arena wins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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
from tvm_cascade.passes.prices import TimeRule
from tvm_cascade.passes.rewriting import MAIN, Rewritten, is_quantized, search_main, unchanged
from tvm_cascade.substitution import dag
from tvm_cascade.substitution.costs import PeakMemory, macs_of, peak_bytes
from tvm_cascade.substitution.pattern import Matcher
from tvm_cascade.substitution.rules import rules


@dataclass(frozen=True)
class Substitutions(Candidate):
    """A rewritten network with a best plan."""

    name = "substitutions"
    mod: IRModule  # before substitution
    promise: Rewritten  # the rewritten module, with the bytes that the model predicts
    plan: Callable[[IRModule], PlannedCandidate]  # plans a module with all other candidates, returns the best

    @property
    def exactness(self) -> Exactness:
        """Return the exactness: quantized networks are rewritten only by bit-exact rules; floats are reassociated."""
        return Exactness.BITS if is_quantized(self.promise.mod) else Exactness.REASSOCIATED

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
    mod: IRModule, promise: Rewritten, plan: Callable[[IRModule], PlannedCandidate], rule: TimeRule
) -> PlannedCandidate:
    """Plan `mod` and the rewritten module of `promise`, if it has substitutions; returns the better plan, which tells of them."""
    try:
        start: Best = plan(mod)
    except InfeasibleError as error:
        start = error

    def promised(best: Best) -> Proposals:
        if promise.steps:
            yield Substitutions(mod, promise, plan)
        return ""

    found = best_candidate(start, [promised], rule)
    if found.rewritten is not None or not promise.steps:
        return found
    early = "a limit ended the search before the rewritten network was planned"
    return replace(found, rewritten=unchanged(mod, found.plan.peak, "B", early))


def promised_rewrite(mod: IRModule, max_macs: float = 1.0, floats: bool = True) -> Rewritten:
    """Search for substitutions that lower the modelled memory: the rewritten module, or `mod` and the reason. No planning.

    A rewritten network with more than `max_macs` times the multiply-accumulates is refused. Without `floats`, networks
    that are not quantized are not rewritten, as results would not keep every bit. `before` and `after` are the model's
    peak bytes of live activations.
    """
    if not floats and not is_quantized(mod):
        return unchanged(mod, 0, "B", "the network is not quantized: substitutions would reassociate its sums")
    done = search_main(mod, PeakMemory())
    if MAIN not in done.results:
        return unchanged(mod, 0, "B", done.skipped.get(MAIN, "the module has no function main"))
    found, plain = done.results[MAIN], _without_clips(done.read[MAIN].dag)
    before, after = peak_bytes(plain), peak_bytes(found.dag)
    if after >= before:
        return unchanged(mod, before, "B", "no substitution lowers the activations alive at once")
    macs = [sum(macs_of(n) for n in graph.nodes) for graph in (plain, found.dag)]
    if macs[1] > max_macs * macs[0]:
        return unchanged(mod, before, "B", f"the rewritten network has {macs[1]} multiply-accumulates, not {macs[0]}")
    return Rewritten(done.mod, tuple(s.rule for s in found.steps), before, after, "B", "promised by the model")


def _without_clips(graph: dag.Dag) -> dag.Dag:
    """Fuse clips of stored values into the producers, as `LowerQuantized` does without substitutions."""
    matcher, pool, moved = Matcher(rules("fuse_quantized_clip")), graph.pool, dict[dag.Ref, dag.Ref]()
    for node in graph.nodes:
        made = pool.node(node.kind, tuple(moved.get(r, r) for r in node.inputs), node.attrs, node.types).outputs
        while sites := matcher.sites_at(pool, made[0].node):
            made = (sites[0].target[made[0]],)
        moved.update(zip(node.outputs, made, strict=True))
    return dag.Dag(pool, graph.inputs, tuple(moved.get(r, r) for r in graph.outputs))
