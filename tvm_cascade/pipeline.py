"""The phases of a compilation, in order.

    load        a file becomes a Relax module                                                (`importers`)
    plan        equivalent networks are lowered, their kernels chosen, each planned; the best is kept
                                                                        (`passes.plan_network`, `passes.candidates`)
    check       the plan runs on simulated memory, and its program on random data beside the network, before anything is
                emitted                                             (`cascading.validate`, `passes.executed_plan`)
    lower       the plan becomes kernels and their driver                                    (`schedules.driver`)
    emit        both become a project for a board, or for the host                           (`emit`)

`passes.Cascade` puts what is lowered back into a Relax module that the stock VM runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm.ir import IRModule

from tvm_cascade import frontend
from tvm_cascade.cascading import Plan, PlanOptions, not_searched, validate
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import CascadeError, GraphError, InfeasibleError, UsageError, ValidationError
from tvm_cascade.frontend import attach, has_interface, io_spec
from tvm_cascade.graph import Graph
from tvm_cascade.memory.weights import ALIGN
from tvm_cascade.passes.candidates.candidate import KernelSource, PlannedCandidate
from tvm_cascade.passes.executed_plan import NotExecutedError, check_executed
from tvm_cascade.passes.extract_graph import Analyses, extract_graph, extract_order_graph, extract_work
from tvm_cascade.passes.float_remains import products_of
from tvm_cascade.passes.join_networks import join_networks
from tvm_cascade.passes.origin import file_graph_of
from tvm_cascade.passes.plan_network import is_lowered, lower_integers, plan_network, plan_options
from tvm_cascade.passes.prepare_graph import PreparedGraph, prepare_graph
from tvm_cascade.passes.relax_functions import UniqueNames
from tvm_cascade.passes.shrink_channels import RemovedChannels, file_weight_bytes, shrink_channels
from tvm_cascade.report.estimate import with_waits
from tvm_cascade.report.frontier import frontier_report
from tvm_cascade.report.left_out import left_out
from tvm_cascade.report.origin import origins
from tvm_cascade.report.placements import describe_placements
from tvm_cascade.report.suggestions import LITTLE_WORK, ends_large, large_ends, suggestions
from tvm_cascade.request import LoadRequest, PlanRequest
from tvm_cascade.results import PlanResult
from tvm_cascade.schedules.driver.lower_plan import Lowered, lower_plan
from tvm_cascade.schedules.rules.intrinsics import C_PRELUDE
from tvm_cascade.schedules.rules.multiply_add import joins_products, with_joined_products
from tvm_cascade.schedules.tir import PrimFunc
from tvm_cascade.schedules.tir.macs import count_macs
from tvm_cascade.schedules.tuning.code_size import code_bytes, weight_bytes
from tvm_cascade.schedules.tuning.counting import Counter
from tvm_cascade.schedules.tuning.traffic import TrafficCounter
from tvm_cascade.schedules.tuning.tune import Database
from tvm_cascade.search_monitor import monitor
from tvm_cascade.tensor_spec import Cut, IoSpec, TensorSpec, graph_io

if TYPE_CHECKING:
    from tvm_cascade.schema.plan import Frame
    from tvm_cascade.sliding import FramePlan


Model = str | Path | IRModule
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Loaded:
    """A model as a Relax module."""

    mod: IRModule
    name: str  # of its file, without what follows the last dot
    storable: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # float inputs that are only quantized -> bytes stored, and as floats
    file: Path | None = None  # that it was read from, as `request` says
    request: LoadRequest = field(default_factory=LoadRequest)
    removed: tuple[RemovedChannels, ...] = ()  # dead channels, by layer
    source: IRModule | None = None  # the network of the file, where `mod` has fewer channels
    whole: IRModule | None = None  # with a hop: the network of the whole window, of which `mod` is a frame
    frame: FramePlan | None = None  # with a hop: what a frame does


@dataclass(frozen=True)
class Prepared(PreparedGraph):
    """A module ready for planning: its graph and kernels, and its inputs and outputs as the model names them."""

    io: IoSpec = field(default_factory=lambda: IoSpec((), ()))

    @property
    def prelude(self) -> str:
        """C helpers of the performance schedules and of joined products; empty where there are neither."""
        generic = all(k is None or k.rule == "generic" for k in self.kernels)
        joined = joins_products(self.core) and any(t.dtype == "float32" for t in self.graph.tensors)
        return "" if (generic and not joined) or self.core.backend != "c" else C_PRELUDE


@dataclass(frozen=True)
class Planned:
    """The plan of a network, ready to be lowered."""

    candidate: PlannedCandidate
    prepared: Prepared
    options: PlanOptions  # what the planner was asked

    @property
    def plan(self) -> Plan:
        """The plan of the candidate that was kept."""
        return self.candidate.plan


def load(model: Model, request: LoadRequest | None = None, progress: Progress = lambda _line: None) -> Loaded:
    """A model file, or a Relax module that is there already, for planning.

    Raises what `frontend.load` raises. `progress` gets a line for each input that could be stored integers.
    """
    request = request or LoadRequest()
    if isinstance(model, IRModule):
        if request.until or request.from_:
            raise UsageError("a module is cut as it is loaded: load(path, until=..., from_=...)")
        if request.state:
            raise UsageError("a module's states are paired as it is loaded: load(path, state=...)")
        if request.input_value:
            raise UsageError("a module's inputs are fixed as it is loaded: load(path, input_value=...)")
        return _sliding(_shrunk(Loaded(model, "network", request=request), progress), request)
    name = Path(model).stem
    asked = (request.stored_io, request.until, request.from_, request.state, request.stateless)
    mod = frontend.load(model, request.input_shapes, *asked, {f.name: f for f in request.input_value})
    progress(f"{name}: reading the graph")
    storable = {s.name: (s.bytes, prod(s.shape) * 4) for s in frontend.storable_inputs(mod)}
    for tensor, (stored, real) in storable.items():
        progress(
            f"{name}: {tensor}: a float that the network only quantizes; --stored-io takes integers, {stored} bytes for {real}"
        )
    return _sliding(_shrunk(Loaded(mod, name, storable, Path(model), request), progress), request)


def _shrunk(loaded: Loaded, progress: Progress) -> Loaded:
    """The network without dead channels, unless the request keeps them."""
    if not loaded.request.shrink or is_lowered(loaded.mod):
        return loaded
    mod, removed = shrink_channels(loaded.mod)
    if not removed:
        return loaded
    channels = sum(r.channels for r in removed)
    progress(
        f"{loaded.name}: {channels} channels of {len(removed)} layers are constant or unread, and left out (--no-shrink)"
    )
    return replace(loaded, mod=mod, removed=removed, source=loaded.mod)


def shapes_by_network(
    models: Sequence[str | Path | IRModule], shapes: Mapping[str, tuple[int, ...]]
) -> list[dict[str, tuple[int, ...]]]:
    """The shapes of each network's inputs: those called NETWORK/NAME, as in `together`, of that one, others of the first."""
    free = UniqueNames()
    names = [free("network" if isinstance(m, IRModule) else Path(m).stem) for m in models]
    found: list[dict[str, tuple[int, ...]]] = [{} for _ in models]
    for name, shape in shapes.items():
        network, _, tensor = name.partition("/")
        several = len(models) > 1 and network in names
        found[names.index(network) if several else 0][tensor if several else name] = shape
    return found


def together(networks: Sequence[Loaded]) -> Loaded:
    """Several networks as one, for one schedule; inputs and outputs are called NETWORK/NAME. One network is itself.

    Raises `UsageError` for a network with states, `GraphError` for a module of several functions.
    """
    if len(networks) == 1:
        return networks[0]
    free = UniqueNames()
    named = {free(n.name): n.mod for n in networks}
    mod = join_networks(named)
    if all(has_interface(m) for m in named.values()):
        held = {name: io_spec(m) for name, m in named.items()}
        for name, io in held.items():
            if io.states:
                raise UsageError(f"{name} keeps states between calls: it cannot be scheduled with others")

        def apart(side: str) -> tuple[TensorSpec, ...]:
            specs = ((name, spec) for name, io in held.items() for spec in getattr(io, side))
            return tuple(replace(spec, name=f"{name}/{spec.name}") for name, spec in specs)

        mod = attach(mod, IoSpec(apart("inputs"), apart("outputs")))
    return Loaded(mod, "_".join(named))


def _sliding(loaded: Loaded, request: LoadRequest) -> Loaded:
    """The network of a frame of new rows; `loaded` itself where whole windows are asked for."""
    if request.hop is None:
        if request.hop_state is not None:
            raise UsageError("--hop-state caps what a frame keeps: give --hop too")
        if request.axis != LoadRequest().axis:
            raise UsageError(f"--axis {request.axis} is that of a window that slides: give --hop too")
        return loaded
    made = frontend.load_frame(loaded.mod, request.hop, request.hop_state, int(request.axis))
    return replace(loaded, mod=made.mod, whole=loaded.mod, frame=made.plan)


def whole_window_instructions(loaded: Loaded, request: PlanRequest, kernels: KernelSource) -> int | None:
    """Estimated instructions of the whole window of a network that is loaded with a hop, planned alike, but without caps;
    None without a hop, and where nothing is estimated."""
    if loaded.whole is None:
        return None
    whole = replace(loaded, mod=loaded.whole, whole=None, frame=None)
    asked = replace(request, sram=None, ram=None, memory=())
    planned = plan(whole, asked, kernels)
    work = planned.prepared.estimator()(planned.plan)
    return None if work is None else round(sum(w.instructions for w in work))


@contextmanager
def told_with_cut(loaded: Loaded) -> Iterator[None]:
    """While it lasts, a `GraphError` for an operator without a kernel names it as the file does, and the cut in front of it."""
    try:
        yield
    except GraphError as error:
        checks = [partial(_succeeds, e) for e in (extract_order_graph, extract_graph)]  # the cheaper one first
        refusing = next((has for has in checks if not has(loaded.mod)), None)
        if loaded.file is None or refusing is None:
            raise
        asked = loaded.request
        remedy = frontend.cut_in_front(loaded.file, asked.input_shapes, Cut(asked.until, asked.from_), refusing)
        raise GraphError(error.reason, remedy.text or error.remedy, remedy.operators) from error


def _succeeds(extract: Callable[[IRModule], object], mod: IRModule) -> bool:
    try:
        extract(lower_integers(mod))
    except GraphError:
        return False
    return True


def plan(
    loaded: Loaded, request: PlanRequest, kernels: KernelSource, progress: Progress = lambda _line: None
) -> Planned:
    """The best plan of all candidates, with kernels chosen as `kernels` says.

    Raises `InfeasibleError` where no candidate fits the cap, `GraphError` for an operator without a kernel.
    """
    asked: dict[str, Any] = {
        "request": request,
        "kernels": kernels,
        "progress": lambda s: progress(f"{loaded.name}: {s}"),
    }
    with told_with_cut(loaded):
        search = partial(plan_network, **asked)
        source, found = frontend.planned_in_kernel_layout(loaded.mod, search, request.stream_input)
    mod = source if found.rewritten is None else found.rewritten.mod
    return Planned(found, _prepared(mod, found.prepared), plan_options(request, kernels.core, prices=found.prices))


def prepare(
    mod: IRModule, core: KernelTarget, database: Database | None = None, counter: Counter | None = None
) -> Prepared:
    """Lower a module (imported or built with Relax) to integers, extract its graph and choose kernels.

    `database` and `counter` are those of `prepare_graph`: counts to choose kernels by, and how to get more.
    """
    return _prepared(mod, prepare_graph(lower_integers(mod), core, database, counter))


def _prepared(mod: IRModule, made: PreparedGraph) -> Prepared:
    return Prepared(made.graph, made.extracted, made.kernels, made.core, interface_of(mod, made.graph))


def describe(
    planned: Planned,
    loaded: Loaded,
    started: float,
    progress: Progress,
    whole: bool,
    flash: bool = False,
    flash_wait: float | None = None,
) -> PlanResult:
    """The `PlanResult` of a plan; `whole` searches the whole frontier, `flash` estimates bytes of code.

    `flash_wait` is cycles of a byte that is read from flash, beside the arithmetic.
    """
    chosen, options, name = planned.candidate, planned.options, loaded.name
    report = frontier_report(
        chosen.graph, options, chosen.plan, whole, lambda line: progress(f"{name}: {line}"), chosen.prices.work
    )
    held = _flash_bytes(planned) if flash else None
    rewritten = chosen.rewritten
    operators = report.operators
    accesses = tuple(map(sum, chosen.waits))
    for waits in (accesses, chosen.copied.waits, flash_waits(planned, flash_wait)):
        operators = with_waits(operators, waits)
    return PlanResult(
        name,
        chosen.plan,
        report.points,
        left_out(chosen.prepared.graph, chosen.plan, options),
        time.perf_counter() - started,
        None if rewritten is None else rewritten.to_dict(),
        estimates=report.estimates,
        bounds=report.bounds,
        concats=chosen.reason,
        candidates=chosen.exactness,
        groups=chosen.groups,
        in_groups=report.in_groups,
        operators=operators,
        flash=held,
        not_searched=not_searched(chosen.graph, options),
        origins=origins({op.name for op in chosen.graph.ops}, file_graph_of(loaded.mod)),
        suggestions=suggestions(chosen.plan, options, loaded.storable),
        frame=_frame(loaded.frame),
        removed=tuple(r.to_dict() for r in loaded.removed),
        file_macs=_file_macs(loaded, chosen),
        file_weight_bytes=file_weight_bytes(loaded.source or loaded.whole or loaded.mod),
        weights_in=_weights_in(chosen),
        waits=chosen.waits,
        placements=describe_placements(chosen.placements, chosen.least_cycles, sum(e.cycles for e in operators), whole),
    )


def _file_macs(loaded: Loaded, chosen: PlannedCandidate) -> int:
    """Return the multiply-accumulates of the network of the file: those of the plan and of the channels left out."""
    if loaded.source is not None and loaded.whole is not None:
        return _work(loaded.source, chosen.prepared.known)
    left_out = 0 if loaded.source is None else products_of(loaded.source) - products_of(loaded.mod)
    return chosen.plan.baseline_macs + left_out


def _frame(frame: FramePlan | None) -> Frame | None:
    """What a frame of a sliding window does, as plans tell it."""
    if frame is None:
        return None
    from tvm_cascade.sliding.describe import frame_record

    return frame_record(frame)


def _flash_bytes(planned: Planned) -> tuple[int, int]:
    """Return bytes of weights and tables, and estimated bytes of code."""
    prepared = planned.prepared
    kernels = prepared.kernels_of(planned.plan)
    return weight_bytes(kernels), code_bytes(planned.plan, kernels, prepared.core.core)


def _weights_in(chosen: PlannedCandidate) -> dict[str, int]:
    """Bytes that copies of weights add to the memory that they lie in, with those that align them."""
    used = {use.ram.name: use.bytes for use in chosen.plan.placed}
    copied = chosen.copied
    return {copied.memory: -used[copied.memory] % ALIGN + copied.bytes} if copied.memory and copied.bytes else {}


def flash_waits(planned: Planned, cycles_per_byte: float | None) -> tuple[float, ...]:
    """By operator, the cycles that reads of what lies in flash wait there, copied or not; empty where they cost nothing."""
    if not cycles_per_byte:
        return ()
    prepared, plan = planned.prepared, planned.plan
    moved, _ = TrafficCounter(prepared.core).count_flash(plan, prepared.kernels_of(plan))
    return tuple(float(n) * cycles_per_byte for n in moved.sum(axis=1))


def check(planned: Planned, progress: Progress = lambda _line: None) -> None:
    """Replay a plan on simulated memory, and run its program on random data beside the network, before anything is emitted.

    Raises `ValidationError` unless it computes its graph. `progress` gets a line where random data may not be given to it.
    """
    prepared, plan = planned.prepared, planned.plan
    try:
        validate(plan, planned.options.alignment)
        check_executed(prepared, plan, _transform(prepared))
    except NotExecutedError as why:
        progress(f"the plan was replayed, but not run on random data: {why}")
    except ValidationError as why:
        raise ValidationError(
            f"the plan is wrong and was not compiled ({why}); this is a fault of tvm-cascade: please report it, and compile "
            "with --layerwise or other options meanwhile",
            why.operators,
        ) from why


def _transform(prepared: PreparedGraph) -> Callable[[PrimFunc], PrimFunc] | None:
    """What is done to each kernel as it is lowered."""
    return with_joined_products if joins_products(prepared.core) else None


def order_graph(loaded: Loaded) -> Graph:
    """The graph of a model, integers lowered, as far as an order of its operators depends on it."""
    with told_with_cut(loaded):
        return extract_order_graph(lower_integers(loaded.mod))


def interface_of(mod: IRModule, graph: Graph) -> IoSpec:
    """Names and quantization of inputs and outputs: the model's, or the graph's where the module was not loaded."""
    return io_spec(mod) if has_interface(mod) else graph_io(graph)


def file_inputs(loaded: Loaded) -> tuple[tuple[str, str], ...] | None:
    """Names and element types of a model's inputs as its file has them; None where it was not loaded from one."""
    if not has_interface(loaded.mod):
        return None
    wide = frozenset[str]() if loaded.file is None else frontend.wide_inputs(loaded.file)
    named = ((str(spec.file_name or spec.name), str(spec.dtype)) for spec in io_spec(loaded.mod).inputs)
    return tuple((name, "int64" if name in wide else dtype) for name, dtype in named)


def output_names(mod: IRModule) -> tuple[str, ...] | None:
    """Names of a module's outputs as its file has them; None where it was not loaded from one."""
    return tuple(str(tensor.name) for tensor in io_spec(mod).outputs) if has_interface(mod) else None


def lower(
    prepared: PreparedGraph,
    plan: Plan,
    counted: bool = False,
    fetch: str | None = None,
    hook: str | None = None,
    segment_call: str | None = None,
) -> Lowered:
    """Lower a plan to TIR functions; with `counted` by generic kernels, which run everywhere, with their work counted.

    `fetch` names the C function that delivers rows of streamed inputs, `hook` one that is called after every step,
    `segment_call` one that is called where a segment begins.
    """
    if not counted:
        kernels, transform = prepared.kernels_of(plan), _transform(prepared)
        return lower_plan(plan, kernels, transform=transform, fetch=fetch, hook=hook, segment_call=segment_call)
    return lower_plan(plan, prepared.kernels_of(plan, generic=True), transform=count_macs, counted=True)


_LESS = 0.95  # of the arena: a cut that saves less is not worth the host's work


def plan_or_suggest(
    loaded: Loaded, asked: PlanRequest, kernels: KernelSource, progress: Callable[[str], None]
) -> Planned:
    """`plan`; where nothing fits the cap but the network without its end does, the refusal says where to cut it.

    Raises what that raises.
    """
    try:
        return plan(loaded, asked, kernels, progress)
    except InfeasibleError as error:
        end = _end_that_fits(loaded, asked, kernels, error.available)
        if not end:
            raise
        raise InfeasibleError(error.needed, error.available, error.culprits, f"{error.remedy}; or {end}") from None


def shorter_end(loaded: Loaded, planned: Planned, asked: PlanRequest, kernels: KernelSource) -> str:
    """The sentence that suggests `--until`, with the bytes of the plan that it gives; empty where no cut helps.

    Without a cap only, and where the plan is largest at its end: then the file is cut behind its work, and planned again.
    """
    plan = planned.plan
    if not _may_be_cut(loaded, asked) or planned.options.sram is not None or not ends_large(plan):
        return ""
    names, peak = _without_end(loaded, plan.graph.macs, asked, kernels)
    return _sentence(names, f"{peak} bytes in place of {plan.peak}") if names and peak <= _LESS * plan.peak else ""


def _end_that_fits(loaded: Loaded, asked: PlanRequest, kernels: KernelSource, cap: int) -> str:
    """The same where no plan of the whole network fits the cap: empty where that of the shorter one does not either."""
    if not _may_be_cut(loaded, asked):
        return ""
    graph = extract_work(lower_integers(loaded.mod), kernels.analyses)
    if not any(large_ends(graph, cap)):
        return ""
    names, peak = _without_end(loaded, graph.macs, asked, kernels)
    return _sentence(names, f"{peak} bytes, which fits") if names else ""


def _may_be_cut(loaded: Loaded, asked: PlanRequest) -> bool:
    return loaded.file is not None and loaded.frame is None and not asked.layerwise and not monitor().over()


def _sentence(names: Sequence[str], arena: str) -> str:
    return (
        f"{frontend.until_option(names)}: an arena of {arena}; your program does the rest, less than "
        f"{LITTLE_WORK:.0%} of the multiply-accumulates"
    )


def _without_end(loaded: Loaded, macs: int, asked: PlanRequest, kernels: KernelSource) -> tuple[tuple[str, ...], int]:
    """The tensors of the file behind which there is hardly any of its work, `macs`, and the arena, in bytes, of the network
    that ends there; no tensors where there are none, or that network has no plan."""
    file, request = loaded.file, loaded.request
    assert file is not None
    enough = (1 - LITTLE_WORK) * macs
    try:
        names = frontend.cut_behind_work(
            file,
            request.input_shapes,
            Cut(request.until, request.from_),
            lambda mod: _work(shrink_channels(mod)[0] if request.shrink else mod, kernels.analyses) < enough,
        )
        if not names:
            return (), 0
        shorter = load(file, replace(request, until=names))
        return tuple(names), plan(shorter, asked, kernels).plan.peak
    except CascadeError:  # what is left is no network that can be planned
        return (), 0


def _work(mod: IRModule, known: Analyses) -> int:
    """Multiply-accumulates of a module as `frontend.load` returns it."""
    return extract_work(lower_integers(mod), known).macs
