"""The steps of `compile` around the phases of `pipeline`: board and tools are checked first, the project is published
last.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tvm.ir import IRModule
from tvm.ir.transform import PassContext

from tvm_cascade import pipeline
from tvm_cascade.boards.board import Board, load_board
from tvm_cascade.boards.room import room_of
from tvm_cascade.cache import NO_CACHE, Cache, cache_folder, package_version
from tvm_cascade.cores import Core, KernelTarget, get_core, kernel_target
from tvm_cascade.emit import firmware
from tvm_cascade.emit.audit import AUDITS, require_audited
from tvm_cascade.emit.firmware import Emitted
from tvm_cascade.emit.flash_cap import FlashExceededError, require_flash
from tvm_cascade.emit.host import HostProgram
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.total_ram import RamExceededError
from tvm_cascade.emit.write_image import BuildOptions
from tvm_cascade.errors import CascadeError, InfeasibleError, MissingToolError, NotOptimizedError, UsageError
from tvm_cascade.messages import short_name
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.passes.coded_weights import CodedLayer, coded_layers, coding_that_saves
from tvm_cascade.passes.kernel_tuning import tune_kernels
from tvm_cascade.passes.plan_network import plan_options
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.pipeline import plan_or_suggest
from tvm_cascade.plain_files import readable
from tvm_cascade.publish import publish
from tvm_cascade.records import from_json, to_json
from tvm_cascade.report.commands import command_of
from tvm_cascade.report.cost import Cost
from tvm_cascade.request import LEAST_BESIDE, KernelRequest, Request
from tvm_cascade.results import CompileResult, PlanResult
from tvm_cascade.runs.count import counter_of, require_counter
from tvm_cascade.schedules.tuning.metaschedule import Search
from tvm_cascade.schedules.tuning.tune import shipped, with_shipped
from tvm_cascade.search_monitor import SearchMonitor

_EXTERNAL = b"location"  # in an ONNX file whose weights are in other files


@dataclass(frozen=True, slots=True)
class Compiled:
    """A network compiled as far as files."""

    told: PlanResult
    emitted: Emitted
    lines: tuple[str, ...]  # of progress, on the way here


@dataclass(frozen=True, slots=True)
class _Kept:
    told: PlanResult
    network: EmittedNetwork
    host: HostProgram
    lines: tuple[str, ...]


def key_of(model: str | Path | IRModule, request: Request, cache: Cache) -> str | None:
    """Return the cache key of a compilation; None if the compilation cannot be cached."""
    kernels = request.kernels
    if cache.folder is None or isinstance(model, IRModule) or request.emit.report is not None:
        return None
    if kernels.tune or kernels.metaschedule is not None or Path(model).suffix not in (".tflite", ".onnx"):
        return None
    try:
        content = readable(model).read_bytes()
        counts = b"" if kernels.database is None else readable(kernels.database).read_bytes()
    except OSError:  # said where it is read for good
        return None
    if Path(model).suffix == ".onnx" and _EXTERNAL in content:
        return None
    plan, emit = replace(request.plan, time_limit=None, flash=None), replace(request.emit, board=None)
    options = replace(request, plan=plan, time=replace(request.time, clock=None), emit=emit)
    used = [package_version(package) for package in ("onnx", "tflite", "flatbuffers", "scipy")]  # readers; small arenas
    return Cache.key("compiled", [sys.version, *used, Path(model).name, content, repr(options), counts])


def read(key: str | None, cache: Cache) -> Compiled | None:
    """Read a cached compilation; None if there is none."""
    value = None if key is None else cache.get(key)
    if value is None:
        return None
    kept = _decoded(value)
    return Compiled(kept.told, Emitted(kept.network, lambda: kept.host), kept.lines)


def keep(key: str | None, made: Compiled, cache: Cache) -> None:
    """Store a compilation, provided reading gives the same back."""
    if key is None or made.told.limited:
        return
    kept = _Kept(replace(made.told, seconds=0.0), made.emitted.network, made.emitted.host(), made.lines)
    try:
        value = json.dumps(to_json(kept), ensure_ascii=False).encode()
        same = _decoded(value) == kept
    except (CascadeError, TypeError, ValueError):
        return
    if same:
        cache.put(key, value)


def _decoded(value: bytes) -> _Kept:
    return from_json(_Kept, json.loads(value))


Progress = Callable[[str], None]
_ALL = 1e9  # instructions for a byte, for which the weights of all layers are coded
_TRIES = 4  # plans at most, each with what was needed beside the one before


def build_options(request: Request) -> BuildOptions:
    """Resolve the target, the board and the back end of a request.

    Raises `UsageError` for a board unable to run the target, or an option without support on the target;
    `MissingToolError` without the target's compiler.
    """
    target, board = get_core(request.target), request.emit.board  # a machine's name is resolved by then (`with_core`)
    if request.plan.memory and target.name == "host":
        raise UsageError("--memory names the RAMs of a board: compile for a --target, or without it")
    altered = len(PassContext.current().config) > 0  # TVM's passes then make other code, which no key knows
    cache = Cache(cache_folder()) if request.emit.cache and not altered else NO_CACHE
    backend = request.emit.emit or target.backend
    if not target.family.links and request.plan.ram is not None:
        raise UsageError(
            f"--ram caps the RAM of an image, and none is linked for {target.name}: choose another --target, or cap the "
            "arena by --sram"
        )
    if not target.family.links and request.plan.flash is not None:
        raise UsageError(
            f"--flash caps the flash of an image, and none is linked for {target.name}: choose another --target"
        )
    audits = [name for name in request.emit.require if name in AUDITS]
    if audits and not request.emit.link:
        raise UsageError(f"--require {audits[0]} audits the linked image; leave --no-link out")
    if audits and not target.family.links:
        raise UsageError(
            f"--require {audits[0]} audits an image, and none is linked for {target.name}: choose another --target"
        )
    if target.name == "host":
        if board not in (None, "host"):
            raise UsageError(f"target host runs on board host, not {board}")
        return BuildOptions(target, None, request.emit.optimise, backend, cache)
    made_for = load_board(board or target.default_board)
    if request.kernels.metaschedule is not None:
        raise UsageError(f"MetaSchedule measures on this machine: compile for the target host, not {target.name}")
    made_for.require_target(target)
    if not target.family.links and backend != "c":
        raise UsageError(f"there is no compiler of {target.name} here: --emit c")
    ram, flash = (None if cap is None else int(cap) for cap in (request.plan.ram, request.plan.flash))
    return BuildOptions(target, made_for, request.emit.optimise, backend, cache, ram, flash, _unlinked(request, target))


def _unlinked(request: Request, target: Core) -> str:
    """Return the reason why no image is linked; "" if an image is linked.

    Raises `MissingToolError` without the target's compiler if a cap or a board has to be checked and `--no-link` is
    absent.
    """
    if not target.family.links:
        return ""
    if not request.emit.link:
        return "as asked by --no-link"
    gcc, remedy = target.family.gcc, target.family.compiler_remedy
    if shutil.which(gcc) is not None:
        return ""
    if {*request.emit.require} & {*AUDITS} or (request.plan.ram, request.plan.flash, request.emit.board) != (
        None,
        None,
        None,
    ):
        raise MissingToolError(
            gcc, f"{remedy}; or --no-link writes the project, whose RAM and flash are then not checked"
        )
    return f"{gcc} is not installed: {remedy}; or compile the sources in your IDE"


def plan_for(
    loaded: pipeline.Loaded, request: Request, build: BuildOptions, started: float, progress: Progress
) -> tuple[pipeline.Planned, PlanResult]:
    """Search the best plan, check the plan (`pipeline.check`) and describe the result. For a report, describe the whole
    frontier.
    """
    with SearchMonitor(request.plan.time_limit) as limit:
        planned = _planned(loaded, request, build, progress)
        if "optimized" in request.emit.require:
            _require_optimized(planned, request.target)
        progress(f"{loaded.name}: replaying the plan on simulated memory, running it on random data")
        pipeline.check(planned, lambda line: progress(f"{loaded.name}: {line}"))
        whole = request.emit.report is not None
        told = pipeline.describe(
            planned, loaded, started, progress, whole=whole, flash=True, flash_wait=request.plan.flash_wait
        )
    return planned, replace(told, limited=limit.limited, storage=request.plan.weights)


def _require_optimized(planned: pipeline.Planned, target: str) -> None:
    """Raise `NotOptimizedError` if a layer with multiply-accumulates has the generic kernel."""
    kernels, graph = planned.prepared.kernels, planned.prepared.graph
    generic = [
        op.name for op, k in zip(graph.ops, kernels, strict=True) if op.macs and k is not None and k.rule == "generic"
    ]
    if generic:
        named = ", ".join(map(short_name, generic[:3])) + (f" and {len(generic) - 3} more" if len(generic) > 3 else "")
        raise NotOptimizedError(
            f"{target} has no kernel of its own for {named}; leave --require optimized out and they get the generic one, or "
            "choose another --target",
            tuple(generic),
        )


def _planned(loaded: pipeline.Loaded, request: Request, build: BuildOptions, progress: Progress) -> pipeline.Planned:
    """Search the best plan. Count and tune kernels as requested, and save new counts in the request's database."""
    asked = request.kernels
    counts = with_shipped(asked.database, must_exist=not asked.tune)
    counter = None
    if asked.tune:
        counter = counter_of(build.target, require_counter(build.board), build.backend, progress)
    core = _core(request, build)
    kernels = KernelSource(core, counts, counter, _tuner(asked, loaded.name, progress))
    try:
        return plan_or_suggest(loaded, request.plan, kernels, progress)
    finally:
        if asked.tune and asked.database is not None:
            counts.difference(shipped()).save(asked.database)


def _core(request: Request, build: BuildOptions) -> KernelTarget:
    return kernel_target(request.target, build.backend, build.optimise, request.kernels.code_weights)


def _tuner(asked: KernelRequest, name: str, progress: Progress) -> Callable[[PreparedGraph], PreparedGraph] | None:
    """Return a function that tunes row kernels by MetaSchedule, from records in a folder or by measuring; None if not
    asked.
    """
    folder = asked.metaschedule
    if folder is None:
        return None

    def tune(prepared: PreparedGraph) -> PreparedGraph:
        made, tuned = tune_kernels(prepared, folder, Search(trials=asked.trials), vectors=False, progress=progress)
        progress(f"{name}: {tuned.tuned} operators tuned, {tuned.measured} candidates measured now")
        return made

    return tune


def project(
    model: pipeline.Model, folder: Path, request: Request, build: BuildOptions, progress: Progress
) -> tuple[Compiled, firmware.Written]:
    """Compile `model` and write its project, under the caps on RAM and flash, if any.

    What exceeds the flash is made again: with code of few bytes, then with more and more layers of coded weights. Raises
    `InfeasibleError` if the image cannot obey the caps.
    """
    try:
        return _project(model, folder, request, build, progress)
    except FlashExceededError as error:
        usual, how = error, build.optimise
    tried, least = "", usual
    small, request = replace(build, optimise="size"), replace(request, emit=replace(request.emit, optimise="size"))
    if how != "size":
        progress(f"the image needs {usual.needed} bytes of flash, {usual.available} available; making its code small")
        try:
            return _project(model, folder, request, small, progress)
        except FlashExceededError as error:
            alone = "weights and tables alone " if usual.constants > usual.available else ""  # nothing was linked
            least, tried = error, f"that is with --optimise size, {alone}{usual.needed} with {how}"
    try:
        return _coded(model, folder, request, small, progress, least)
    except FlashExceededError as error:
        if error is not least:
            tried = f"that is with coded weights, {least.needed} without"
            request = replace(request, kernels=replace(request.kernels, code_weights=_ALL))
        told = error.after(tried) if tried else error
        raise _with_remedies(told, model, request, small) from None


def _coded(
    model: pipeline.Model,
    folder: Path,
    request: Request,
    build: BuildOptions,
    progress: Progress,
    found: FlashExceededError,
) -> tuple[Compiled, firmware.Written]:
    """Compile and write a project with as many layers coded as the cap on flash needs; `found` is the error without."""

    def attempt(coded: Request) -> tuple[Compiled, firmware.Written]:
        return _project(model, folder, coded, build, progress)

    prepared = pipeline.prepare(pipeline.load(model, request.load).mod, _core(request, build))
    return within_flash(request, coded_layers(prepared), found, attempt, progress)


Made = TypeVar("Made")


def within_flash(
    request: Request,
    layers: Sequence[CodedLayer],
    found: FlashExceededError,
    attempt: Callable[[Request], Made],
    progress: Progress,
) -> Made:
    """Return `attempt(request)` with the weights of as many layers coded as the cap on flash needs, those first in which a byte
    costs the fewest instructions.

    `found` is the error without coded weights, raised again if there is nothing to code, or no RAM for what is decoded.
    The price of a byte is that of merged kernels, too (`schedules.tuning.merge_price`): the last attempt merges all that
    differ in constants alone. Raises the error with all layers coded if that does not suffice.
    """
    missing, price = found.needed - found.available, request.kernels.code_weights
    plain = [layer for layer in layers if layer.price > price]
    while plain and price < plain[-1].price:
        coding = coding_that_saves(plain, missing)
        price = coding.price
        progress(f"the image needs {found.needed} bytes of flash, {found.available} available; {coding}")
        try:
            return attempt(replace(request, kernels=replace(request.kernels, code_weights=price)))
        except FlashExceededError as error:
            missing, found = max(missing, coding.saved) + error.needed - error.available, error
        except InfeasibleError:
            break
    if price < _ALL and found.constants <= found.available:
        progress(
            f"the image needs {found.needed} bytes of flash, {found.available} available; merging kernels at any price"
        )
        with suppress(InfeasibleError):
            return attempt(replace(request, kernels=replace(request.kernels, code_weights=_ALL)))
    raise found


def _with_remedies(
    error: FlashExceededError, model: pipeline.Model, request: Request, build: BuildOptions
) -> FlashExceededError:
    """Return the error with the bytes that options save, and what these cost."""
    counts = with_shipped(request.kernels.database, must_exist=not request.kernels.tune)
    core = _core(request, build)
    loaded = pipeline.load(model, request.load)
    return error.with_remedies(pipeline.remedies_for_flash(loaded, request.plan.within_ram(), core, counts))


def _project(
    model: pipeline.Model, folder: Path, request: Request, build: BuildOptions, progress: Progress
) -> tuple[Compiled, firmware.Written]:
    """Compile `model` and write the project, under the cap on all RAM if there is one. Cache the result if possible.

    Linking tells how much RAM an image needs beside the arena. If the need exceeds the assumption, the network is
    planned again. Raises `InfeasibleError` if the image cannot keep the cap.
    """
    beside, exceeded = LEAST_BESIDE, None
    for _ in range(_TRIES):
        asked = replace(request, plan=request.plan.within_ram(beside))
        try:
            made, key = _compiled_on_board(model, asked, build, progress)
        except InfeasibleError as error:
            own = build.ram is None or asked.plan.sram == request.plan.sram  # the cap that was too small
            raise error if own else error.beside(beside, int(build.ram or 0)) from None
        if (need := made.told.need) is not None:  # of more than weights and tables the linker tells
            require_flash(need.constants, build.flash, need.constants, made.told.plan.graph.ops)
        try:
            written = write_project(folder, made, asked, build, progress, model)
        except RamExceededError as error:
            beside, exceeded = error.other, error
            progress(f"{made.told.name}: {error.other} bytes beside the arena; planning again")
            continue
        keep(key, made, build.cache)
        return made, written
    assert exceeded is not None
    raise exceeded


def _compiled_on_board(
    model: pipeline.Model, request: Request, build: BuildOptions, progress: Progress
) -> tuple[Compiled, str | None]:
    """Return `compiled` and the key, under the RAM of a named board; without a cap if no plan fits."""
    named = build.board if request.emit.board is not None else None
    plan = request.plan if named is None else request.plan.within_board(named.arena_room)
    capped = replace(request, plan=plan)
    key = key_of(model, capped, build.cache)
    try:
        return compiled(model, capped, build, key, progress), key
    except InfeasibleError:
        if plan is request.plan:
            raise
    key = key_of(model, request, build.cache)
    return compiled(model, request, build, key, progress), key


def compiled(
    model: pipeline.Model, request: Request, build: BuildOptions, key: str | None, progress: Progress
) -> Compiled:
    """Plan and emit `model`, or read both from the cache under `key` (see `key_of`)."""
    kept = read(key, build.cache)
    if kept is not None:
        for line in kept.lines:
            progress(line)
        return kept
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        progress(line)

    started = time.perf_counter()
    loaded = pipeline.load(model, request.load, tell)
    name = loaded.name
    planned, told = plan_for(loaded, request, build, started, tell)
    tell(f"{name}: an arena of {planned.plan.peak} bytes; writing the project")
    return Compiled(told, _emitted(planned, request.emit.name or name, build, request), tuple(lines))


def _emitted(planned: pipeline.Planned, name: str, build: BuildOptions, request: Request) -> Emitted:
    return firmware.emit(planned, name, build, request.emit, request.plan.weights)


def _file(model: pipeline.Model | None) -> dict[str, str] | None:
    """Return name and SHA-256 of a model's file; None for a module."""
    if model is None or isinstance(model, IRModule):
        return None
    return {"file": Path(model).name, "sha256": hashlib.sha256(readable(model).read_bytes()).hexdigest()}


def write_project(
    folder: Path,
    made: Compiled,
    request: Request,
    build: BuildOptions,
    progress: Progress,
    model: pipeline.Model | None = None,
) -> firmware.Written:
    """Write the project into `folder` atomically; keep files the user has edited or added in an older project there.

    `model` is what was compiled, for the record of its hash. Raises `InfeasibleError` if the linked image exceeds the
    board.
    """
    written: list[firmware.Written] = []
    options = plan_options(request.plan, _core(request, build))

    def keep(old: Path, new: Path) -> None:
        require_free(old)  # checked again: the first check was minutes ago
        if kept := firmware.keep_users_files(old, new, written[0].network):
            progress(f"{made.told.name}: kept your {', '.join(kept)}")

    build = replace(build, code_weights=request.kernels.code_weights)
    clock = None if request.time.clock is None else int(request.time.clock)
    cost = Cost(made.told.cycles, clock, request.time.watts)
    with publish(folder, keep) as staging:
        hook, plan = request.emit.hook, made.told.plan
        written.append(firmware.write(staging, made.emitted, plan, options, build, hook, progress, cost, _file(model)))
        if (elf := written[-1].elf) is not None:
            require_audited(staging / elf, build.target.family, request.emit.require, plan.graph)
    return written[0]


def require_free(folder: Path) -> None:
    """Raise `UsageError` unless `folder` is missing, empty or a compiled project: nothing else is replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder for the project")
    if any(folder.iterdir()) and not (folder / firmware.METADATA).is_file():
        raise UsageError(f"{folder} holds something other than a compiled project; give another folder or empty it")


def describe_project(
    told: PlanResult, request: Request, folder: Path, build: BuildOptions, written: firmware.Written, seconds: float
) -> CompileResult:
    """Build the `CompileResult` from a plan and the project written for it; `seconds` is the total time."""
    plan: dict[str, Any] = vars(told) | {"seconds": seconds, "clock": request.time.clock, "watts": request.time.watts}
    plan |= {"weights_in": written.weights_in, "ram_weight_bytes": written.ram_weight_bytes}
    return CompileResult(
        **plan,
        folder=folder,
        target=build.target.name,
        board=build.board.name if build.board else "host",
        ram_bytes=written.ram_bytes,
        flash_bytes=written.flash_bytes,
        elf=written.elf,
        files=written.files,
        stored=written.weights,
        stack_bytes=written.stack_bytes,
        unlinked=build.unlinked,
    )


def told_with_board(
    result: CompileResult, model: pipeline.Model, request: Request, board: Board | None
) -> CompileResult:
    """Return the result with the data of the first lines: the board's memory, the file, and the commands."""
    made = replace(result, core=result.target, room=None if board is None else room_of(board, bool(result.plan.placed)))
    if isinstance(model, IRModule):
        return made
    words = ["tvm-cascade", "run", str(result.folder), "--check", str(model)]
    return replace(
        made, file=str(model), command=command_of(model, request, result.folder), next_step=shlex.join(words)
    )
