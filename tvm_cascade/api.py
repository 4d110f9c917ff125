"""`load`, `plan`, `compile`, `run` and `doctor`: what the command line does, as functions with frozen results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tvm.ir import IRModule

from tvm_cascade import checks, compilation, pipeline
from tvm_cascade.cores import get_core, kernel_target
from tvm_cascade.frontend import load
from tvm_cascade.keywords import CompileKeywords, OptimizeKeywords, PlanKeywords, StagesKeywords, takes
from tvm_cascade.micro.bundle import BundleResult, make_bundle
from tvm_cascade.micro.doctor import Doctor, diagnose
from tvm_cascade.micro.export import export_folder
from tvm_cascade.micro.run_image import run_image
from tvm_cascade.micro.run_report import RunReport
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.passes.choose_variants import flash_of
from tvm_cascade.request import (
    COMPILE_OPTIONS,
    PLAN_OPTIONS,
    EmitRequest,
    KernelRequest,
    LoadRequest,
    OptimizeRequest,
    OrderRequest,
    PlanRequest,
    RunRequest,
    StagesRequest,
    request_of,
)
from tvm_cascade.results import CompileResult, PlanResult
from tvm_cascade.schedules.tuning.tune import with_shipped

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "BundleResult",
    "CompileResult",
    "PlanResult",
    "RunReport",
    "bundle",
    "compile",
    "doctor",
    "export",
    "load",
    "optimize",
    "order",
    "plan",
    "run",
    "stages",
]

Model = str | Path | IRModule
Progress = Callable[[str], None]


def _silent(_text: str) -> None:
    return None


@takes(PlanKeywords, LoadRequest, PlanRequest, KernelRequest)
def plan(
    model: Model, *, target: str = "cortex-m4", progress: Progress = _silent, **options: Unpack[PlanKeywords]
) -> PlanResult:
    """Plan `model` (a file or a Relax module) without writing anything.

    Parameters
    ----------
    target : str
        Whose alignment and kernels' scratch count: the plan is that of `compile` for the same target.
    sram : int or str, optional
        Cap on the arena, in bytes or as "64KiB"; None plans the smallest arena at no extra multiply-accumulates, within
        `max_time`.
    max_macs : float
        Multiply-accumulates allowed, as a factor of the network's.
    max_time : float
        Without a cap: instructions that finer steps may be estimated to cost, as a factor of steps by rows.
    stream_input, layerwise, overlap : bool
        Inputs arrive row by row; operators run one after the other; outputs may take the space of dying inputs.
    granularity : str
        What rolling buffers count: "row", "pixel" or "auto".
    input_shapes : mapping of name to shape, optional
        Fixes sizes that the file leaves open.
    stored_io : bool
        Inputs and outputs that the file has in floats as the integers that the network stores them in.
    database : path, optional
        Counts of a `compile` with `tune` on top of those that come with the package.
    rewrite : bool, optional
        Search for an equivalent network whose arena is smaller (substitutions for memory). None searches quantized networks,
        where every bit stays as it is; True floats too, whose sums are then added in another order; False none.

    Raises
    ------
    InfeasibleError
        Nothing fits the cap.
    LoadError, UnsupportedOperatorError
        The model cannot be read.
    UsageError
        An option that there is not, or a value that it cannot have.
    """
    started = time.perf_counter()
    request = request_of(target, options, PLAN_OPTIONS)
    core, counts = kernel_target(target, get_core(target).backend), with_shipped(request.kernels.database)
    loaded = pipeline.load(model, request.load, progress)
    planned = pipeline.plan(loaded, request.plan, KernelSource(core, counts), progress)
    made = planned.prepared
    flash = flash_of(made.graph, made.extracted, made.kernels, made.core, counts)
    return compilation.describe_plan(planned, loaded.name, started, progress, whole=True, flash=flash)


@takes(CompileKeywords, LoadRequest, PlanRequest, KernelRequest, EmitRequest)
def compile(
    model: Model,
    *,
    target: str,
    output: str | Path,
    progress: Progress = _silent,
    **options: Unpack[CompileKeywords],
) -> CompileResult:
    """Plan `model` and write a project for `target` into the folder `output`, complete or not at all.

    Takes what `plan` takes, and:

    Parameters
    ----------
    board : str, optional
        By name, or the path of a board's .json; None is the target's own.
    emit : str, optional
        Kernels as C99 ("c") or as an LLVM object ("obj"); None is the better for the target.
    optimise : str
        "size", "speed" or "balanced".
    name : str, optional
        Of the network, in files and functions; None is that of the model's file.
    hook : bool
        The network calls a function of the application's after every step (see the header it comes with).
    ram_weights : int or str
        Bytes of weights at most, those that are read most, that are copied into RAM beside the arena.
    tune : bool
        Kernels of shapes that no counts are known of are counted in the board's emulator first, and the counts written to
        `database`; without it a `database` is only read.
    metaschedule : path, optional
        A folder of records: row kernels for the host are tuned by MetaSchedule.
    trials : int
        Candidates of each kernel without a record that MetaSchedule measures on this machine.
    report : path, optional
        An .html file, or a folder, for a report of the plan with its whole frontier.

    Raises
    ------
    InfeasibleError
        Nothing fits the cap, or the linked image exceeds its board.
    MissingToolError
        The cross compiler is not installed.
    LoadError, UnsupportedOperatorError, UsageError
        As `plan` does.
    """
    started, folder = time.perf_counter(), checks.path("output", output)
    request = request_of(target, options, COMPILE_OPTIONS)
    compilation.require_free(folder)
    build = compilation.build_options(request)
    loaded = pipeline.load(model, request.load, progress)
    planned = compilation.plan_for(loaded, request, build, progress)
    progress(f"{loaded.name}: replaying the plan on simulated memory")
    pipeline.replay(planned.plan, planned.options.alignment)
    told = compilation.describe_plan(planned, loaded.name, started, progress, whole=request.emit.report is not None)
    progress(f"{loaded.name}: an arena of {planned.plan.peak} bytes; writing the project")
    written = compilation.write_project(folder, planned, loaded.name, request, build, progress)
    result = compilation.describe_project(told, folder, build, written, time.perf_counter() - started)
    if request.emit.report is not None:
        result.write_report(request.emit.report)
    return result


def run(
    directory: str | Path,
    *,
    board: str | None = None,
    inputs: str | Path | Mapping[str, np.ndarray] | None = None,
    outputs: str | Path | None = None,
    check: str | Path | None = None,
    port: str | None = None,
    timeout: float | None = None,
    progress: Progress = _silent,
) -> RunReport:
    """Run a compiled project on its emulated board (or `host`) and measure it.

    Parameters
    ----------
    inputs : path of an .npz, or arrays by name, optional
        In the model's own types and layouts; None draws them from a fixed seed.
    check : path, optional
        A model file; its reference kernels run on the same inputs.
    port : str, optional
        A serial port: run on the real board behind it.
    timeout : float, optional
        Seconds that the emulation may take, 600 by default, or that the board behind `port` may stay without an answer, 60.

    Raises
    ------
    UsageError
        An option that cannot be, or an array of another shape or type than the network's input.
    LoadError, MissingToolError, ToolError
        The folder or a file cannot be read; the emulator is not installed, or fails.
    """
    options = {"board": board, "port": port, "timeout": timeout, "outputs": outputs, "check": check}
    return run_image(checks.path("directory", directory), RunRequest.of(options), inputs, progress)


def export(directory: str | Path, *, kind: str, output: str | Path) -> tuple[str, ...]:
    """Write the compiled project or bundle in `directory` as a Zephyr module or an Arduino library; returns the files.

    Parameters
    ----------
    kind : str
        `zephyr` or `arduino`.
    output : path
        A new folder.
    """
    checks.choice("zephyr", "arduino")("as", kind)
    return export_folder(checks.path("directory", directory), kind, checks.path("output", output))


def bundle(directories: Sequence[str | Path], *, output: str | Path, board: str | None = None) -> BundleResult:
    """Write and build one image of several compiled networks, which share one arena, into the new folder `output`."""
    folders = [checks.path("directories", d) for d in directories]
    return make_bundle(folders, checks.path("output", output), checks.optional(checks.name_or_path)("board", board))


def doctor(model: str | Path | None = None) -> Doctor:
    """What is installed and what is missing, and which operators of `model` are."""
    return diagnose(model)


def order(
    model: Model,
    *,
    rewrite: bool = False,
    on_chip: int | str | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    progress: Progress = _silent,
) -> dict[str, object]:
    """The order of least peak memory (Serenity): the JSON object of `tvm-cascade order`.

    Parameters
    ----------
    rewrite : bool
        Convolutions may read the parts of concats where they lie.
    on_chip : int or str, optional
        Bytes of on-chip memory, or "256KiB": also count the bytes that move on and off it.

    Raises
    ------
    LoadError, UnsupportedOperatorError, UsageError
        As `plan` does.
    """
    from tvm_cascade.ordering.report import order_report

    asked = OrderRequest(rewrite, on_chip)
    loaded = pipeline.load(model, LoadRequest(input_shapes))
    graph = pipeline.graph_of(loaded.mod)
    progress(f"{loaded.name}: ordering {len(graph.ops)} operators")
    assert not isinstance(asked.on_chip, str)
    return order_report(graph, asked.rewrite, asked.on_chip)


@takes(StagesKeywords, StagesRequest)
def stages(
    model: Model,
    *,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    progress: Progress = _silent,
    **options: Unpack[StagesKeywords],
) -> tuple[dict[str, object], str]:
    """The schedule of stages of least latency (IOS): the JSON object of `tvm-cascade stages`, and the same for reading.

    Parameters
    ----------
    target : str
        "cuda" or "llvm", with or without options of TVM's.
    device : str, optional
        Name of a device description; None is the target's generic one.
    batch : int, optional
        Batch size, with the analytic cost.
    unit, variant : str
        What is scheduled as one ("op", "fused", "sepconv", "cell"), and which schedules are searched ("sequential",
        "greedy", "merge", "parallel", "both").
    r, s : int, optional
        Operators in a group and groups in a stage at most; 0 or None: any number.
    cost : str
        "analytic", or "measured" or "learned" on this machine.
    load, output, picture : path, optional
        Price this saved schedule instead of searching; save the schedule; draw its timeline.
    database : path, optional
        Keeps measurements.
    metaschedule, trials : path, int
        Folder with records of kernels that MetaSchedule tuned, and candidates for kernels without one.

    Raises
    ------
    LoadError, UsageError, MissingToolError
        The model or the schedule cannot be read; an option cannot be; what should be measured is not here.
    """
    from tvm_cascade.runtime.stages import stages as schedule

    request = StagesRequest.of_all(options)
    loaded = pipeline.load(model, LoadRequest(input_shapes))
    progress(f"{loaded.name}: scheduling")
    return schedule(loaded.mod, request, progress)


@takes(OptimizeKeywords, OptimizeRequest)
def optimize(
    model: Model,
    *,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    progress: Progress = _silent,
    **options: Unpack[OptimizeKeywords],
) -> tuple[dict[str, object], str]:
    """An equivalent graph of less cost (MetaFlow): the JSON object of `tvm-cascade optimize`, and the same for reading.

    Parameters
    ----------
    target : str
        "cuda" or "llvm", with or without options of TVM's.
    cost : str
        "latency", "ios", "measured", "learned", "flops", "traffic", "launches", "peak", a weighted sum, or with a limit:
        "latency,peak<=256KiB".
    device : str, optional
        Name of a device description; None is the target's generic one.
    alpha : float
        How much worse a graph may get on the way.
    budget : int
        Graphs to price, at most, per part.
    output, picture : path, optional
        Save the graph (.onnx, else a Relax module); draw it before and after.
    database : path, optional
        Keeps measurements.

    Raises
    ------
    LoadError, UsageError, GraphError, InfeasibleError
        The model cannot be read; an option cannot be; the network has control flow; no graph keeps the limit.
    """
    from tvm_cascade.runtime.optimize_module import optimize_module, save_optimized
    from tvm_cascade.substitution.report import format_report

    asked = OptimizeRequest.of_all(options)
    loaded = pipeline.load(model, LoadRequest(input_shapes))
    progress(f"{loaded.name}: searching")
    search = {"alpha": asked.alpha, "budget": asked.budget, "database": asked.database}
    done = optimize_module(loaded.mod, asked.target, asked.cost, asked.device, **search)
    if asked.output is not None:
        save_optimized(done, asked.output)
    if asked.picture is not None:
        from tvm_cascade.substitution.picture import draw

        draw(done.read.dag, done.found.dag, asked.picture)
    return done.report, format_report(done.report)
