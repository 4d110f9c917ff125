"""From a plan to a finished project folder: network and board files, the linked image, host program, metadata."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tvm_cascade.cascading import Plan, PlanOptions
from tvm_cascade.cores import Core
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.micro.board import Board, available_ram
from tvm_cascade.micro.codegen import emit_network
from tvm_cascade.micro.entry import hook_symbol
from tvm_cascade.micro.host import HostPort, host_program
from tvm_cascade.micro.interface import Port
from tvm_cascade.micro.names import network_identifier
from tvm_cascade.micro.network import EmittedNetwork
from tvm_cascade.micro.project import METADATA, read_project, write_project
from tvm_cascade.micro.toolchain import MemoryOverflowError, build_project
from tvm_cascade.pipeline import Prepared, lower
from tvm_cascade.report.text import block_rows, live_bytes
from tvm_cascade.schedules.driver.lower_plan import place_of
from tvm_cascade.schedules.driver.streaming import streamed_inputs

__all__ = ["METADATA", "Written", "keep_users_files", "users_files", "write"]

HOST_FOLDER = "host"


@dataclass(frozen=True, slots=True)
class Written:
    """What a finished folder holds; sizes in bytes, None for the host."""

    ram_bytes: int | None
    flash_bytes: int | None
    elf: str | None  # relative to the folder
    files: tuple[str, ...]
    network: tuple[str, ...] = ()  # of these, the network's own
    ram_weight_bytes: int = 0  # of `ram_bytes`


def _versions() -> dict[str, str]:
    found = {}
    for package in ("tvm-cascade", "apache-tvm", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _ports(prepared: Prepared) -> tuple[list[Port], list[Port]]:
    sides = []
    for specs, tensors in (
        (prepared.io.inputs, prepared.graph.inputs),
        (prepared.io.outputs, prepared.graph.outputs),
    ):
        sides.append(
            [Port(s.name, s.dtype, s.shape, t, s.scale, s.zero_point) for s, t in zip(specs, tensors, strict=True)]
        )
    return sides[0], sides[1]


def _host_ports(plan: Plan, ports: Sequence[Port]) -> list[HostPort]:
    streamed = streamed_inputs(plan)
    return [HostPort(p.name, p.dtype, p.shape, -1 if p.tensor in streamed else place_of(plan, p.tensor)) for p in ports]


def _operators(plan: Plan) -> list[dict[str, object]]:
    segment_of = {o: k for k, s in enumerate(plan.segments) for o in s.ops}
    return [
        {
            "name": op.name,
            "kind": op.kind,
            "macs": op.macs,
            "weight_bytes": op.weight_bytes,
            "segment": segment_of[op.index],
        }
        for op in plan.graph.ops
    ]


def write(
    folder: Path,
    prepared: Prepared,
    plan: Plan,
    name: str,
    target: Core,
    board: Board | None,
    backend: str,
    optimise: str,
    options: PlanOptions,
    progress: Callable[[str], None],
    hook: bool = False,
    ram_weights: int = 0,
) -> Written:
    """Fill `folder` (which exists) with the project; `board` None writes for the host, `hook` a call between steps,
    `ram_weights` up to so many bytes of weights in RAM.

    Raises
    ------
    InfeasibleError
        The image does not fit the board.
    """
    inputs, outputs = _ports(prepared)
    name = network_identifier(name)
    network = emit_network(
        lower(prepared, plan, fetch=f"{name}_fetch", hook=hook_symbol(name) if hook else None),
        name,
        inputs,
        outputs,
        target=target.llvm if backend == "obj" and board is not None else None,
        align=max(target.align, 8),
        prelude=prepared.prelude,
        ram_weights=ram_weights,
    )
    with ThreadPoolExecutor(max_workers=1) as pool:
        counted = pool.submit(
            lambda: host_program(
                lower(prepared, plan, counted=True), _host_ports(plan, inputs), _host_ports(plan, outputs)
            )
        )
        elf, ram, flash = _image(folder, network, target, board, optimise, plan, options, progress)
        host = counted.result().save(folder / HOST_FOLDER)
    metadata = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    metadata |= {
        "plan": {
            "peak_bytes": plan.peak,
            "baseline_peak_bytes": plan.baseline_peak,
            "bound_bytes": plan.bound,
            "macs": plan.macs,
            "baseline_macs": plan.baseline_macs,
        },
        "memory_map": block_rows(plan),
        "operators": _operators(plan),
        "options": asdict(options) | {"emit": backend, "optimise": optimise, "hook": hook},
        "versions": _versions(),
        "image": {
            "elf": elf,
            "ram_bytes": ram,
            "flash_bytes": flash,
            "ram_weight_bytes": network.ram_weight_bytes,
        },
        "host": host,
        "written": _digests(folder),
    }
    (folder / METADATA).write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    return Written(ram, flash, elf, tuple(files), tuple(network.files), network.ram_weight_bytes)


_BUILT = ("build", HOST_FOLDER)  # made again at every compilation


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that a user may edit."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] not in _BUILT and str(name) != METADATA:
            found[str(name)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def users_files(folder: Path) -> tuple[str, ...]:
    """Files of a project folder that its user has added or edited since it was written."""
    try:
        written = json.loads((folder / METADATA).read_text(encoding="utf-8")).get("written", {})
    except (OSError, ValueError, AttributeError):
        written = {}
    return tuple(n for n, digest in _digests(folder).items() if written.get(n) != digest)


def keep_users_files(old: Path, new: Path, generated: Collection[str]) -> tuple[str, ...]:
    """Carry over what the user has added to `old` or edited there, but for the network's own files; returns the names."""
    kept = tuple(n for n in users_files(old) if n not in generated)
    for name in kept:
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(old / name, new / name)
    return kept


def _image(
    folder: Path,
    network: EmittedNetwork,
    target: Core,
    board: Board | None,
    optimise: str,
    plan: Plan,
    options: PlanOptions,
    progress: Callable[[str], None],
) -> tuple[str | None, int | None, int | None]:
    if board is None:
        write_host_project(folder, network, target, optimise)
        return None, None, None
    write_project(folder, network, target, board, optimise)
    progress(f"{network.name}: compiling for {target.name}, linking for {board.name}")
    try:
        built = build_project(read_project(folder), board)
    except MemoryOverflowError as error:
        raise _does_not_fit(error, board, plan, options) from None
    return str(built.elf.relative_to(folder)), built.ram_bytes, built.flash_bytes


_HOST_CMAKE = """# A static library of the network, for any C99 compiler.
cmake_minimum_required(VERSION 3.16)
project({name} C)
set(CMAKE_C_STANDARD 99)
add_library({name} STATIC {sources})
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
if(UNIX)
  target_link_libraries({name} PUBLIC m)
endif()
"""


def write_host_project(folder: Path, network: EmittedNetwork, target: Core, optimise: str) -> None:
    """The network's files, a CMakeLists.txt that makes a library of them, and metadata as board projects have it."""
    for name, content in network.files.items():
        (folder / name).write_bytes(content)
    text = _HOST_CMAKE.format(name=network.name, sources=" ".join(network.sources))
    (folder / "CMakeLists.txt").write_text(text, encoding="utf-8")
    own = {
        "interface": network.interface.to_dict(),
        "sources": network.sources,
        "objects": network.objects,
        "network_flags": network.c_flags,
        "target": target.name,
        "board": "host",
        "optimise": optimise,
    }
    (folder / METADATA).write_text(json.dumps({"project": own}, indent=2) + "\n", encoding="utf-8")


def _does_not_fit(error: MemoryOverflowError, board: Board, plan: Plan, options: PlanOptions) -> InfeasibleError:
    if error.region != "ram":
        remedy = "choose a board with more flash, or a smaller network"
        return InfeasibleError(error.needed, error.available, [f"{board.name}'s flash: code and weights"], remedy)
    other = error.needed - plan.peak - board.reserved_ram
    remedy = (
        f"{board.name} has {board.ram.bytes} bytes of RAM, {board.reserved_ram} of them kept for the stack, "
        f"{other} for the rest of the image; "
    )
    remedy += f"{', '.join(_what_may_help(options))} or a board with more RAM may help"
    if error.flash_needed:
        remedy += f"; code and weights do not fit either: {error.flash_needed} of {board.flash.bytes} bytes of flash"
    at_peak = peak_operators(plan)
    return InfeasibleError(plan.peak, available_ram(board, max(other, 0)), at_peak, remedy)


def _what_may_help(options: PlanOptions) -> list[str]:
    """Options that make an arena smaller and are not in force; a smaller network always does."""
    if options.layerwise:
        return ["compiling without --layerwise"]
    found = [] if options.overlap else ["compiling without --no-overlap"]
    found += [] if options.stream_input else ["--stream-input"]
    found += [] if options.max_macs > 1 else ["--max-macs above 1"]
    return found or ["a smaller network"]


def peak_operators(plan: Plan) -> list[str]:
    """Operators of the segment with the most live bytes."""
    rows = block_rows(plan)
    k = max(range(len(plan.segments)), key=lambda i: (live_bytes(rows, i), -i))
    return [plan.graph.ops[o].name for o in plan.segments[k].ops if not plan.graph.ops[o].view]
