"""`plan_network`: the planning pipeline from a Relax module to the best memory plan, called by every entry point.

substitute      graph substitution, if a model predicts fewer bytes
lower           quantized operators become integer operators with the arithmetic of TFLite's kernels
prepare         extract the graph, select kernels, get their scratch bytes
candidates      float layers apart, concats in place, concats in parts, channel groups, inputs spread apart: plan each,
                keep the best
"""

# TVM's nodes get their fields and operators at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial

from tvm.ir import IRModule
from tvm_ffi import structural_equal

from tvm_cascade.cascading import PlanOptions, plan_graph
from tvm_cascade.cascading.channel_search import plan_in_groups
from tvm_cascade.cascading.layerwise import smaller
from tvm_cascade.cascading.layout_search import LARGE
from tvm_cascade.cascading.state_areas import states_at_one_end
from tvm_cascade.cascading.streamed import with_inputs_by_rows
from tvm_cascade.cascading.whole_inputs import whole_inputs
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.passes.candidates.candidate import Best, KernelSource, Network, PlannedCandidate, best_candidate
from tvm_cascade.passes.candidates.channel_groups import channel_groups
from tvm_cascade.passes.candidates.concats_in_parts import concats_in_parts
from tvm_cascade.passes.candidates.concats_in_place import concats_in_place
from tvm_cascade.passes.candidates.float_layers_apart import float_layers_apart
from tvm_cascade.passes.candidates.inputs_spread import with_spread_inputs
from tvm_cascade.passes.candidates.substitutions import Substitutions, promised_rewrite, with_substitutions
from tvm_cascade.passes.candidates.time_along_rows import TimeAlongRows, with_time_along_rows
from tvm_cascade.passes.float_remains import REMAINS_ATTR
from tvm_cascade.passes.layout.one_column import to_one_column
from tvm_cascade.passes.lower_quantized import SOURCE_ATTR, Source, lowered
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.passes.prices import Prices, TimeRule
from tvm_cascade.passes.reshaped_inputs import reshaped_inputs
from tvm_cascade.passes.rewriting import Rewritten, unchanged
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.tuning.tune import Database
from tvm_cascade.search_monitor import SearchMonitor, SearchStopped, monitor

Progress = Callable[[str], None]
_SPARE = 0.005  # `PlanOptions.spare` where the request leaves the balance of bytes and time to the planner


def plan_options(
    request: PlanRequest, core: KernelTarget, addressed: bool = True, prices: Prices | None = None
) -> PlanOptions:
    """Return the planner's options: the fields shared with the request, the core's alignment and step cost model, and
    prices.

    `addressed` allows separate row addresses. `--max-time` and `--sram min` ask for the smallest arena, to the byte.
    """
    shared = {f.name for f in fields(PlanOptions)} & {f.name for f in fields(request)}
    given = {name: getattr(request, name) for name in shared}
    asked = {name: value for name, value in given.items() if value is not None or name != "max_time"}
    fixed = {"alignment": core.core.align, "steps": core.core.steps, "price": prices}
    spare = _SPARE if request.max_time is None else 0.0
    return PlanOptions(**asked, **fixed, spare=spare, row_addresses=addressed)


def plan_network(
    mod: IRModule,
    request: PlanRequest | None = None,
    core: KernelTarget | None = None,
    database: Database | None = None,
    progress: Progress = lambda _line: None,
    kernels: KernelSource | None = None,
) -> PlannedCandidate:
    """Search a module's best plan for a core.

    If `request.time_limit`, or another limit (`search_monitor`), strikes, the result is the best plan so far, and never
    larger than one operator after another.

    Parameters
    ----------
    mod : IRModule
        As imported, or lowered by `LowerQuantized`; substitutions need a lowered module as that pass returned it. Not modified.
    request : PlanRequest, optional
        Memories, cap and limits of the plan; None asks for the smallest arena at no extra multiply-accumulates.
    core, database : KernelTarget and Database, optional
        The core that runs the plan (None: the host), and the instruction counts that select kernels (None: the shipped ones).
    progress : function, optional
        Called with a single line of text per stage.
    kernels : KernelSource, optional
        Replaces `core` and `database`; can also measure or tune kernels.

    Raises
    ------
    InfeasibleError
        No candidate fits the cap.
    """
    request = request or PlanRequest()
    with SearchMonitor(request.time_limit):
        source = replace(kernels or KernelSource(core or KernelTarget(), database), prices=Prices())

        once = defaultdict[frozenset[str], _Once](_Once)  # by tensors that are staged

        def planned(
            asked: PlanRequest, addressed: bool = True, staged: frozenset[str] = frozenset()
        ) -> PlannedCandidate:
            return _plan_network(mod, asked, replace(source, staged=staged), progress, addressed, once[staged])

        if request.memory or request.ram_weights or request.prefetch or request.weights == "stream":
            from tvm_cascade.passes.place_network import placed  # most plans lie in one memory

            found = placed(request, plan_options(request, source.core), planned, progress)
        else:
            found = planned(request)
    for note in whole_inputs(found.plan) if request.stream_input else ():
        progress(note)
    plan = states_at_one_end(found.plan, source.core.core.align)
    return replace(found, plan=plan, prices=source.prices)


@dataclass(frozen=True)
class _Once:
    """Shared results of several plan requests for a network, each computed once."""

    # by id of the module, and whether kernels are measured: the module (so that the id stays its own), lowered, prepared
    modules: dict[tuple[int, bool], tuple[IRModule, IRModule, PreparedGraph]] = field(default_factory=dict)
    promises: dict[tuple[object, ...], tuple[IRModule, Rewritten]] = field(default_factory=dict)  # by id, as above
    columns: dict[int, tuple[IRModule, IRModule]] = field(default_factory=dict)  # by id: a module, in one column

    def prepared(self, mod: IRModule, kernels: KernelSource) -> tuple[IRModule, PreparedGraph]:
        """Return a lowered module, and the graph."""
        key = (id(mod), kernels == kernels.untuned)
        if key not in self.modules:
            integers = lower_integers(mod)
            self.modules[key] = (mod, integers, kernels.prepare(integers))
        return self.modules[key][1:]

    def column(self, mod: IRModule) -> IRModule:
        """Return a module with its signals in one column; `mod` itself without signals."""
        if id(mod) not in self.columns:
            self.columns[id(mod)] = mod, mod if is_lowered(mod) else reshaped_inputs(to_one_column(mod))
        return self.columns[id(mod)][1]

    def promised(self, mod: IRModule, request: PlanRequest, progress: Progress) -> Rewritten:
        """Return `promised`, cached under the relevant part of the request."""
        key = (id(mod), request.rewrite, request.layerwise, request.max_macs)
        if key not in self.promises:
            self.promises[key] = mod, promised(mod, request, progress)
        return self.promises[key][1]


def _plan_network(
    mod: IRModule, request: PlanRequest, kernels: KernelSource, progress: Progress, addressed: bool, once: _Once
) -> PlannedCandidate:
    """Run `plan_network` inside the monitor of the request's time limit."""
    options = plan_options(request, kernels.core, addressed, kernels.prices)

    def planned(mod: IRModule, kernels: KernelSource = kernels, options: PlanOptions = options) -> PlannedCandidate:
        def of_module(mod: IRModule) -> PlannedCandidate:
            integers, prepared = once.prepared(mod, kernels)
            progress(f"planning {len(prepared.graph.ops)} operators")
            graph = prepared.graph
            whole = all(graph.tensors[t].rows == 1 for t in graph.inputs) and not with_inputs_by_rows(graph)[1]
            asked = replace(options, stream_input=options.stream_input and not whole)  # of no use, and larger
            return plan_lowered(Network(integers, prepared, asked, kernels))

        source = source_of(mod) if is_lowered(mod) else mod
        rule = TimeRule(options, kernels.prices)
        found = with_spread_inputs(mod, source, lambda: source is mod or is_lowering_of(source, mod), of_module, rule)
        if found.reason:
            progress(found.reason)
        return found

    def measured(chosen: PlannedCandidate, mod: IRModule) -> PlannedCandidate:
        """Plan the best plan's network again with measured or tuned kernels, if `kernels` has any."""
        if kernels == kernels.untuned or monitor().over():
            return chosen
        found = planned(mod)
        return replace(found, kept={**found.kept, **{n: e for n, e in chosen.kept.items() if n == Substitutions.name}})

    def in_one_row() -> PlannedCandidate:
        """Plan the network with its signals as they are."""
        promise = once.promised(mod, request, progress)
        if not promise.steps:
            return replace(planned(mod), rewritten=promise if request.rewrite else None)
        # candidates are compared with kernels that need no measurements; only the winner's are measured
        chosen = with_substitutions(
            mod, promise, partial(planned, kernels=kernels.untuned), TimeRule(options, kernels.prices)
        )
        done = chosen.rewritten
        assert done is not None
        told = done if done.steps or request.rewrite else None
        if told is not None:
            progress(f"{len(done.steps)} substitutions: {done.reason}")
        return replace(measured(chosen, done.mod), rewritten=told)

    column = mod if request.layerwise or request.stream_input else once.column(mod)
    if column is mod:
        return in_one_row()

    def in_one_column(limit: float | None) -> PlannedCandidate:
        """Plan the network with its signals in one column, within the given factor of the fastest such plan."""
        work = options.max_macs if options.stripes else 1.0
        return planned(column, options=options if limit is None else replace(options, max_time=limit / work))

    try:
        row: Best = in_one_row()
    except InfeasibleError as error:
        row = error
    found = with_time_along_rows(row, in_one_column, TimeRule(options, kernels.prices))
    if TimeAlongRows.name in found.kept:
        progress(found.reason)
    return found


def promised(mod: IRModule, request: PlanRequest, progress: Progress = lambda _line: None) -> Rewritten:
    """Return the rewritten module promised by substitutions; unchanged if the request excludes substitutions.

    Substitutions rewrite a lowered module's source, provided that the module has not changed since the lowering.
    """
    if request.rewrite is False or (request.rewrite is None and request.layerwise):
        return unchanged(mod, 0, "B", "no substitutions were asked for")
    source = source_of(mod) if is_lowered(mod) else mod
    if source is None:
        return unchanged(mod, 0, "B", "integers are lowered already")
    progress("looking for an equivalent network of less memory")
    promise = promised_rewrite(source, request.max_macs, floats=bool(request.rewrite))
    if source is not mod and promise.steps and not is_lowering_of(source, mod):
        promise = unchanged(mod, 0, "B", "the network was changed after its integers were lowered")
    if not promise.steps and request.rewrite:
        progress(f"0 substitutions: {promise.reason}")
    return promise


def plan_lowered(network: Network) -> PlannedCandidate:
    """Search a network's best plan with kernels, over the candidates for its concats and channels.

    If a limit strikes, return the best plan so far, or one operator after another if smaller.

    Raises
    ------
    InfeasibleError
        No candidate fits the cap.
    """
    options = network.options
    with SearchMonitor() as own:
        found = _best_of(network)
    if own.limited and not (options.layerwise or options.stream_input):
        with monitor().shield():
            plain = _best_of(replace(network, options=replace(options, layerwise=True)))
        fits = isinstance(plain, PlannedCandidate)
        if fits and (isinstance(found, InfeasibleError) or plain.plan.peak < found.plan.peak):
            found = plain
    if isinstance(found, InfeasibleError):
        raise found
    return found


def _best_of(network: Network) -> Best:
    """Return the best of the network and its candidates, or why none fits the cap.

    For large networks, candidates are compared by draft plans, and the best is then planned in full.
    """
    options = network.options
    if len(network.prepared.graph.ops) <= LARGE or options.sram is not None or options.layerwise:
        return _best_candidate(network)
    best = _best_candidate(replace(network, options=replace(options, draft=True)))
    assert isinstance(best, PlannedCandidate)
    if monitor().over():
        return best
    graph, plan = best.prepared.graph, best.plan
    with suppress(SearchStopped):
        full = plan_in_groups(network.prepared.graph, graph, options) if best.groups else plan_graph(graph, options)
        plan = replace(smaller(full, plan), baseline_peak=plan.baseline_peak)
    return replace(best, plan=plan)


def _best_candidate(network: Network) -> Best:
    """Return the same as `_best_of`, with the network's own options for all candidates."""
    kinds = (float_layers_apart, concats_in_place, concats_in_parts, channel_groups)
    try:
        start: Best = PlannedCandidate(network.prepared, plan_graph(network.prepared.graph, network.options))
    except InfeasibleError as error:
        start = error
    try:
        return best_candidate(start, [partial(kind, network) for kind in kinds], network.rule)
    except InfeasibleError as error:
        return error


def lower_integers(mod: IRModule) -> IRModule:
    """Lower `mod` to integers; return `mod` if already lowered."""
    return mod if is_lowered(mod) else lowered(mod)


def source_of(mod: IRModule) -> IRModule | None:
    """Return a module as it was before `LowerQuantized`; None if it does not have that."""
    source: Source | None = dict(mod.attrs or {}).get(SOURCE_ATTR)
    return None if source is None else source.mod


def is_lowering_of(source: IRModule | None, mod: IRModule) -> bool:
    """Return True if `LowerQuantized` makes `mod` of `source`: nothing has changed `mod` since."""
    return source is not None and structural_equal(lowered(source), mod.without_attr(SOURCE_ATTR))


def is_lowered(mod: IRModule) -> bool:
    """Return True if `LowerQuantized` has been applied to a module."""
    main = next((f for v, f in mod.functions.items() if v.name_hint == "main"), None)
    return main is not None and REMAINS_ATTR in dict(main.attrs or {})
