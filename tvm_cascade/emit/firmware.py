"""Write the compiled folder of a network from a plan: C files, linked image, host program (`emit.host`), metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tvm_cascade.boards.board import Board, available_ram
from tvm_cascade.cache import package_version
from tvm_cascade.cascading import Plan, PlanOptions, bound_of
from tvm_cascade.emit.codegen import MARK, emit_network
from tvm_cascade.emit.elf import audited_symbols
from tvm_cascade.emit.entry import hook_symbol
from tvm_cascade.emit.flash_cap import FlashExceededError, require_flash
from tvm_cascade.emit.host import HostProgram, host_program
from tvm_cascade.emit.hot_weights import HEADER_BYTES, segment_symbol
from tvm_cascade.emit.image import HOST_FOLDER, METADATA, Image, write_metadata
from tvm_cascade.emit.names import network_identifier
from tvm_cascade.emit.network import INTERFACE_VERSION, EmittedNetwork
from tvm_cascade.emit.placement import place_io
from tvm_cascade.emit.toolchain import BuildResult, MemoryOverflowError, build_image
from tvm_cascade.emit.total_ram import within_ram
from tvm_cascade.emit.user_files import file_digests, keep_users_files, users_files
from tvm_cascade.emit.weights import read_weights
from tvm_cascade.emit.write_image import BuildOptions, write_image
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.pipeline import Planned, lower
from tvm_cascade.report.cost import Cost
from tvm_cascade.report.text import block_rows, peak_segment
from tvm_cascade.request import EmitRequest
from tvm_cascade.schema.plan import StoredWeights

__all__ = ["METADATA", "Emitted", "Written", "emit", "keep_users_files", "users_files", "write"]


@dataclass(frozen=True, slots=True)
class Written:
    """Files and sizes of a finished folder; sizes in bytes, None if compiled for this machine."""

    ram_bytes: int | None
    flash_bytes: int | None
    elf: str | None  # relative to the folder
    files: tuple[str, ...]
    network: tuple[str, ...] = ()  # the network's own among `files`
    ram_weight_bytes: int = 0  # of `ram_bytes`, weights that are copied to RAM
    weights_in: Mapping[str, int] = field(default_factory=dict)  # those in a memory of the board, by its name
    stack_bytes: int | None = None  # reserve under a cap on all RAM; None without one
    weights: StoredWeights = field(default_factory=lambda: StoredWeights(storage="linked", bytes=0, sha256=""))


@dataclass(frozen=True, slots=True)
class Emitted:
    """The emitted files of a network, and the program for the host."""

    network: EmittedNetwork
    host: Callable[[], HostProgram]  # asked for while the C compiler runs


def emit(planned: Planned, name: str, build: BuildOptions, asked: EmitRequest, storage: str = "linked") -> Emitted:
    """Emit a network called `name` from the plan; `storage` says where its weights are stored (`PlanRequest.weights`)."""
    prepared, plan, name = planned.prepared, planned.plan, network_identifier(name)
    network = emit_network(
        lower(
            prepared,
            plan,
            fetch=f"{name}_fetch",
            hook=hook_symbol(name) if asked.hook else None,
            mark=MARK,
            segment_call=segment_symbol(name) if planned.candidate.copied.prefetched or storage == "stream" else None,
        ),
        name,
        prepared.io,
        target=build.target.llvm if build.backend == "obj" and build.linked else None,
        align=max(build.target.align, 8),
        prelude=prepared.prelude,
        copied=planned.candidate.copied,
        cache=build.cache,
        storage=storage,
    )
    network = replace(network, c_flags=build.target.c_flags)
    placed = place_io(plan, prepared.io)
    return Emitted(network, cache(lambda: host_program(lower(prepared, plan, counted=True), placed, cache=build.cache)))


def write(
    folder: Path,
    emitted: Emitted,
    plan: Plan,
    options: PlanOptions,
    build: BuildOptions,
    hook: bool,
    progress: Callable[[str], None],
    cost: Cost,
    model: Mapping[str, str] | None = None,
) -> Written:
    """Write a network and its plan into the existing `folder`: sources, linked image, host program, metadata.

    `cost` is the estimated cost of an inference, `model` the model's `file` and its `sha256`.

    Raises `InfeasibleError` if the image does not fit the board.
    """
    network = emitted.network
    links = build.linked and not build.unlinked
    if build.board is not None and not links:
        _require_ram(build.board, plan, options)
    with ThreadPoolExecutor(max_workers=1) as pool:
        counted = pool.submit(emitted.host)
        image = write_image(folder, (network,), build)
        built = _build(image, build, plan, options, progress) if links else None
        host = counted.result().save(folder / HOST_FOLDER, _flash_in_file(network))
    elf = None if built is None else str(built.elf.relative_to(folder))
    ram, flash = (None, None) if built is None else (built.ram_bytes, built.flash_bytes)
    of_image = {"elf": elf, "ram_bytes": ram, "flash_bytes": flash, "ram_weight_bytes": network.ram_weight_bytes}
    of_image |= {} if built is None else {"symbols": audited_symbols(built.elf)}
    chosen = asdict(options) | {"emit": build.backend, "optimise": build.optimise, "hook": hook}
    chosen |= {"code_weights": build.code_weights} if build.code_weights else {}
    stored = _stored(network)
    record = {"interface_version": INTERFACE_VERSION, **({"model": model} if model else {}), "weights": stored}
    record |= _of_plan(plan, chosen, cost) | {"calls": list(network.calls), "image": of_image, "host": host}
    write_metadata(image, record | {"written": file_digests(folder)})
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    stack = None if built is None else built.stack_bytes
    return Written(
        ram,
        flash,
        elf,
        tuple(files),
        tuple(network.files),
        network.ram_weight_bytes,
        _weights_in(network),
        stack,
        stored,
    )


def _flash_in_file(network: EmittedNetwork) -> bytes | None:
    """Return the flash image in the network's weights file; None if they are linked."""
    stored = network.weights
    return None if stored is None or not stored.in_file else network.files[stored.file][HEADER_BYTES:]


def _stored(network: EmittedNetwork) -> StoredWeights:
    """Return the record of a network's weights in metadata.json."""
    storage = "linked" if network.weights is None else network.weights.storage
    if network.weights is not None and network.weights.in_file:
        file = network.weights.file
        data = network.files[file]
    else:
        file = f"{network.name}_weights.c"
        read = read_weights(network.files[file].decode())
        data = b"" if read is None else read.data
    return {"storage": storage, "file": file, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _weights_in(network: EmittedNetwork) -> dict[str, int]:
    return {m.name: m.all_bytes - m.bytes for m in network.memories if m.weights}


def _build(
    image: Image, build: BuildOptions, plan: Plan, options: PlanOptions, progress: Callable[[str], None]
) -> BuildResult:
    board = build.board
    assert board is not None
    progress(f"{image.name}: compiling for {image.target.name}, linking for {board.name}")
    try:
        built = build_image(image, board, cache=build.cache)
        require_flash(built.flash_bytes, build.flash, _constants(image, plan), plan.graph.ops)
        return built if build.ram is None else within_ram(image, built, board, build.ram, build.cache)
    except MemoryOverflowError as error:
        raise _does_not_fit(error, board, plan, options, _constants(image, plan)) from None


def _constants(image: Image, plan: Plan) -> int:
    """Return the bytes of weights in the image."""
    stored = image.networks[0].interface.weights
    return 0 if stored is not None and stored.in_file else sum(op.weight_bytes for op in plan.graph.ops)


def _require_ram(board: Board, plan: Plan, options: PlanOptions) -> None:
    """Raise `InfeasibleError` if the arena exceeds a board's RAM and no linker would refuse it."""
    available = available_ram(board)
    if plan.placed or plan.peak <= available:
        return
    remedy = f"{', '.join(_what_may_help(options))} or a board with more RAM may help"
    raise InfeasibleError(plan.peak, available, _at_peak(plan), remedy)


def _of_plan(plan: Plan, options: dict[str, object], cost: Cost) -> dict[str, object]:
    """Return the metadata on a plan."""
    return {
        "plan": {
            "peak_bytes": plan.peak,
            "baseline_peak_bytes": plan.baseline_peak,
            "bound_bytes": bound_of(plan),
            "search_bound_bytes": plan.bound,
            "macs": plan.macs,
            "baseline_macs": plan.baseline_macs,
            "cost": asdict(cost),
        },
        "memory_map": block_rows(plan),
        "operators": _operators(plan),
        "options": options,
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    return {package: package_version(package) or "not installed" for package in ("tvm-cascade", "apache-tvm", "numpy")}


def _operators(plan: Plan) -> list[dict[str, Any]]:
    segment_of = {o: k for k, s in enumerate(plan.segments) for o in s.ops}
    keys = ("name", "kind", "macs", "weight_bytes", "storage", "saved_bytes")
    return [{key: getattr(op, key) for key in keys} | {"segment": segment_of[op.index]} for op in plan.graph.ops]


def _does_not_fit(
    error: MemoryOverflowError, board: Board, plan: Plan, options: PlanOptions, constants: int
) -> InfeasibleError:
    if error.region != "ram":
        return FlashExceededError(error.needed, error.available, constants, plan.graph.ops, board.name)
    other = error.needed - plan.peak - board.reserved_ram
    helps = (
        _what_may_help(options)
        if constants
        else ["--weights file, which needs no buffers in RAM", *_what_may_help(options)]
    )
    remedy = (
        f"{board.name} has {board.ram.bytes} bytes of RAM, {board.reserved_ram} of them kept for the stack, "
        f"{other} for the rest of the image; "
    )
    remedy += f"{', '.join(helps)} or a board with more RAM may help"
    if error.flash_needed:
        remedy += f"; code and weights do not fit either: {error.flash_needed} of {board.flash.bytes} bytes of flash"
    return InfeasibleError(plan.peak, available_ram(board, max(other, 0)), _at_peak(plan), remedy)


def _at_peak(plan: Plan) -> list[str]:
    ops = [plan.graph.ops[o] for o in plan.segments[peak_segment(plan)].ops]
    return [op.name for op in ops if not op.view]


def _what_may_help(options: PlanOptions) -> list[str]:
    """List unused options that could shrink the arena; if all are used, advise a smaller network."""
    if options.layerwise:
        return ["compiling without --layerwise"]
    found = [] if options.overlap else ["compiling without --no-overlap"]
    found += [] if options.stream_input else ["--stream-input"]
    found += [] if options.max_macs > 1 else ["--max-macs above 1"]
    return found or ["a smaller network"]
