"""From a Relax module and a request to the best plan of all candidates: what every door of the project calls.

substitutions, where a model promises fewer bytes
lower           integers with the arithmetic of TFLite's kernels
prepare         the graph, its kernels and their scratch
candidates      concats in place, concats in parts, channels in groups: each planned, the best kept
"""

# TVM's nodes get their fields and operators at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

from tvm.ir import IRModule

from tvm_cascade.cascading import PlanOptions, plan_graph
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.passes.candidates.candidate import Best, KernelSource, Network, PlannedCandidate, best_candidate
from tvm_cascade.passes.candidates.channel_groups import channel_groups
from tvm_cascade.passes.candidates.concats_in_parts import concats_in_parts
from tvm_cascade.passes.candidates.concats_in_place import concats_in_place
from tvm_cascade.passes.candidates.substitutions import Substitutions, promised_rewrite, with_substitutions
from tvm_cascade.passes.float_remains import REMAINS_ATTR
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.rewriting import Rewritten, unchanged
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.tuning.tune import Database

Progress = Callable[[str], None]


def plan_options(request: PlanRequest, core: KernelTarget) -> PlanOptions:
    """What the planner is asked: the request, and what follows from the core."""
    shared = {f.name for f in fields(PlanOptions)} & {f.name for f in fields(request)}
    asked = {name: getattr(request, name) for name in shared}
    return PlanOptions(**asked, alignment=core.core.align, steps=core.core.steps)


def plan_network(
    mod: IRModule,
    request: PlanRequest | None = None,
    core: KernelTarget | None = None,
    database: Database | None = None,
    progress: Progress = lambda _line: None,
    kernels: KernelSource | None = None,
) -> PlannedCandidate:
    """The best plan of a module for a core.

    Parameters
    ----------
    mod : IRModule
        As it was imported, or with its integers lowered already (`LowerQuantized`); then nothing is substituted in it.
        It stays as it is.
    request : PlanRequest, optional
        What is asked of the plan; None asks for the smallest arena at no extra multiply-accumulates.
    core : KernelTarget, optional
        What the plan is for; None is the host.
    database : Database, optional
        Counts by which kernels are chosen; None takes those that come with the package.
    kernels : KernelSource, optional
        Instead of `core` and `database`: also how kernels are measured or tuned.

    Raises
    ------
    InfeasibleError
        No candidate fits the cap.
    """
    request = request or PlanRequest()
    kernels = kernels or KernelSource(core or KernelTarget(), database)
    options = plan_options(request, kernels.core)

    def planned(mod: IRModule, kernels: KernelSource = kernels) -> PlannedCandidate:
        lowered = lower_integers(mod)
        prepared = kernels.prepare(lowered)
        progress(f"planning {len(prepared.graph.ops)} operators")
        found = plan_lowered(Network(lowered, prepared, options, kernels))
        if found.reason:
            progress(found.reason)
        return found

    def measured(chosen: PlannedCandidate, mod: IRModule) -> PlannedCandidate:
        """The network of the best plan with kernels that are measured, where any are."""
        if kernels == kernels.untuned:
            return chosen
        found = planned(mod)
        return replace(found, kept={**found.kept, **{n: e for n, e in chosen.kept.items() if n == Substitutions.name}})

    promise = promised(mod, request, progress)
    if not promise.steps:
        return replace(planned(mod), rewritten=promise if request.rewrite else None)
    # nothing is measured for a network that may lose
    chosen = with_substitutions(mod, promise, partial(planned, kernels=kernels.untuned))
    done = chosen.rewritten
    assert done is not None
    told = done if done.steps or request.rewrite else None
    if told is not None:
        progress(f"{len(done.steps)} substitutions: {done.reason}")
    return replace(measured(chosen, done.mod), rewritten=told)


def promised(mod: IRModule, request: PlanRequest, progress: Progress = lambda _line: None) -> Rewritten:
    """What substitutions promise, where they may be made."""
    if request.rewrite is False or (request.rewrite is None and request.layerwise):
        return unchanged(mod, 0, "B", "no substitutions were asked for")
    if is_lowered(mod):
        return unchanged(mod, 0, "B", "integers are lowered already")
    progress("looking for an equivalent network of less memory")
    promise = promised_rewrite(mod, request.max_macs, floats=bool(request.rewrite))
    if not promise.steps and request.rewrite:
        progress(f"0 substitutions: {promise.reason}")
    return promise


def plan_lowered(network: Network) -> PlannedCandidate:
    """The best plan of a network whose kernels are chosen, its concats and channels as the candidates have them.

    Raises
    ------
    InfeasibleError
        No candidate fits the cap.
    """
    try:
        start: Best = PlannedCandidate(network.prepared, plan_graph(network.prepared.graph, network.options))
    except InfeasibleError as error:
        start = error
    kinds = (concats_in_place, concats_in_parts, channel_groups)
    return best_candidate(start, [partial(kind, network) for kind in kinds])


def lower_integers(mod: IRModule) -> IRModule:
    """`mod` with integer operators; itself where they are already."""
    return mod if is_lowered(mod) else LowerQuantized()(mod)


def is_lowered(mod: IRModule) -> bool:
    """Whether `LowerQuantized` has been over a module."""
    main = next((f for v, f in mod.functions.items() if v.name_hint == "main"), None)
    return main is not None and REMAINS_ATTR in dict(main.attrs or {})
