"""The phases of a compilation, in order.

    load        a file becomes a Relax module                                                (`importers`)
    plan        equivalent networks are lowered, their kernels chosen, each planned; the best is kept
                                                                        (`passes.plan_network`, `passes.candidates`)
    check       the plan runs on simulated memory, and its program on random data beside the network, before anything is
                emitted                                             (`cascading.validate`, `passes.executed_plan`)
    lower       the plan becomes kernels and their driver                                    (`schedules.driver`)
    emit        both become a project for a board, or for the host                           (`emit`)

`passes.Cascade` puts the lowered code back into a Relax module for the stock VM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
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
from tvm_cascade.passes.coded_weights import coded_layers, rounded_up
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
from tvm_cascade.report.flash_points import FlashPoint, flash_remedies
from tvm_cascade.report.frontier import frontier_report
from tvm_cascade.report.left_out import left_out
from tvm_cascade.report.origin import origins
from tvm_cascade.report.placements import describe_placements
from tvm_cascade.report.suggestions import LITTLE_WORK, ends_large, in_front, large_ends, suggestions
from tvm_cascade.request import LoadRequest, PlanRequest
from tvm_cascade.results import PlanResult
from tvm_cascade.schedules.driver.lower_plan import Lowered, lower_plan
from tvm_cascade.schedules.rules.elementary import polynomials_of, with_polynomials
from tvm_cascade.schedules.rules.intrinsics import C_PRELUDE
from tvm_cascade.schedules.rules.multiply_add import joins_products, with_joined_products
from tvm_cascade.schedules.tir import PrimFunc
from tvm_cascade.schedules.tir.macs import count_macs
from tvm_cascade.schedules.tuning.code_size import code_bytes, weight_bytes
from tvm_cascade.schedules.tuning.counting import Counter
from tvm_cascade.schedules.tuning.merge_price import merge_choice
from tvm_cascade.schedules.tuning.traffic import TrafficCounter
from tvm_cascade.schedules.tuning.tune import Database
from tvm_cascade.schema.refusal import FlashRemedy
from tvm_cascade.search_monitor import SearchStopped, monitor
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
    # float inputs that are only quantized -> bytes stored, and as floats
    storable: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    file: Path | None = None  # that it was read from, as `request` says
    request: LoadRequest = field(default_factory=LoadRequest)
    removed: tuple[RemovedChannels, ...] = ()  # dead channels, by layer
    source: IRModule | None = None  # the network of the file, where `mod` has fewer channels
    whole: IRModule | None = None  # with a hop: the network of the whole window, of which `mod` is a frame
    frame: FramePlan | None = None  # with a hop: what a frame does


@dataclass(frozen=True)
class Prepared(PreparedGraph):
    """A module ready for planning: graph and kernels, and inputs and outputs under the model's names."""

    io: IoSpec = field(default_factory=lambda: IoSpec((), ()))

    @property
    def prelude(self) -> str:
        """Return the C helpers for performance schedules, joined products and small floats; "" if none is used."""
        generic = not self.core.small_floats and all(k is None or k.rule == "generic" for k in self.kernels)
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
        """Return the plan of the chosen candidate."""
        return self.candidate.plan


def load(
    model: Model,
    request: LoadRequest | None = None,
    progress: Progress = lambda _line: None,
    unrolled: bool = False,
) -> Loaded:
    """Load a model file, or take a Relax module, for planning.

    Raises the errors of `frontend.load`, which explains `unrolled`.
    `progress` gets a line for each input that could be stored integers.
    """
    request = request or LoadRequest()
    if isinstance(model, IRModule):
        if request.until or request.from_:
            raise UsageError("a module is cut as it is loaded: load(path, until=..., from_=...)")
        if request.state:
            raise UsageError("a module's states are paired as it is loaded: load(path, state=...)")
        if request.input_value:
            raise UsageError("a module's inputs are fixed as it is loaded: load(path, input_value=...)")
        if request.like:
            raise UsageError("a module's rounding is chosen as it is loaded: load(path, like=...)")
        return _sliding(_shrunk(Loaded(model, "network", request=request), progress), request)
    name = Path(model).stem
    asked = (request.stored_io, request.until, request.from_, request.state, request.stateless)
    mod = frontend.load(
        model, request.input_shapes, *asked, {f.name: f for f in request.input_value}, unrolled, request.like
    )
    progress(f"{name}: reading the graph")
    storable = {s.name: (s.bytes, prod(s.shape) * 4) for s in frontend.storable_inputs(mod)}
    for tensor, (stored, real) in storable.items():
        progress(
            f"{name}: {tensor}: a float that the network only quantizes; --stored-io takes integers, {stored} bytes for {real}"
        )
    return _sliding(_shrunk(Loaded(mod, name, storable, Path(model), request), progress), request)


def _shrunk(loaded: Loaded, progress: Progress) -> Loaded:
    """Remove dead channels, unless the request keeps such channels."""
    if not loaded.request.shrink or is_lowered(loaded.mod):
        return loaded
    mod, removed = shrink_channels(loaded.mod)
    if not removed:
        return loaded
    channels = sum(r.channels for r in removed)
    progress(
        f"{loaded.name}: channels left out as constant or unread: {channels}, in layers: {len(removed)} (--no-shrink keeps "
        "all)"
    )
    return replace(loaded, mod=mod, removed=removed, source=loaded.mod)


def shapes_by_network(
    models: Sequence[str | Path | IRModule], shapes: Mapping[str, tuple[int, ...]]
) -> list[dict[str, tuple[int, ...]]]:
    """Split shapes by network: NETWORK/NAME (see `together`) is an input of that network, any other name of the first."""
    free = UniqueNames()
    names = [free("network" if isinstance(m, IRModule) else Path(m).stem) for m in models]
    found: list[dict[str, tuple[int, ...]]] = [{} for _ in models]
    for name, shape in shapes.items():
        network, _, tensor = name.partition("/")
        several = len(models) > 1 and network in names
        found[names.index(network) if several else 0][tensor if several else name] = shape
    return found


def together(networks: Sequence[Loaded]) -> Loaded:
    """Join several networks into one, for a common schedule; inputs and outputs become NETWORK/NAME. A single network
    is returned unchanged.

    Raises `UsageError` for a network with states, `GraphError` for a module with several functions.
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
    """Replace a network by the network for one frame of new rows; return `loaded` if whole windows are asked for."""
    if request.hop is None:
        if request.hop_state is not None:
            raise UsageError("--hop-state caps what a frame keeps: give --hop too")
        if request.axis != LoadRequest().axis:
            raise UsageError(f"--axis {request.axis} is that of a window that slides: give --hop too")
        return loaded
    made = frontend.load_frame(loaded.mod, request.hop, request.hop_state, int(request.axis))
    return replace(loaded, mod=made.mod, whole=loaded.mod, frame=made.plan)


def whole_window_instructions(loaded: Loaded, request: PlanRequest, kernels: KernelSource) -> int | None:
    """Estimate the instructions of the whole window for a network loaded with a hop, planned without caps.

    Return None without a hop, or without an estimate.
    """
    if loaded.whole is None:
        return None
    whole = replace(loaded, mod=loaded.whole, whole=None, frame=None)
    asked = replace(request, sram=None, ram=None, memory=())
    planned = plan(whole, asked, kernels)
    work = planned.prepared.estimator()(planned.plan)
    return None if work is None else round(sum(w.instructions for w in work))


@contextmanager
def told_with_cut(loaded: Loaded) -> Iterator[None]:
    """Explain a `GraphError` raised in the block: add the file's name of the operator without a kernel, and the cut in
    front.
    """
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
    """Search the best plan over all candidates, with kernels from `kernels`.

    Raises `InfeasibleError` if no candidate fits the cap, `GraphError` for an operator without a kernel.
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

    `database` and `counter` go to `prepare_graph`: counts to choose kernels by, and a source of more counts.
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
    """Describe a plan as a `PlanResult`; with `whole` search the whole frontier, with `flash` estimate bytes of code.

    `flash_wait` is the cycles to read a byte from flash, beside the arithmetic.
    """
    chosen, options, name = planned.candidate, planned.options, loaded.name
    report = frontier_report(
        chosen.graph,
        options,
        chosen.plan,
        whole,
        lambda line: progress(f"{name}: {line}"),
        chosen.prices.work,
        chosen.others,
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
        not_searched=not_searched(chosen.graph, options, None if chosen.groups else chosen.plan.peak),
        origins=origins({op.name for op in chosen.graph.ops}, file_graph_of(loaded.mod)),
        suggestions=suggestions(chosen.plan, options, loaded.storable),
        frame=_frame(loaded.frame),
        removed=tuple(r.to_dict() for r in loaded.removed),
        file_macs=_file_macs(loaded, chosen),
        file_weight_bytes=file_weight_bytes(loaded.source or loaded.whole or loaded.mod),
        weights_in=_weights_in(chosen),
        ram_weight_bytes=chosen.copied.bytes,
        waits=chosen.waits,
        traffic=chosen.traffic,
        placements=describe_placements(chosen.placements, chosen.least_cycles, sum(e.cycles for e in operators), whole),
    )


def _file_macs(loaded: Loaded, chosen: PlannedCandidate) -> int:
    """Return the multiply-accumulates of the file's network: the plan's, and the removed channels'."""
    if loaded.source is not None and loaded.whole is not None:
        return _work(loaded.source, chosen.prepared.known)
    left_out = 0 if loaded.source is None else products_of(loaded.source) - products_of(loaded.mod)
    return chosen.plan.baseline_macs + left_out


def _frame(frame: FramePlan | None) -> Frame | None:
    """Describe a sliding window's frame, as in plans; None without a frame."""
    if frame is None:
        return None
    from tvm_cascade.sliding.describe import frame_record

    return frame_record(frame)


def _flash_bytes(planned: Planned) -> tuple[int, int]:
    """Return the bytes of weights and tables, and the estimated code bytes."""
    prepared = planned.prepared
    kernels = prepared.kernels_of(planned.plan)
    core = prepared.core
    return weight_bytes(kernels), code_bytes(planned.plan, kernels, core.core, merge_choice(core))


OPTIMISATIONS = ("balanced", "size", "speed")
_POINTS_OPS = 200  # operators at most of a network that is planned again for a frontier of flash
_LITTLE = 0.15  # share of instructions that coded weights add in the cheaper of the plans with such


def flash_points(
    loaded: Loaded, request: PlanRequest, core: KernelTarget, database: Database | None, known: Planned | None = None
) -> tuple[FlashPoint, ...]:
    """Plan a network with every `--optimise`, and with coded weights; return its flash and estimated cost. Skip plans that do
    not fit.

    `known` is the plan for `core`. A network of more than `_POINTS_OPS` operators is not planned again. If a limit
    (`search_monitor`) strikes, return those found so far.
    """
    found: list[FlashPoint] = []

    def add(asked: KernelTarget) -> Planned | None:
        own = known if asked == core else None
        if own is None and known is not None and len(known.plan.graph.ops) > _POINTS_OPS:
            return None
        with suppress(InfeasibleError):
            planned = own or plan(loaded, request, KernelSource(asked, database))
            work = planned.prepared.estimator()(planned.plan)
            if work is not None:
                counted = round(sum(w.instructions for w in work)), round(sum(w.cycles for w in work))
                peak = planned.plan.peak
                found.append(FlashPoint(asked.optimise, asked.code_price, *_flash_bytes(planned), peak, *counted))
                return planned
        return None

    with suppress(SearchStopped):
        small = None
        for optimise in OPTIMISATIONS:
            planned = add(replace(core, optimise=optimise, code_price=0.0))
            small = planned if optimise == "size" else small
        if core.code_price:
            add(core)
        if small is not None:
            least = min(point.instructions for point in found)
            for price in sorted(_code_prices(small.prepared, round(least * _LITTLE)) - {core.code_price}):
                add(replace(core, optimise="size", code_price=price))
    return tuple(found)


def _code_prices(prepared: PreparedGraph, instructions: int) -> set[float]:
    """Return the prices of a byte at which coded weights are worth a plan: that of the layers which add so many
    instructions together, and that of all layers.
    """
    layers = coded_layers(prepared)
    sums = accumulate(layer.instructions for layer in layers)
    cheap = [layer.price for layer, total in zip(layers, sums, strict=True) if total <= instructions]
    return {rounded_up(price) for price in (*cheap[-1:], *(layer.price for layer in layers[-1:]))}


def remedies_for_flash(
    loaded: Loaded, request: PlanRequest, core: KernelTarget, database: Database | None
) -> tuple[FlashRemedy, ...]:
    """List what takes bytes out of the flash of a network, and what that costs; empty if no plan is known."""
    points = flash_points(loaded, replace(request, weights="linked"), core, database)
    chosen = next((p for p in points if (p.optimise, p.code_weights) == (core.optimise, core.code_price)), None)
    if chosen is None or request.weights in ("file", "stream"):
        return ()
    ram = None
    if not (request.prefetch or request.ram_weights or request.memory):
        with suppress(InfeasibleError):
            planned = plan(loaded, replace(request, weights="stream"), KernelSource(core, database))
            ram = planned.plan.peak + planned.candidate.copied.bytes
    return flash_remedies(points, chosen, ram)


def _weights_in(chosen: PlannedCandidate) -> dict[str, int]:
    """Return the bytes added to a memory by copied weights, alignment included."""
    used = {use.ram.name: use.bytes for use in chosen.plan.placed}
    copied = chosen.copied
    return {copied.memory: -used[copied.memory] % ALIGN + copied.bytes} if copied.memory and copied.bytes else {}


def flash_waits(planned: Planned, cycles_per_byte: float | None) -> tuple[float, ...]:
    """Return for each operator the cycles spent waiting for flash; empty if flash costs nothing."""
    if not cycles_per_byte:
        return ()
    prepared, plan = planned.prepared, planned.plan
    moved, _ = TrafficCounter(prepared.core).count_flash(plan, prepared.kernels_of(plan))
    return tuple(float(n) * cycles_per_byte for n in moved.sum(axis=1))


def check(planned: Planned, progress: Progress = lambda _line: None) -> None:
    """Replay a plan on simulated memory, and run the program on random data beside the network, before anything is
    emitted.

    Raises `ValidationError` unless the program computes the graph. `progress` gets a line if the program cannot take
    random data.
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
    """Return the transformation applied to each kernel on lowering, or None."""
    core = prepared.core
    if not polynomials_of(core.core):
        return with_joined_products if joins_products(core) else None

    def transformed(func: PrimFunc) -> PrimFunc:
        made = with_polynomials(func, core)
        return with_joined_products(made) if joins_products(core) else made

    return transformed


def order_graph(loaded: Loaded) -> Graph:
    """Extract the graph of a model, integers lowered, as far as `order` needs it."""
    with told_with_cut(loaded):
        return extract_order_graph(lower_integers(loaded.mod))


def interface_of(mod: IRModule, graph: Graph) -> IoSpec:
    """Return names and quantization of inputs and outputs: the model's, or the graph's if the module was not loaded."""
    return io_spec(mod) if has_interface(mod) else graph_io(graph)


def file_inputs(loaded: Loaded) -> tuple[tuple[str, str], ...] | None:
    """Return names and element types of a model's inputs as in the file; None for a model not loaded from a file."""
    if not has_interface(loaded.mod):
        return None
    wide = frozenset[str]() if loaded.file is None else frontend.wide_inputs(loaded.file)
    named = ((str(spec.file_name or spec.name), str(spec.dtype)) for spec in io_spec(loaded.mod).inputs)
    return tuple((name, "int64" if name in wide else dtype) for name, dtype in named)


def output_names(mod: IRModule) -> tuple[str, ...] | None:
    """Return the names of a module's outputs as in the file; None for a module not loaded from a file."""
    return tuple(str(tensor.name) for tensor in io_spec(mod).outputs) if has_interface(mod) else None


def lower(
    prepared: PreparedGraph,
    plan: Plan,
    counted: bool = False,
    fetch: str | None = None,
    hook: str | None = None,
    segment_call: str | None = None,
    mark: str | None = None,
) -> Lowered:
    """Lower a plan to TIR functions. With `counted` use generic kernels, which run everywhere, and count their work.

    `fetch` names the C function that delivers rows of streamed inputs, `hook` a function called after every step,
    `segment_call` a function called at the start of a segment, `mark` one called before every step.
    """
    if not counted:
        kernels, transform = prepared.kernels_of(plan), _transform(prepared)
        return lower_plan(
            plan,
            kernels,
            transform=transform,
            fetch=fetch,
            hook=hook,
            segment_call=segment_call,
            mark=mark,
            choice=merge_choice(prepared.core),
        )
    return lower_plan(plan, prepared.kernels_of(plan, generic=True), transform=count_macs, counted=True)


_LESS = 0.95  # of the arena: a cut that saves less is not worth the host's work


def plan_or_suggest(
    loaded: Loaded, asked: PlanRequest, kernels: KernelSource, progress: Callable[[str], None]
) -> Planned:
    """Plan; if nothing fits the cap but a cut network does, add the cut to the refusal.

    Raises the errors of `plan`.
    """
    try:
        return plan(loaded, asked, kernels, progress)
    except InfeasibleError as error:
        end = _end_that_fits(loaded, asked, kernels, error)
        if not end:
            raise
        raise InfeasibleError(error.needed, error.available, error.culprits, f"{error.remedy}; or {end}") from None


def shorter_end(loaded: Loaded, planned: Planned, asked: PlanRequest, kernels: KernelSource) -> str:
    """Return the sentence that suggests `--until`, with the bytes of the shorter network's plan; "" if no cut helps.

    Only for a plan with the peak at the end. The file is then cut behind most work, and planned again.
    """
    plan = planned.plan
    if not _may_be_cut(loaded, asked) or not ends_large(plan):
        return ""
    names, peak = _without_end(loaded, plan.graph.macs, asked, kernels)
    return _sentence(names, f"{peak} bytes in place of {plan.peak}") if names and peak <= _LESS * plan.peak else ""


def _end_that_fits(loaded: Loaded, asked: PlanRequest, kernels: KernelSource, refused: InfeasibleError) -> str:
    """Return the sentence that suggests `--until` if no plan of the whole network fits the cap; "" if no shorter
    network fits, as where the smallest plan's peak lies in front of the end.
    """
    if not _may_be_cut(loaded, asked):
        return ""
    graph = extract_work(lower_integers(loaded.mod), kernels.analyses)
    if in_front(graph, refused.culprits) or not any(large_ends(graph, refused.available)):
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
    """Find the file's tensors behind which hardly any work is left, relative to `macs`, and the arena in bytes of the
    network that ends there.

    Return no tensors if there are none, or if the shorter network has no plan.
    """
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
    """Count the multiply-accumulates of a module returned by `frontend.load`."""
    return extract_work(lower_integers(mod), known).macs
