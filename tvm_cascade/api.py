"""The Python API: a single function for each command, with the same options and defaults.

Most functions take `progress`, called with a text line at every step of long work.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tvm.ir import IRModule

from tvm_cascade import checks, pipeline
from tvm_cascade.comparison import compare
from tvm_cascade.cores import get_core, kernel_target
from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.frontend import load
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.pipeline import plan_or_suggest, shorter_end
from tvm_cascade.report.commands import command_of, commands_of
from tvm_cascade.request import (
    COMPILE_OPTIONS,
    PLAN_OPTIONS,
    AllocateRequest,
    CompileKeywords,
    EmitRequest,
    FrontEndKeywords,
    FrontEndRequest,
    KernelRequest,
    LoadRequest,
    OptimizeKeywords,
    OptimizeRequest,
    OrderRequest,
    PlanKeywords,
    PlanRequest,
    QuantizeKeywords,
    QuantizeRequest,
    Request,
    RunKeywords,
    RunRequest,
    StagesKeywords,
    StagesRequest,
    TimeRequest,
    ValidateKeywords,
    ValidateRequest,
    request_of,
    takes,
)
from tvm_cascade.results import CompileResult, PlanResult, SearchResult
from tvm_cascade.schedules.tuning.tune import with_shipped
from tvm_cascade.schema.searches import Layout, Optimization, Order, Stages
from tvm_cascade.search_monitor import SearchMonitor

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tvm_cascade.checking.doctor import Doctor
    from tvm_cascade.deploy.batches import Batches
    from tvm_cascade.emit.bundle import BundleResult
    from tvm_cascade.emit.front_end import FrontEnd
    from tvm_cascade.optimizing.module import Optimized
    from tvm_cascade.quantization.result import QuantizeResult
    from tvm_cascade.runs.benchmark import BenchmarkResult
    from tvm_cascade.runs.flash import FlashResult
    from tvm_cascade.runs.run_report import RunReport
    from tvm_cascade.samples.sample_set import Data
    from tvm_cascade.schema.targets import Target
    from tvm_cascade.substitution.pattern import Rule
    from tvm_cascade.validation.report import ValidationReport


Model = str | Path | IRModule
Progress = Callable[[str], None]


def silent(_text: str) -> None:
    return None


def _reading(
    input_shapes: Mapping[str, tuple[int, ...]] | None,
    until: str | Sequence[str],
    from_: str | Sequence[str],
    shrink: bool,
) -> LoadRequest:
    return LoadRequest.of({"input_shapes": input_shapes, "until": until, "from_": from_, "shrink": shrink})


def allocate(
    buffers: str | Path,
    *,
    capacity: int | str | None = None,
    output: str | Path | None = None,
    time_limit: float | None = None,
) -> Layout:
    """Give buffers with lifetimes offsets in the smallest arena.

    Parameters
    ----------
    buffers : path
        A .csv file with the columns id, lower, upper and size: a buffer is alive in the steps from `lower` to before `upper`.
    capacity : int or str, optional
        Bytes, or "64KiB": the search stops at the first layout within them; None searches the smallest arena.
    output : path, optional
        A .csv file to write, with the column offset added.
    time_limit : float, optional
        Seconds after which the search ends with the best layout so far.

    Returns
    -------
    dict
        The JSON object of `tvm-cascade allocate`: bytes of the arena, a lower bound, and whether it is proven optimal.

    Raises
    ------
    LoadError, UsageError, InfeasibleError
        The file cannot be read; a value that an option cannot have; no layout fits `capacity`.
    """
    from tvm_cascade.memory.minimalloc_csv import run

    written = checks.optional(checks.path)("output", output)
    return run(checks.path("buffers", buffers), AllocateRequest(capacity, time_limit), written)


def order(
    model: Model,
    *,
    rewrite: bool = False,
    on_chip: int | str | None = None,
    time_limit: float | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    until: str | Sequence[str] = (),
    from_: str | Sequence[str] = (),
    shrink: bool = True,
    progress: Progress = silent,
) -> Order:
    """Find the order of operators with the least peak memory (Serenity).

    Parameters
    ----------
    model : path or IRModule
        A network, or a plain graph: a .json file (`ordering.graph_file`), whose operators are told by number.
    rewrite : bool
        Convolutions may read the parts of a concat in place, so that the concat is removed, where that lowers the peak.
    on_chip : int or str, optional
        Size of an on-chip memory in bytes or as "256KiB": also count the bytes that move between it and off-chip memory.
    time_limit : float, optional
        Seconds after which the search ends with the best order so far.
    input_shapes, until, from_
        As in `load`.
    shrink : bool
        Channels of quantized layers that are constant or that nobody reads are left out.
    progress : function
        Called with a text line at every step of long work.

    Returns
    -------
    dict
        The JSON object of `tvm-cascade order`: the operators in their order, its peak, and whether it is proven optimal.

    Raises
    ------
    LoadError, UnsupportedOperatorError, UsageError
        As `plan` does.
    """
    from tvm_cascade.ordering.graph_file import is_graph_file, order_graph_file
    from tvm_cascade.ordering.report import order_report

    asked, reading = OrderRequest(rewrite, on_chip, time_limit), _reading(input_shapes, until, from_, shrink)
    if is_graph_file(model):
        return order_graph_file(model, asked, reading)
    loaded = pipeline.load(model, reading)
    graph = pipeline.order_graph(loaded)
    progress(f"{loaded.name}: ordering {len(graph.ops)} operators")
    assert not isinstance(asked.on_chip, str)
    return order_report(graph, asked.rewrite, asked.on_chip, asked.time_limit)


@takes(StagesKeywords, StagesRequest)
def stages(
    model: Model | Sequence[Model],
    *,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    until: str | Sequence[str] = (),
    from_: str | Sequence[str] = (),
    shrink: bool = True,
    state: Mapping[str, str] | None = None,
    stateless: bool = False,
    progress: Progress = silent,
    **options: Unpack[StagesKeywords],
) -> SearchResult[Stages]:
    """Find the schedule of concurrent and merged stages with the least latency (IOS).

    Parameters
    ----------
    model : path or IRModule, or a list of them
        A network, or a .json file of the IOS authors (`parallel.authors_schedule`). Of several networks, which run at the
        same time, inputs and outputs are called NETWORK/NAME.
    input_shapes, until, from_
        As in `load`; of several networks for the first, and shapes of an input NETWORK/NAME for that network.
    shrink : bool
        Channels of quantized layers that are constant or that nobody reads are left out.
    state, stateless : mapping, optional, and bool
        As in `load`; an emitted folder keeps states between runs.
    target, device : str
        "cuda" or "llvm", optionally followed by options of TVM's targets; a device description, None: the target's generic one.
    unit, variant : str
        What is scheduled as one ("op", "fused", "sepconv", "cell": `parallel.units`); what is searched (`parallel.VARIANTS`).
    batch, r, s : int, optional
        Batch size, for the analytic cost; limits on the units of a group and on the groups of a stage, 0 or None for none.
    cost : str
        "analytic", or "measured" or "learned" on this machine or on a tracker's servers.
    load, output, picture : path, optional
        Saved schedule to price instead of searching; files for the schedule and for a picture of its timeline.
    details : bool
        The text lists every group of the timeline, not only the first.
    database, time_limit, progress : path and float, optional, and function
        File that keeps measurements, of which the analytic cost takes the kernels measured on `device`; seconds after which
        the best schedule so far is taken; called with a text line at every step of long work.
    metaschedule, trials : path, int
        Folder with MetaSchedule's records of tuned kernels; candidates measured for a kernel without a record.
    cudnn : bool
        With `metaschedule`, for "cuda": cuDNN's kernels are measured too, and used wherever they take less time.
    tracker, key, parallel : str, str and int, optional
        "HOST:PORT" of TVM's RPC tracker: its servers with this key measure, at most `parallel` at a time.
    emit : path, optional
        A folder to write that runs the network by the schedule with TVM alone (`deploy.emit_folder`).
    batches : numbers or str
        With `emit`, for "llvm": the folder takes any batch up to the last, by a program for each of these, such as (1, 4, 16),
        or "1..16" for 1, 2, 4, 8 and 16. Inputs are padded; that no row changes is proven first.
    lengths : numbers or str
        With `emit`, for "llvm": the folder takes inputs of these lengths, by a program for each. A length is every size that
        the file leaves open behind the batch, but for those in `input_shapes`.
    precision : str
        "fp32", or "fp16" and "bf16": tensors between kernels are stored as float16 or bfloat16, products multiply these and
        sum up in float32; or "tf32", for cuda: tensors stay float32, products are on tensor cores.
    arch, fast_math, threads, streams, gpu, winograd : names, bool, int, int, int and int, optional
        With `emit`: GPU architectures ("sm_90") and less exact arithmetic of its machine code; threads, or streams of GPU
        number `gpu`, that share a stage; largest tiles of convolutions in Winograd's form on a processor, 0 for none.

    Returns
    -------
    SearchResult
        `to_dict()` is the JSON object of `tvm-cascade stages`, `to_text()` the same for reading; it unpacks into both.

    Raises
    ------
    LoadError, UsageError, MissingToolError
        A model or schedule cannot be read; a value that an option cannot have; a device or tool to measure with is absent.
    """
    models = [model] if isinstance(model, (str, Path, IRModule)) else list(model)
    first, *others = pipeline.shapes_by_network(models, input_shapes or {})
    kept = LoadRequest.of({"state": state, "stateless": stateless})
    own = replace(_reading(first, until, from_, shrink), state=kept.state, stateless=kept.stateless)
    readings = [own, *(_reading(shapes, (), (), shrink) for shapes in others)]
    return SearchResult(*_stages(models, readings, StagesRequest.of_all(options), progress))


def _batches(models: Sequence[Model], reading: LoadRequest, request: StagesRequest) -> Batches:
    """Load a network for each batch, or length, of the request."""
    from tvm_cascade.deploy.batches import load_batches
    from tvm_cascade.deploy.lengths import load_lengths

    kind = "batch" if request.batches else "length"
    if len(models) > 1 or isinstance(models[0], IRModule):
        raise UsageError(
            f"--{kind}{'es' if request.batches else 's'} loads a file for each {kind}: give one model file"
        )
    return (load_batches if request.batches else load_lengths)(models[0], reading, request)


def _stages(
    models: Sequence[Model], readings: Sequence[LoadRequest], request: StagesRequest, progress: Progress
) -> tuple[Stages, str]:
    """Search a stage schedule and return the JSON object and the text of `stages`."""
    from tvm_cascade.deploy.search import folder_of
    from tvm_cascade.measured import search as command
    from tvm_cascade.ordering.graph_file import is_graph_file
    from tvm_cascade.parallel.authors_schedule import stages_of_authors_file

    if is_graph_file(models[0]) and len(models) == 1:
        return stages_of_authors_file(models[0], request, readings[0])
    folder = folder_of(request, progress)
    batches = _batches(models, readings[0], request) if request.batches or request.lengths else None
    if batches is not None:
        loaded = batches.largest
    else:
        loaded = pipeline.together([pipeline.load(m, r, unrolled=True) for m, r in zip(models, readings, strict=True)])
    progress(f"{loaded.name}: scheduling")
    found: list[command.Found] = []
    with SearchMonitor(request.time_limit) as limit:
        data, text = command.stages(loaded.mod, request, progress, found.append)
    made: Stages = {**data, "limited": limit.limited}
    if folder is not None:
        smaller = None if batches is None else batches.smaller(request, progress)
        made["emitted"] = folder.write(loaded, found[-1], smaller)
        text += f"\n{_emitted(folder.path, made['emitted']['files'])}"
    return made, text


@takes(OptimizeKeywords, OptimizeRequest)
def optimize(
    model: Model,
    *,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    until: str | Sequence[str] = (),
    from_: str | Sequence[str] = (),
    shrink: bool = True,
    progress: Progress = silent,
    **options: Unpack[OptimizeKeywords],
) -> SearchResult[Optimization]:
    """Find an equivalent graph that costs less, by relaxed substitutions (MetaFlow).

    Parameters
    ----------
    model : path or IRModule
        A network.
    input_shapes, until, from_
        As in `load`.
    shrink : bool
        Channels of quantized layers that are constant or that nobody reads are left out.
    target : str
        "cuda" or "llvm", optionally followed by options of TVM's targets.
    cost : str
        "latency", "ios", "measured", "learned", "flops", "traffic", "launches", "peak", a weighted sum of them, or one with
        a limit: "latency,peak<=256KiB".
    device : str, optional
        Name of a device description; None takes the target's generic description.
    alpha, budget : float and int
        MetaFlow's relaxation: graphs of up to alpha times the least cost are expanded; graphs priced, at most, per part.
    rules : path, optional
        A file of TASO's substitutions: those that hold on random tensors are searched too.
    output, picture, emit : path, optional
        Files for the graph (.onnx, else a Relax module) and for a picture of it before and after; a folder as in `stages`,
        of the graph that was found and its schedule by the device's description.
    details : bool
        The text lists every substitution, not only the first.
    precision, arch, fast_math, threads, streams, gpu, winograd
        As in `stages`; with `emit`.
    database, time_limit, progress : path and float, optional, and function
        File that keeps measurements; seconds after which the best graph so far is taken (None: 50 where kernels are
        measured); called with a text line at every step of long work.
    tracker, key, parallel
        As in `stages`; for the costs "measured" and "learned".

    Returns
    -------
    SearchResult
        `to_dict()` is the JSON object of `tvm-cascade optimize`, `to_text()` the same for reading; it unpacks into both.

    Raises
    ------
    LoadError, UsageError, GraphError, InfeasibleError
        A file cannot be read; a value that an option cannot have; the network has control flow; no graph keeps the limit.
    """
    asked = OptimizeRequest.of_all(options)
    return SearchResult(*_optimized(model, _reading(input_shapes, until, from_, shrink), asked, progress))


def _optimized(
    model: Model, reading: LoadRequest, asked: OptimizeRequest, progress: Progress
) -> tuple[Optimization, str]:
    """Search an equivalent graph and return the JSON object and the text of `optimize`."""
    from tvm_cascade.deploy.search import folder_of
    from tvm_cascade.optimizing.module import require_exportable
    from tvm_cascade.runtime.measuring import refuse_idle_farm
    from tvm_cascade.substitution.report import LISTED, format_report, rules_report
    from tvm_cascade.substitution.rules import ALL_RULES
    from tvm_cascade.substitution.rules_taso import load_taso_rules

    refuse_idle_farm(asked)
    folder, extra = folder_of(asked, progress), None if asked.rules is None else load_taso_rules(asked.rules)
    rules = ALL_RULES if extra is None else (*ALL_RULES, *extra.rules)
    if asked.output is not None and asked.output.suffix == ".onnx":  # which is written with the file's own nodes
        reading = replace(reading, shrink=False)
    loaded = pipeline.load(model, reading, unrolled=True)
    require_exportable(loaded.mod, asked.output, loaded.file)
    progress(f"{loaded.name}: searching")
    with SearchMonitor(asked.time_limit) as limit:
        done = _searched(asked, loaded.mod, rules, loaded.file)
    made = _saved(asked, loaded, done, limit.limited)
    if extra is not None:
        made["rules"] = rules_report(extra.names, extra.refused, done.report)
    text = f"{format_report(made, None if asked.details else LISTED)}\n{_kept(asked)}"
    if folder is not None:
        made["emitted"] = folder.write(loaded, folder.scheduled(done.mod))
        text += f"\n{_emitted(folder.path, made['emitted']['files'])}"
    return made, text


def _emitted(folder: Path, files: Sequence[str]) -> str:
    """Return the lines on an emitted folder, and the command that runs the network there."""
    return f"emitted         {folder}, {len(files)} files\nnext            tvm-cascade run {shlex.quote(str(folder))}"


def _kept(asked: OptimizeRequest) -> str:
    """Return the line on the saved graph's path."""
    if asked.output is not None:
        return f"saved           {asked.output}"
    return "saved           nothing: -o FILE.onnx keeps the graph" + (
        ", beside --emit" if asked.emit is not None else ""
    )


def _searched(asked: OptimizeRequest, mod: IRModule, rules: Sequence[Rule], file: Path | None) -> Optimized:
    """Search the best graph. For an .onnx file saved as .onnx, allow no more nodes than the network has."""
    from tvm_cascade.optimizing.module import optimize_module, with_no_more_nodes
    from tvm_cascade.runtime.measuring import measuring
    from tvm_cascade.substitution.metaflow import SearchOptions

    foreign = asked.output is not None and Path(asked.output).suffix == ".onnx"
    onnx = file if file is not None and file.suffix == ".onnx" else None
    with measuring(asked) if asked.measures else nullcontext() as bench:

        def search(rules: Sequence[Rule]) -> Optimized:
            return optimize_module(
                mod, bench or asked.target, asked.cost, asked.device, options=SearchOptions(asked.alpha, asked.budget),
                rules=rules, seconds=asked.time_limit, database=asked.database,
            )  # fmt: skip

        return with_no_more_nodes(search, rules, onnx) if foreign else search(rules)


def _saved(asked: OptimizeRequest, loaded: pipeline.Loaded, done: Optimized, limited: bool) -> Optimization:
    """Write the graph and the picture before and after, as far as asked for, and return the JSON object of `optimize`."""
    from tvm_cascade.optimizing.module import save_optimized

    if asked.output is not None:
        save_optimized(done, asked.output, pipeline.output_names(loaded.mod), pipeline.file_inputs(loaded), loaded.file)
    if asked.picture is not None:
        from tvm_cascade.substitution.picture import draw

        draw(done.read.dag, done.result.dag, asked.picture)
    return {**done.report, "limited": limited}


def plan_model(model: pipeline.Model, request: Request, progress: Callable[[str], None]) -> PlanResult:
    """Plan a request and return the plan with the whole frontier; with coded weights where `--flash` needs them."""
    from tvm_cascade.boards.machines import with_core
    from tvm_cascade.compilation import within_flash
    from tvm_cascade.emit.flash_cap import FlashExceededError
    from tvm_cascade.passes.coded_weights import coded_layers

    try:
        return _plan_model(model, request, progress)
    except FlashExceededError as error:
        found = error
    target = get_core(with_core(request)[0].target)
    loaded, core = pipeline.load(model, request.load), kernel_target(target.name, target.backend)
    layers = coded_layers(pipeline.prepare(loaded.mod, core))
    return within_flash(request, layers, found, lambda coded: _plan_model(model, coded, progress), progress)


def _plan_model(model: pipeline.Model, request: Request, progress: Callable[[str], None]) -> PlanResult:
    """Plan a request and return the plan with the whole frontier."""
    from tvm_cascade.boards.machines import on_board, with_core
    from tvm_cascade.boards.room import room_of, rooms_by_core
    from tvm_cascade.emit.flash_cap import FlashExceededError, require_flash
    from tvm_cascade.report.flash_points import flash_frontier

    started, asked = time.perf_counter(), request
    request, board = with_core(asked)
    request = on_board(request, board)
    if request.plan.flash is not None and not get_core(request.target).family.links:
        raise UsageError(f"--flash caps the flash of an image, and none is linked for {request.target}: leave it out")
    core, counts = (
        kernel_target(request.target, get_core(request.target).backend, code_price=request.kernels.code_weights),
        with_shipped(request.kernels.database),
    )
    loaded, kernels = pipeline.load(model, request.load, progress), KernelSource(core, counts)
    with SearchMonitor(request.plan.time_limit) as limit:
        own = request.plan.within_ram()
        limits = own if board is None else own.within_board(board.arena_room)
        try:
            planned = plan_or_suggest(loaded, limits, kernels, progress)
        except InfeasibleError:
            if limits is own and (not own.memory or asked.plan.memory):
                raise
            # the board is too small: tell what the network needs in one memory
            limits = replace(own, memory=())
            planned = plan_or_suggest(loaded, limits, kernels, progress)
            if own.memory:
                asked = replace(asked, plan=replace(asked.plan, sram=planned.plan.peak))
        wait = limits.flash_wait
        told = pipeline.describe(planned, loaded, started, progress, whole=True, flash=True, flash_wait=wait)
        told = replace(told, storage=request.plan.weights)
        if get_core(request.target).family.links and not limits.memory and limits.weights != "stream":
            known = limits, core, counts, planned
            told = replace(told, flash_planner=lambda: flash_frontier(pipeline.flash_points(loaded, *known)))
        end = shorter_end(loaded, planned, limits, kernels) if own.sram is None else ""
        instructions = pipeline.whole_window_instructions(loaded, request.plan, kernels)
    need = told.need
    if need is not None:
        cap = None if request.plan.flash is None else int(request.plan.flash)
        try:
            require_flash(need.constants, cap, need.constants, told.plan.graph.ops)
        except FlashExceededError as error:
            remedies = pipeline.remedies_for_flash(loaded, limits, core, counts)
            small = [one["saved_bytes"] for one in remedies if one["option"].startswith("--optimise")]
            if need.flash - max(small, default=0) > error.available:
                raise error.with_remedies(remedies) from None
        if cap is not None and need.flash > cap:
            likely = f"flash: probably not within --flash, {need.flash} of {cap} bytes by the estimate of code; `compile` links"
            told = replace(told, suggestions=(*told.suggestions, likely))
    if told.frame is not None and instructions is not None:
        told = replace(told, frame={**told.frame, "whole_estimated_instructions": instructions})
    if end:
        told = replace(told, suggestions=(*told.suggestions, end))
    return replace(
        told,
        limited=limit.limited,
        commands=commands_of(model, asked, told.frontier, told.peak_bytes),
        command=command_of(model, asked),
        next_step=command_of(model, asked, Path("firmware")),
        clock=request.time.clock,
        watts=request.time.watts,
        file="" if isinstance(model, IRModule) else str(model),
        core=request.target,
        room=None if board is None else room_of(board, bool(told.plan.placed)),
        rooms=rooms_by_core(get_core(request.target)),
    )


@takes(RunKeywords, RunRequest)
def run(
    directory: str | Path,
    *,
    inputs: str | Path | Mapping[str, np.ndarray] | None = None,
    progress: Progress = silent,
    **options: Unpack[RunKeywords],
) -> RunReport:
    """Run a compiled project or bundle on an emulated board, a real board or this machine, and measure the run.

    Parameters
    ----------
    directory : path
        A folder that `compile` or `bundle` wrote; one that `stages` emitted is run by `benchmark`.
    board : str, optional
        Name or .json of another board than the folder was compiled for; "host" runs the network in this process.
    inputs : path of an .npz, or arrays by name, optional
        In the model's own types and layouts; None draws random ones from a fixed seed.
    frames : path of an .npz, optional
        Inputs for a sequence of calls from a clear state: the first axis counts the calls, a batch of 1 may be left out.
    outputs : path, optional
        An .npz file to write the outputs to.
    check : path, optional
        A model file; its reference kernels run on the same inputs, and the outputs are compared.
    port : str, optional
        Serial port of a real board to run on, to which `flash` has written the project; "auto" is the one that is plugged in.
    timeout : float, optional
        Seconds: limit on the emulation, 600 by default, or on the wait for an answer of the board at `port`, 60 by default.
    by_layer : bool
        Compare every tensor of the network with the reference of `check` too, in a program that keeps all of them.
    progress : function
        Called with a text line at every step of long work.

    Returns
    -------
    RunReport
        The outputs by name, what was measured, and whether the outputs are the expected ones (`ok`).

    Raises
    ------
    UsageError
        A value that an option cannot have, or an array of another shape or type than the network's input.
    LoadError, MissingToolError, ToolError
        The folder or a file cannot be read; the emulator is not installed, or fails.
    """
    from tvm_cascade.runs.run_image import run_image
    from tvm_cascade.validation.run_by_layer import check_layers, require_own_model

    folder, asked = checks.path("directory", directory), RunRequest.of_all(options)
    if asked.by_layer:
        require_own_model(folder, asked)
    report = run_image(folder, asked, inputs, progress)
    return replace(report, layers=check_layers(folder, asked, inputs, compile, progress)) if asked.by_layer else report


def benchmark(
    directory: str | Path,
    *,
    inputs: str | Path | Mapping[str, np.ndarray] | None = None,
    repeat: int = 20,
    board: str | None = None,
    port: str | None = None,
    check: str | Path | None = None,
    outputs: str | Path | None = None,
    csv: str | Path | None = None,
    against: str | Path | None = None,
    by_layer: bool = False,
    trace: str | Path | None = None,
    progress: Progress = silent,
) -> BenchmarkResult:
    """Measure runs of an emitted program: milliseconds here or on a real board, instructions on an emulated board.

    Parameters
    ----------
    directory : path
        A folder that `stages` or `optimize` emitted, or that `compile` wrote.
    inputs : path of an .npz, or arrays by name, optional
        None draws random ones from a fixed seed.
    repeat : int
        Runs that are timed. In an emulator one is counted, as all take the same instructions.
    board : str, optional
        Another board for a compiled project.
    port : str, optional
        Serial port of a real board to time, to which `flash` has written the project; "auto" is the one that is plugged in.
    check : path, optional
        The model's file: outputs are compared with its reference. For stages they may differ by 1e-2 of the largest value.
    outputs : path, optional
        An .npz file to write the outputs to.
    csv : path, optional
        A file for the value of every run; with `by_layer` of every layer.
    against : path, optional
        What `benchmark --json` printed of another program.
    by_layer : bool
        Measure every layer, too: the same C with a reading around every kernel call; of a folder of stages every kernel.
    trace : path, optional
        A file for the layers as events of Chrome's trace viewer and Perfetto; implies `by_layer`.
    progress : function
        Called with a text line at every step of long work.

    Returns
    -------
    BenchmarkResult
        Median and quartiles, and whether the outputs are the reference's (`ok`).

    Raises
    ------
    UsageError
        Inputs that the network does not take; a board that counts nothing; a project for another machine.
    LoadError, MissingToolError, ToolError
        A folder or a file cannot be read; gcc or the emulator is missing, or fails.
    """
    from tvm_cascade.runs.benchmark import benchmark as measured
    from tvm_cascade.runs.benchmark import write_csv
    from tvm_cascade.runs.layer_times import write_trace

    path = checks.optional(checks.path)
    asked = RunRequest.of_all(
        {"board": board, "port": port, "check": path("check", check), "outputs": path("outputs", outputs)}
    )
    folder, count = checks.path("directory", directory), checks.whole(1, 1_000_000)("repeat", repeat)
    by_layer = checks.flag("by_layer", by_layer) or trace is not None
    result = measured(folder, asked, inputs, count, path("against", against), progress, by_layer)
    if trace is not None:
        write_trace(result.layers, result.unit, checks.path("trace", trace))
    if csv is not None:
        write_csv(result, checks.path("csv", csv))
    return result


def export(
    directory: str | Path,
    *,
    kind: str,
    output: str | Path,
    front_end: str | Path | None = None,
    self_test: bool = True,
    inputs: str | Path | None = None,
    check: str | Path | None = None,
    labels: str | Path | Sequence[str] | None = None,
    progress: Progress = silent,
) -> tuple[str, ...]:
    """Write the compiled project or bundle in `directory` as a package for another build system.

    Parameters
    ----------
    directory : path
        A folder that `compile` or `bundle` wrote.
    kind : str
        "arduino" or "platformio" for a library, "cmsis-pack", "esp-idf" for a component, "rust" for two crates without
        std, "stm32cube" for a folder of STM32CubeIDE projects, "zephyr" for a module.
    output : path
        A new folder.
    front_end : path, optional
        A folder that `front-end` wrote: its C goes with the network's, and the example from sound to outputs.
    self_test : bool
        Let the example run one input on the device and compare the outputs. Networks that ask for their inputs row by row
        have none, nor do examples with a front end.
    inputs : path, optional
        An .npz with the input of the self-test, one array per input. None: a random one, which takes at most 4 KiB.
    check : path, optional
        The model's file: the outputs of the self-test are compared with its reference kernels.
    labels : path or sequence of str, optional
        Names of the classes, one a line: the example prints the name with the largest score.
    progress : callable
        Called with a text line now and then.

    Returns
    -------
    tuple of str
        The files of the package, relative to `output`.

    Raises
    ------
    UsageError, LoadError, MissingToolError
        An unknown `kind`, an `output` that is not empty, or a project that the package cannot hold; `directory` is no
        compiled project; the target's binutils are not installed.
    """
    from tvm_cascade.emit.export import export_folder, read_labels
    from tvm_cascade.emit.packages import KINDS
    from tvm_cascade.runs.golden import golden_of

    checks.choice(*KINDS)("as", kind)
    path = checks.optional(checks.path)
    folder, heard = checks.path("directory", directory), path("front_end", front_end)
    checks.flag("self_test", self_test)
    given, model = path("inputs", inputs), path("check", check)
    names = read_labels(path("labels", labels)) if isinstance(labels, (str, Path)) else tuple(labels or ())
    tested = golden_of(folder, given, model, progress) if self_test and heard is None and kind != "rust" else {}
    return export_folder(folder, kind, checks.path("output", output), heard, tested, names)


def bundle(
    directories: Sequence[str | Path], *, output: str | Path, board: str | None = None, keep_states: bool = False
) -> BundleResult:
    """Write and build an image with several compiled networks, which share a single arena, in the new folder `output`.

    Parameters
    ----------
    directories : paths
        At least two folders that `compile` wrote, for a single target and with different names.
    output : path
        A new folder.
    board : str, optional
        Name or .json; None takes the first network's board.
    keep_states : bool
        Give states memory beside the arena, where they survive runs of the others; without it networks with states are refused.

    Returns
    -------
    BundleResult
        Bytes: shared arena, RAM and flash; and the path of the image.

    Raises
    ------
    UsageError, LoadError, MissingToolError, ToolError
        The networks cannot share an image, `output` is not empty, a folder is no project; the compiler is missing, or it fails.
    """
    folders, folder = [checks.path("directories", d) for d in directories], checks.path("output", output)
    on, kept = checks.optional(checks.name_or_path)("board", board), checks.flag("keep_states", keep_states)
    from tvm_cascade.emit.bundle import make_bundle

    return make_bundle(folders, folder, on, kept)


def flash(
    directory: str | Path,
    *,
    board: str | None = None,
    kind: str = "serial",
    tool: str | None = None,
    probe: str | None = None,
) -> FlashResult:
    """Write the project in `directory` to the board that is plugged in.

    Parameters
    ----------
    directory : path
        A folder that `compile` or `bundle` wrote.
    board : str, optional
        Name or .json; None takes the board that it was compiled for.
    kind : str
        The program to write: "serial", which answers `run` with `port`, or "application", main.c as you have written it.
    tool : str, optional
        "pyocd", "openocd" or "st-flash"; None takes the first of them that knows the board and is installed.
    probe : str, optional
        Serial number of the debug probe, where several are plugged in.

    Returns
    -------
    FlashResult
        The image that was written, the tool and its command line.

    Raises
    ------
    UsageError, LoadError, MissingToolError, ToolError
        No tool writes this board, or a value that an option cannot have; `directory` is no project; no such tool, or no
        cross compiler, is installed; the tool fails, as where no board is plugged in.
    """
    on = checks.optional(checks.name_or_path)("board", board)
    from tvm_cascade.runs.flash import flash_folder

    return flash_folder(checks.path("directory", directory), on, kind, tool, probe)


@takes(FrontEndKeywords, FrontEndRequest)
def front_end(*, output: str | Path, **options: Unpack[FrontEndKeywords]) -> FrontEnd:
    """Write an audio front end as C: int16 sound in, rows of log-mel features out, all in integers.

    The arithmetic equals TensorFlow Lite Micro's front end bit for bit; the defaults are micro_speech's.

    Parameters
    ----------
    output : path
        A new folder.
    name : str
        Of the C files, and what their symbols begin with.
    sample_rate, window_ms, step_ms, channels : int
        Samples of the sound in a second; milliseconds of sound that a row of features looks at, and from one row to the
        next; features of a row.
    low_hz, high_hz : float
        Where the first filter begins, and where the last one ends.
    smoothing_bits, even_smoothing, odd_smoothing : int, float and float
        The noise estimate: its additional bits, and the share of a row that it takes in, for even and odd channels.
    least_signal : float
        Share of a channel that is left when its noise is taken off.
    gain, gain_strength, gain_offset, gain_bits : bool, float, float and int
        Whether channels are divided by a power of their noise (PCAN); that power; what is added to the noise before; the
        fraction bits of the quotient.
    log, log_shift, span : bool, int and int
        Whether logarithms are taken, with how many fraction bits; features from 0 to `span` are spread over int8.

    Returns
    -------
    FrontEnd
        The files' texts, and their bytes in RAM and in tables.

    Raises
    ------
    UsageError
        A value that an option cannot have, values that make no front end, or an `output` that is not empty.
    """
    from tvm_cascade.emit.front_end import write_front_end

    return write_front_end(FrontEndRequest.of_all(options), checks.path("output", output))


def targets() -> list[Target]:
    """List the names accepted by `target`: cores, then microcontrollers and boards.

    Returns
    -------
    list of dict
        For each its name, core, clock in Hz, memories in bytes, and the documents with these figures: the JSON object of
        `tvm-cascade targets`.
    """
    from tvm_cascade.boards.target_table import targets as known

    return known()


def doctor(model: str | Path | None = None, *, measure: bool = False, progress: Progress = silent) -> Doctor:
    """Check the installation, and name the operators in `model` that cannot be compiled or stay float.

    Parameters
    ----------
    model : path, optional
        A `.tflite`, `.onnx` or `.pt2` file.
    measure : bool
        This machine's CPU is measured, in about 20 seconds, and its description kept in the user's cache folder: `stages`,
        `optimize` and the pipeline price by it from then on.
    progress : function
        Called with a text line at every step of the measurement.

    Returns
    -------
    Doctor
        Every check with what it found; `ok` says whether nothing that is required is missing, `to_text()` prints it.

    Raises
    ------
    LoadError, GraphError
        The model cannot be read (unknown operators are no error); it cannot be planned.
    ToolError, UsageError
        The CPU cannot be measured; its description cannot be kept.
    """
    from tvm_cascade.checking.doctor import diagnose

    if measure:
        from tvm_cascade.measured.measure_processor import measure as measure_cpu

        measure_cpu(progress)
    return diagnose(model)


__all__ = [
    "BundleResult", "CompileResult", "PlanResult", "QuantizeResult", "RunReport", "SearchResult", "ValidationReport",
    "allocate", "benchmark", "bundle", "compare", "compile", "doctor", "export", "flash", "front_end", "load", "optimize",
    "order", "plan", "quantize", "run", "stages", "targets", "validate",
]  # fmt: skip

_RESULTS = {"BundleResult": "tvm_cascade.emit.bundle", "RunReport": "tvm_cascade.runs.run_report",
            "QuantizeResult": "tvm_cascade.quantization.result", "ValidationReport": "tvm_cascade.validation.report"}  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a class of results at first use: planning needs none, and their modules import `runs`."""
    if name in _RESULTS:
        return getattr(import_module(_RESULTS[name]), name)
    raise AttributeError(f"module 'tvm_cascade.api' has no attribute '{name}'")


@takes(PlanKeywords, LoadRequest, PlanRequest, TimeRequest, KernelRequest)
def plan(
    model: Model, *, target: str = "cortex-m4", progress: Progress = silent, **options: Unpack[PlanKeywords]
) -> PlanResult:
    """Plan `model` (a file or a Relax module) without writing anything.

    Parameters
    ----------
    model : path or IRModule
        A `.tflite`, `.onnx` or `.pt2` file, or a module as `load` returns it.
    target : str
        The core whose alignment and kernels (their scratch) are planned for, as in `compile` for the same target; or a
        microcontroller or board by name, with its core, memories and clock (`tvm-cascade targets`).
    sram : int or str, optional
        Cap on the arena, in bytes or as "64KiB": the smallest arena that takes at most 1.03 times the instructions of the
        fastest plan within it. None: the RAM of a board that is named; else the smallest arena without recomputation, within
        `max_time`.
    ram : int or str, optional
        Cap on all RAM of the linked image: arena, stack, data and bss. `plan` takes 256 bytes for what is not the arena.
    flash : int or str, optional
        Cap on the flash of the linked image: code, weights and tables. Kernels are made small where the usual code exceeds
        it; `plan`, which links nothing, refuses weights and tables that exceed it alone.
    max_macs, max_time : float
        Limits on the plan: its multiply-accumulates, as a factor of the network's; without a cap its estimated instructions,
        as a factor of those of the fastest plan (None: 1.2; with it a named board's RAM is no cap).
    stream_input, layerwise, overlap : bool
        Inputs arrive row by row; operators run one after the other; outputs may share bytes with dying inputs.
    granularity : str
        What rolling buffers count: "row", "pixel" or "auto".
    input_shapes, state : mappings, optional
        Shapes by the inputs that the file leaves open; outputs by the inputs that take, in every call, what they returned last.
    input_value : mapping, optional
        Values by the inputs that have one in every call: numbers, arrays or paths of `.npy` files, folded into the network.
    until, from_ : name or names, optional
        Tensors of the file at which the network ends, and at which it begins: operators outside are not looked at.
    hop, axis, hop_state : int, str or int, and int or str, optional
        The window slides by `hop` rows along "time", axis 1, or another by its number; a frame keeps at most `hop_state` bytes.
    stored_io, stateless : bool
        Inputs and outputs are stored integers, where the file has floats; recurrent layers of `.tflite` begin every call anew.
    like : "tflm", optional
        Fully connected layers of a `.tflite` file are rounded twice, as in TensorFlow Lite Micro; LiteRT rounds them once.
    shrink : bool
        Channels of quantized layers that are constant or that nobody reads are left out; every output keeps every bit.
    database : path, optional
        File with instruction counts of kernels (`compile` with `tune` writes one), beside those that come with the package.
    rewrite : bool, optional
        Search for an equivalent network whose arena is smaller (substitutions for memory). None searches quantized networks,
        where every bit stays as it is; True float networks too, whose sums are then added in another order; False none.
    time_limit, progress : float, optional, and function
        Seconds after which searches end with the best plan so far (`limited`), None: results do not depend on the machine;
        called with a text line at every step of long work.
    memory, objective : str or Ram, or several, optional, and str
        Memories that blocks may lie in, fastest first ("NAME=SIZE[:CYCLES_PER_BYTE]", or "NAME" of the machine's); the
        fewest bytes ("bytes"), or those of a plan of at most 1.03 times the fewest cycles ("time"). None, and no cap: those
        of the machine that `target` names, where it has several.
    clock, watts : int or str, optional, and float, optional
        Hz of the core, or "168MHz", and what it draws then: time and energy are told too. None: those of the machine.
    ram_weights, prefetch : int or str
        Bytes of weights at most that are copied into RAM: by the first run; layer by layer, while the layer before computes.
    flash_wait : float, optional
        Cycles for a byte read from flash, beside the arithmetic. None: the machine's, or none.
    code_weights : float
        Instructions at most that a byte of flash may cost which coded weights save; 0 codes none, and `flash` finds it.
    weights : str
        Where they are stored: "linked" into the image, in a "section" of their own, in a "file" that the program binds by
        pointer, or in that file and read layer by layer into two buffers in RAM ("stream").

    Returns
    -------
    PlanResult
        The arena's bytes, its lower bound, every block in it, and the other plans; `to_text()` prints it.

    Raises
    ------
    InfeasibleError, LoadError, UnsupportedOperatorError, UsageError
        No plan fits the cap; the model cannot be read; an unknown option, or a value that an option cannot have.
    """
    return plan_model(model, request_of(target, options, PLAN_OPTIONS), progress)


@takes(CompileKeywords, LoadRequest, PlanRequest, TimeRequest, KernelRequest, EmitRequest)
def compile(
    model: Model, *, target: str, output: str | Path, progress: Progress = silent, **options: Unpack[CompileKeywords]
) -> CompileResult:
    """Plan `model` and write a project for `target` into the folder `output`, complete or not at all.

    Parameters
    ----------
    model, target : path or IRModule, and str
        As in `plan`; the target "host" makes a program for this machine.
    output : path
        The folder of the project. In one that was compiled before, files that the user edited or added are kept.
    board : str, optional
        A board's name, or the path of its .json; None takes the target's board.
    emit, optimise : str, optional, and str
        Kernels as C99 ("c") or as an LLVM object ("obj"), None: the better for the target; made for "size", "speed" or
        "balanced".
    require : str or sequence of str, optional
        "optimized" refuses a network where a layer with multiply-accumulates has the generic kernel, "no-heap" an image with
        functions of a heap, "no-float" an image that computes on floats.
    name : str, optional
        The network's name in files and functions; None takes the model file's name.
    link : bool
        Link the image; False writes the project alone, for an IDE that has its own compiler.
    hook : bool
        The network calls a function of the application after every step (declared in its header).
    tune : bool
        Count the instructions of kernels without counts in the board's emulator, and add them to `database`.
    metaschedule, trials : path, optional, and int
        For the host: folder with MetaSchedule's records, and how many candidates it measures for a row kernel without one.
    report : path, optional
        An .html file, or a folder, for a report of the plan with its whole frontier.
    cache : bool
        What was compiled before is taken from `cache.cache_folder()`, what is compiled is kept there.
    progress, options
        As in `plan`.

    Returns
    -------
    CompileResult
        What `plan` returns, the files written, and the bytes of RAM and flash of the linked image.

    Raises
    ------
    InfeasibleError, MissingToolError, and as in `plan`
        No plan fits the cap, or the linked image exceeds the memory of its board; the cross compiler is not installed, and
        a cap or a board is to be checked.
    """
    from tvm_cascade import compilation
    from tvm_cascade.boards.machines import on_board, with_core

    started, folder = time.perf_counter(), checks.path("output", output)
    asked = request_of(target, options, COMPILE_OPTIONS)
    compilation.require_free(folder)
    request = with_core(asked)[0]
    build = compilation.build_options(request)
    request = on_board(request, build.board)
    made, written = compilation.project(model, folder, request, build, progress)
    build.cache.trim()
    result = compilation.describe_project(made.told, request, folder, build, written, time.perf_counter() - started)
    result = compilation.told_with_board(result, model, asked, build.board)
    if request.emit.report is not None:
        _write_report(result, model, asked)
    return result


def _write_report(result: CompileResult, model: Model, request: Request) -> None:
    """Write a project's report, with the commands for the rest of the frontier."""
    assert request.emit.report is not None
    commands = commands_of(model, request, result.frontier, result.peak_bytes, result.folder)
    replace(result, commands=commands).write_report(request.emit.report)


@takes(ValidateKeywords, ValidateRequest, LoadRequest, PlanRequest, KernelRequest)
def validate(
    model: str | Path,
    *,
    data: Data,
    target: str | None = None,
    board: str | None = None,
    progress: Progress = silent,
    **options: Unpack[ValidateKeywords],
) -> ValidationReport:
    """Compile `model` and run every sample of `data` through the program and through the model's reference.

    Parameters
    ----------
    model : path
        A `.tflite`, `.onnx` or `.pt2` file.
    data : path, or arrays by name
        An .npz or arrays: one per input under the input's name, samples along the first axis and the input's shape without
        its batch of 1 behind; `labels`, optional, are the numbers of the samples' classes. Arrays in the type that the
        input stores are taken as they are, others are real values, which the input's scale quantizes. Or a folder of
        images or .wav files in folders by class (`samples.files`).
    target : str, optional
        The target to compile for; None takes the host, or with `board` its core.
    board : str, optional
        An emulated board to run on, by name or .json; None runs in this process.
    port : str, optional
        A serial port with the real `board` behind it, to which the project that `compile` makes with the same options has
        been flashed; "auto" is the one that is plugged in.
    range_ : pair of float, optional
        For images and sounds: the real values of black and white, of all channels or a sequence of pairs with those of each, or
        of the least and the greatest amplitude.
    timeout : float
        Seconds that a board has for a sample; 60 by default.
    by_layer : path or "own", optional
        The float file that a quantized file was made from; "own" for `.tflite` and `.pt2`, compared with their own weights
        in floats. Tells the error of every quantized tensor.
    progress, options
        As in `plan`, but for `clock` and `watts`.

    Returns
    -------
    ValidationReport
        The accuracies of program and reference, the differences between their outputs, and the confusion matrix.

    Raises
    ------
    UsageError
        Data that does not fit the network or itself, and as in `compile`.
    InfeasibleError, LoadError, MissingToolError, ToolError, UnsupportedOperatorError
        As in `compile` and `run`; the reference or Pillow is not installed.
    """
    own = ("port", "range_", "timeout", "by_layer")
    planning = {key: value for key, value in options.items() if key not in own}
    asked = ValidateRequest.of({**options, "target": target, "board": board})
    from tvm_cascade.validation.validate_model import validate_model

    return validate_model(checks.path("model", model), data, asked, planning, compile, progress)


@takes(QuantizeKeywords, QuantizeRequest)
def quantize(
    model: str | Path,
    *,
    data: Data,
    output: str | Path,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    progress: Progress = silent,
    **options: Unpack[QuantizeKeywords],
) -> QuantizeResult:
    """Write an int8 network for a float `.onnx` (ONNX Runtime's static quantizer, QDQ), `.tflite` (ai-edge-quantizer) or `.pt2`
    (torchao's PT2E).

    Activations are int8 with a zero point, weights int8 without, by channel. Sizes that the file leaves open are fixed.

    Parameters
    ----------
    model : path
        A float `.tflite`, `.onnx` or `.pt2` file.
    data : path, or arrays by name
        Samples to calibrate on, a few hundred of every kind that occurs, as in `validate`; labels are read for accuracies.
    output : path
        The file to write, of the same suffix.
    input_shapes, progress
        As in `plan`.
    calibration : str
        How an activation's range follows from its values: "minmax" takes all values, "percentile" leaves out the
        most extreme, "entropy" leaves out what costs the distribution least; of `.pt2` files "minmax" or "histogram", which
        leaves out what makes the squared error least; of `.tflite` files "minmax".
    percentile : float
        With "percentile": per cent of the values that a range holds.
    float_first, float_last : int
        Layers with weights that stay float, counted from the first and from the last on. Not for `.pt2`.
    weight_bits, max_drop : int and float
        With 4 weights have four bits, except in layers where the data says that more than `max_drop` percentage points would be
        lost: of the accuracy on labelled data, else of the agreement with the float network.
    range_ : pair of float, optional
        As in `validate`.

    Returns
    -------
    QuantizeResult
        The file written, how many layers became int8, and which operators stay float.

    Raises
    ------
    UsageError
        Data that does not fit the network or itself, or a network that is quantized already.
    LoadError, MissingToolError, UnsupportedOperatorError
        The model cannot be read or quantized; onnxruntime, ai-edge-quantizer or torchao is not installed.
    """
    asked = QuantizeRequest.of_all({"output": output, **options})
    shapes = LoadRequest(input_shapes=input_shapes).input_shapes or {}
    from tvm_cascade.quantization.quantize_model import quantize_model

    return quantize_model(checks.path("model", model), data, asked, shapes, progress)
