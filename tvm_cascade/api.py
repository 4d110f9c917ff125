"""`load`, `plan`, `compile`, `run` and `doctor`: what the command line does, as functions with frozen results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
from tvm.ir import IRModule

from tvm_cascade import pipeline
from tvm_cascade.cascading import PlanOptions
from tvm_cascade.cores import KernelTarget, get_core, kernel_target
from tvm_cascade.errors import UsageError
from tvm_cascade.frontend import load, storable_inputs
from tvm_cascade.micro import firmware
from tvm_cascade.micro.board import load_board
from tvm_cascade.micro.bundle import BundleResult, make_bundle
from tvm_cascade.micro.count import counter_of, require_counter
from tvm_cascade.micro.doctor import Doctor, diagnose
from tvm_cascade.micro.export import export_folder
from tvm_cascade.micro.measure import RunReport, run_project
from tvm_cascade.micro.toolchain import find_tool
from tvm_cascade.passes.choose_variants import flash_of
from tvm_cascade.passes.plan_concats import Choice
from tvm_cascade.publish import publish
from tvm_cascade.results import CompileResult, PlanResult
from tvm_cascade.schedules.tuning.counting import Counter
from tvm_cascade.schedules.tuning.tune import Database, shipped, with_shipped

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


def _module(
    model: Model, input_shapes: Mapping[str, tuple[int, ...]] | None, stored_io: bool = False
) -> tuple[IRModule, str]:
    if isinstance(model, IRModule):
        return model, "network"
    return load(model, input_shapes, stored_io), Path(model).stem


def _hint_at_stored_io(model: Model, mod: IRModule, name: str, progress: Progress) -> None:
    for spec in () if isinstance(model, IRModule) else storable_inputs(mod):
        stored = prod(spec.shape) * np.dtype(spec.dtype).itemsize
        progress(
            f"{name}: {spec.name}: a float that the network only quantizes; --stored-io takes integers, "
            f"{stored} bytes for {prod(spec.shape) * 4}"
        )


def _plan_options(alignment: int, **values: object) -> PlanOptions:
    able = {"pixels": True, "accumulators": True, "stripes": True, "in_place": True}
    return PlanOptions(alignment=alignment, **able, **values)  # type: ignore[arg-type]


def plan(
    model: Model,
    *,
    sram: int | None = None,
    max_macs: float = 1.0,
    max_time: float = 1.2,
    stream_input: bool = False,
    layerwise: bool = False,
    overlap: bool = True,
    granularity: str = "auto",
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    stored_io: bool = False,
    target: str = "cortex-m4",
    database: str | Path | None = None,
    rewrite: bool | None = None,
    progress: Progress = _silent,
) -> PlanResult:
    """Plan `model` (a file or a Relax module) without writing anything.

    Parameters
    ----------
    sram : int, optional
        Cap on the arena in bytes; None plans the smallest arena at no extra multiply-accumulates, within `max_time`.
    max_macs : float
        Multiply-accumulates allowed, as a factor of the network's.
    max_time : float
        Without a cap: instructions that finer steps may be estimated to cost, as a factor of steps by rows.
    stored_io : bool
        Inputs and outputs that the file has in floats as the integers that the network stores them in.
    target : str
        Whose alignment and kernels' scratch count: the plan is that of `compile` for the same target.
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
    """
    started = time.perf_counter()
    mod, name = _module(model, input_shapes, stored_io)
    options = _plan_options(
        get_core(target).align,
        sram=sram,
        max_macs=max_macs,
        max_time=max_time,
        steps=get_core(target).steps,
        stream_input=stream_input,
        layerwise=layerwise,
        overlap=overlap,
        granularity=granularity,
    )
    progress(f"{name}: reading the graph")
    _hint_at_stored_io(model, mod, name, progress)
    counts = with_shipped(Path(database) if database else None)
    core = kernel_target(target, get_core(target).backend)
    mod, rewritten = _rewritten(mod, core, options, counts, rewrite, name, progress)
    prepared = pipeline.prepare(mod, core, counts)
    progress(f"{name}: planning {len(prepared.graph.ops)} operators")
    chosen = _planned(mod, prepared, options, counts, None, name, progress)
    prepared, made = chosen.prepared, chosen.plan
    outlook = pipeline.outlook(chosen.graph, options, made, True, lambda line: progress(f"{name}: {line}"))
    return PlanResult(
        name,
        made,
        outlook.points,
        pipeline.left_out(prepared.graph, made, options),
        time.perf_counter() - started,
        rewritten,
        estimates=outlook.estimates,
        bounds=outlook.bounds,
        concats=chosen.reason,
        groups=chosen.groups,
        in_groups=outlook.in_groups,
        flash=flash_of(prepared.graph, prepared.extracted, prepared.kernels, prepared.core, counts),
    )


def _planned(
    mod: IRModule,
    prepared: pipeline.Prepared,
    options: PlanOptions,
    counts: Database,
    counter: Counter | None,
    name: str,
    progress: Progress,
    tuned: Callable[[pipeline.Prepared], pipeline.Prepared] | None = None,
) -> Choice[pipeline.Prepared]:
    """The plan, concats written in place or read in parts, channels made in groups where that pays; says so."""
    chosen = pipeline.plan_prepared(mod, prepared, options, counts, counter, tuned)
    if chosen.reason:
        progress(f"{name}: {chosen.reason}")
    return chosen


def _tuner(
    folder: str | Path, trials: int, name: str, progress: Progress
) -> Callable[[pipeline.Prepared], pipeline.Prepared]:
    """Row kernels tuned by MetaSchedule, from the records in `folder` or new measurements."""
    from tvm_cascade.passes.tune_kernels import tune_kernels
    from tvm_cascade.schedules.tuning.metaschedule import Search

    def tune(prepared: pipeline.Prepared) -> pipeline.Prepared:
        made, tuned = tune_kernels(prepared, folder, Search(trials=trials), vectors=False, progress=progress)
        progress(f"{name}: {tuned.tuned} operators tuned, {tuned.measured} candidates measured now")
        return made

    return tune


def _rewritten(
    mod: IRModule,
    core: KernelTarget,
    options: PlanOptions,
    counts: Database,
    wanted: bool | None,
    name: str,
    progress: Progress,
) -> tuple[IRModule, Mapping[str, object] | None]:
    """The network to plan, and what was rewritten in it; None where nothing was and nobody asked."""
    if wanted is False or (wanted is None and options.layerwise):
        return mod, None
    progress(f"{name}: looking for an equivalent network of less memory")
    done = pipeline.rewrite(mod, core, options, counts, floats=bool(wanted))
    if not done.steps and not wanted:
        return mod, None
    progress(f"{name}: {len(done.steps)} substitutions: {done.reason}")
    return done.mod, done.to_dict()


def compile(
    model: Model,
    *,
    target: str,
    output: str | Path,
    board: str | None = None,
    emit: str | None = None,
    optimise: str = "balanced",
    sram: int | None = None,
    max_macs: float = 1.0,
    max_time: float = 1.2,
    stream_input: bool = False,
    layerwise: bool = False,
    overlap: bool = True,
    granularity: str = "auto",
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    stored_io: bool = False,
    name: str | None = None,
    hook: bool = False,
    ram_weights: int = 0,
    tune: bool = False,
    database: str | Path | None = None,
    metaschedule: str | Path | None = None,
    trials: int = 32,
    rewrite: bool | None = None,
    report: str | Path | None = None,
    progress: Progress = _silent,
) -> CompileResult:
    """Plan `model` and write a project for `target` into the folder `output`, complete or not at all.

    With `hook` the network calls a function of the application's after every step (see the header it comes with).
    With `ram_weights` up to so many bytes of weights, those that are read most, are copied into RAM beside the arena.
    With `tune` kernels of shapes that no counts are known of are counted in the board's emulator first, and the counts
    written to `database`; without it a `database` is only read. With `metaschedule`, a folder of records, row kernels for
    the host are tuned by MetaSchedule: `trials` candidates of each that has no record yet are measured on this machine.
    `rewrite` is that of `plan`. `report` names an .html file,
    or a folder, for a report of the plan with its whole frontier.

    Raises what `plan` raises, `InfeasibleError` too where the linked image exceeds its board, `MissingToolError` without
    the cross compiler.
    """
    started = time.perf_counter()
    folder = Path(output)
    _require_free(folder)
    if name is not None and not name.strip():
        raise UsageError("the network's name is empty: functions and files are called after it")
    made_for = get_core(target)
    on = None if target == "host" else load_board(board or made_for.default_board)
    if target == "host" and board not in (None, "host"):
        raise UsageError(f"target host runs on board host, not {board}")
    if metaschedule is not None and on is not None:
        raise UsageError(f"MetaSchedule measures on this machine: compile for the target host, not {target}")
    if on is not None:
        on.require_target(made_for)
        find_tool(made_for.family.gcc, made_for.family.compiler_remedy)  # before minutes of planning
    mod, stem = _module(model, input_shapes, stored_io)
    options = _plan_options(
        made_for.align,
        sram=sram,
        max_macs=max_macs,
        max_time=max_time,
        steps=get_core(target).steps,
        stream_input=stream_input,
        layerwise=layerwise,
        overlap=overlap,
        granularity=granularity,
    )
    backend = emit or made_for.backend
    core = kernel_target(target, backend, optimise)
    progress(f"{stem}: reading the graph")
    _hint_at_stored_io(model, mod, stem, progress)
    counts = with_shipped(Path(database) if database else None, must_exist=not tune)
    counter = counter_of(made_for, require_counter(on), backend, progress) if tune else None
    mod, rewritten = _rewritten(mod, core, options, counts, rewrite, stem, progress)
    prepared = pipeline.prepare(mod, core, counts, counter)
    if tune and database is not None:
        counts.difference(shipped()).save(Path(database))
    tune_more = None if metaschedule is None else _tuner(metaschedule, trials, stem, progress)
    prepared = prepared if tune_more is None else tune_more(prepared)
    progress(f"{stem}: planning {len(prepared.graph.ops)} operators")
    chosen = _planned(mod, prepared, options, counts, counter, stem, progress, tune_more)
    prepared, made = chosen.prepared, chosen.plan
    progress(f"{stem}: replaying the plan on simulated memory")
    pipeline.replay(made, options.alignment)
    outlook = pipeline.outlook(
        chosen.graph, options, made, report is not None, lambda line: progress(f"{stem}: {line}")
    )
    alone = pipeline.left_out(prepared.graph, made, options)
    progress(f"{stem}: an arena of {made.peak} bytes; writing the project")
    written: list[firmware.Written] = []

    def keep(old: Path, new: Path) -> None:
        _require_free(old)  # again, minutes later
        if kept := firmware.keep_users_files(old, new, written[0].network):
            progress(f"{stem}: kept your {', '.join(kept)}")

    with publish(folder, keep) as staging:
        built = firmware.write(
            staging, prepared, made, name or stem, made_for, on, backend, optimise, options, progress, hook, ram_weights
        )
        written.append(built)
    result = CompileResult(
        stem,
        made,
        outlook.points,
        alone,
        time.perf_counter() - started,
        rewritten,
        folder,
        target,
        on.name if on else "host",
        built.ram_bytes,
        built.flash_bytes,
        built.elf,
        built.files,
        built.ram_weight_bytes,
        estimates=outlook.estimates,
        bounds=outlook.bounds,
        concats=chosen.reason,
        groups=chosen.groups,
        in_groups=outlook.in_groups,
    )
    if report is not None:
        result.write_report(Path(report))
    return result


def _require_free(folder: Path) -> None:
    """Only a project of ours, or nothing, is ever replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder for the project")
    if any(folder.iterdir()) and not (folder / firmware.METADATA).is_file():
        raise UsageError(f"{folder} holds something other than a compiled project; give another folder or empty it")


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
    """
    return run_project(Path(directory), board, inputs, outputs, check, port, timeout, progress)


def export(directory: str | Path, *, kind: str, output: str | Path) -> tuple[str, ...]:
    """Write the compiled project or bundle in `directory` as a Zephyr module or an Arduino library; returns the files.

    Parameters
    ----------
    kind : str
        `zephyr` or `arduino`.
    output : path
        A new folder.
    """
    return export_folder(Path(directory), kind, Path(output))


def bundle(directories: Sequence[str | Path], *, output: str | Path, board: str | None = None) -> BundleResult:
    """Write and build one image of several compiled networks, which share one arena, into the new folder `output`."""
    return make_bundle([Path(d) for d in directories], Path(output), board)


def doctor(model: str | Path | None = None) -> Doctor:
    """What is installed and what is missing, and which operators of `model` are."""
    return diagnose(model)


def order(
    model: Model,
    *,
    rewrite: bool = False,
    on_chip: int | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    progress: Progress = _silent,
) -> dict[str, object]:
    """The order of least peak memory (Serenity): the JSON object of `tvm-cascade order`."""
    from tvm_cascade.ordering.report import order_report

    mod, name = _module(model, input_shapes)
    graph = pipeline.graph_of(mod)
    progress(f"{name}: ordering {len(graph.ops)} operators")
    return order_report(graph, rewrite, on_chip)


def stages(
    model: Model,
    *,
    target: str = "cuda",
    cost: str = "analytic",
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    progress: Progress = _silent,
    **options: object,
) -> tuple[dict[str, object], str]:
    """The schedule of stages of least latency (IOS): the JSON object of `tvm-cascade stages`, and the same for reading.

    `options` are those of `runtime.stages.stages`: device, batch, unit, variant, r, s, load, output, picture, database,
    metaschedule, trials.
    """
    from tvm_cascade.runtime.stages import stages as schedule

    mod, name = _module(model, input_shapes)
    progress(f"{name}: scheduling")
    return schedule(mod, target, cost=cost, progress=progress, **options)  # type: ignore[arg-type]


def optimize(
    model: Model,
    *,
    target: str = "cuda",
    cost: str = "latency",
    device: str | None = None,
    alpha: float = 1.05,
    budget: int = 2000,
    output: str | Path | None = None,
    picture: str | Path | None = None,
    database: str | Path | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    progress: Progress = _silent,
) -> tuple[dict[str, object], str]:
    """An equivalent graph of less cost (MetaFlow): the JSON object of `tvm-cascade optimize`, and the same for reading."""
    from tvm_cascade.runtime.optimize_module import optimize_module, save_optimized
    from tvm_cascade.substitution.report import format_report

    mod, name = _module(model, input_shapes)
    progress(f"{name}: searching")
    done = optimize_module(mod, target, cost, device, alpha=alpha, budget=budget, database=database)
    if output is not None:
        save_optimized(done, output)
    if picture is not None:
        from tvm_cascade.substitution.picture import draw

        draw(done.read.dag, done.found.dag, picture)
    return done.report, format_report(done.report)
