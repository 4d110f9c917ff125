"""What `compile` does around the phases: the board and the tools are checked first, the project is published last."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_cascade import pipeline
from tvm_cascade.cores import Core, get_core, kernel_target
from tvm_cascade.errors import UsageError
from tvm_cascade.micro import firmware
from tvm_cascade.micro.board import Board, load_board
from tvm_cascade.micro.count import counter_of, require_counter
from tvm_cascade.micro.toolchain import find_tool
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.passes.tune_kernels import tune_kernels
from tvm_cascade.publish import publish
from tvm_cascade.report.frontier import frontier_report
from tvm_cascade.report.left_out import left_out
from tvm_cascade.request import KernelRequest, Request
from tvm_cascade.results import CompileResult, PlanResult
from tvm_cascade.schedules.tuning.metaschedule import Search
from tvm_cascade.schedules.tuning.tune import shipped, with_shipped

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Machine:
    """What a project is written for, and how."""

    target: Core
    board: Board | None  # None: this machine
    backend: str  # of the kernels: "c" or "obj"


def machine_of(request: Request) -> Machine:
    """The target, the board and the back end of a request.

    Raises
    ------
    UsageError
        The board does not run the target, or the request asks for what the target has not.
    MissingToolError
        The target's compiler is not installed.
    """
    target, board = get_core(request.target), request.emit.board
    backend = request.emit.emit or target.backend
    if target.name == "host":
        if board not in (None, "host"):
            raise UsageError(f"target host runs on board host, not {board}")
        return Machine(target, None, backend)
    made_for = load_board(board or target.default_board)
    if request.kernels.metaschedule is not None:
        raise UsageError(f"MetaSchedule measures on this machine: compile for the target host, not {target.name}")
    made_for.require_target(target)
    find_tool(target.family.gcc, target.family.compiler_remedy)
    return Machine(target, made_for, backend)


def plan_for(loaded: pipeline.Loaded, request: Request, machine: Machine, progress: Progress) -> pipeline.Planned:
    """The best plan, its kernels counted and tuned as the request says; new counts are kept in its database."""
    asked = request.kernels
    counts = with_shipped(asked.database, must_exist=not asked.tune)
    counter = None
    if asked.tune:
        counter = counter_of(machine.target, require_counter(machine.board), machine.backend, progress)
    core = kernel_target(request.target, machine.backend, request.emit.optimise)
    kernels = KernelSource(core, counts, counter, _tuner(asked, loaded.name, progress))
    try:
        return pipeline.plan(loaded, request.plan, kernels, progress)
    finally:
        if asked.tune and asked.database is not None:
            counts.difference(shipped()).save(asked.database)


def _tuner(asked: KernelRequest, name: str, progress: Progress) -> Callable[[PreparedGraph], PreparedGraph] | None:
    """Row kernels tuned by MetaSchedule, from the records in a folder or new measurements."""
    folder = asked.metaschedule
    if folder is None:
        return None

    def tune(prepared: PreparedGraph) -> PreparedGraph:
        made, tuned = tune_kernels(prepared, folder, Search(trials=asked.trials), vectors=False, progress=progress)
        progress(f"{name}: {tuned.tuned} operators tuned, {tuned.measured} candidates measured now")
        return made

    return tune


def write_project(
    folder: Path, planned: pipeline.Planned, name: str, request: Request, machine: Machine, progress: Progress
) -> firmware.Written:
    """Write the project into `folder`, complete or not at all; files of the user's own in an older one are kept.

    Raises `InfeasibleError` where the linked image exceeds its board.
    """
    written: list[firmware.Written] = []

    def keep(old: Path, new: Path) -> None:
        require_free(old)  # again, minutes after the first time
        if kept := firmware.keep_users_files(old, new, written[0].network):
            progress(f"{name}: kept your {', '.join(kept)}")

    with publish(folder, keep) as staging:
        emit = firmware.EmitOptions(
            name=request.emit.name or name,
            target=machine.target,
            board=machine.board,
            backend=machine.backend,
            optimise=request.emit.optimise,
            hook=request.emit.hook,
            ram_weights=int(request.emit.ram_weights),
        )
        written.append(firmware.write(staging, planned.prepared, planned.plan, planned.options, emit, progress))
    return written[0]


def require_free(folder: Path) -> None:
    """Only a project of ours, or nothing, is ever replaced. Raises `UsageError` for anything else."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder for the project")
    if any(folder.iterdir()) and not (folder / firmware.METADATA).is_file():
        raise UsageError(f"{folder} holds something other than a compiled project; give another folder or empty it")


def describe_plan(
    planned: pipeline.Planned,
    name: str,
    started: float,
    progress: Progress,
    whole: bool,
    flash: tuple[int, int] | None = None,
) -> PlanResult:
    """What is told of a plan; `whole` looks for the whole frontier."""
    chosen, options = planned.candidate, planned.options
    report = frontier_report(chosen.graph, options, chosen.plan, whole, lambda line: progress(f"{name}: {line}"))
    rewritten = chosen.rewritten
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
        groups=chosen.groups,
        in_groups=report.in_groups,
        flash=flash,
    )


def describe_project(
    told: PlanResult, folder: Path, machine: Machine, written: firmware.Written, seconds: float
) -> CompileResult:
    """What is told of a plan, and of the project that was written for it in so many `seconds`."""
    plan: dict[str, Any] = vars(told) | {"seconds": seconds}
    return CompileResult(
        **plan,
        folder=folder,
        target=machine.target.name,
        board=machine.board.name if machine.board else "host",
        ram_bytes=written.ram_bytes,
        flash_bytes=written.flash_bytes,
        elf=written.elf,
        files=written.files,
        ram_weight_bytes=written.ram_weight_bytes,
    )
