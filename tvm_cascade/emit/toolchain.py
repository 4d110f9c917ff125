"""Compile and link the C sources of a compiled folder with the GNU toolchain, by the commands of its CMakeLists.txt.

Objects and the program `<name>.elf`, which the emulator runs, are written to `build/<board>/`, with a digest of everything
that the program was built from: a run uses the existing program as long as the digest matches.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tvm_cascade.boards.board import Board
from tvm_cascade.cache import NO_CACHE, Cache
from tvm_cascade.cores import Core
from tvm_cascade.emit.board_files import add_board
from tvm_cascade.emit.cmake import compile_flags
from tvm_cascade.emit.elf import memory_use
from tvm_cascade.emit.image import Image
from tvm_cascade.emit.image_text import own_sources
from tvm_cascade.emit.main_text import serial_file
from tvm_cascade.emit.object_cache import CachedObject
from tvm_cascade.errors import MissingToolError, ToolError, UsageError
from tvm_cascade.plain_files import readable
from tvm_cascade.publish import whole_file
from tvm_cascade.search_monitor import monitor

# Programs of a folder: sources in addition to the networks', macro definitions, suffix of the build folder's name.
PROGRAMS = {
    "emulator": (
        ("main.c", "startup.c", "port_semihosting.c"),
        ("-DTVM_CASCADE_MEASURE", "-DTVM_CASCADE_EMULATOR"),
        "",
    ),
    "serial": (("serial_main.c", "startup.c"), ("-DTVM_CASCADE_MEASURE", "-DTVM_CASCADE_SERIAL"), "-serial"),
    "application": (("main.c", "startup.c"), (), "-application"),
}
_OVERFLOW = re.compile(r"region `(\w+)' overflowed by (\d+) bytes")
_COMPILE_TIMEOUT_S = 600


class MemoryOverflowError(ToolError):
    """An image too large for the board.

    Attributes
    ----------
    region : str
        `"ram"` (arena, data and the stack reserve) or `"flash"` (code and weights).
    needed, available : int
        Bytes.
    flash_needed : int
        Bytes of flash, if RAM is the region and flash too small as well; else 0.
    """

    def __init__(self, board: Board, region: str, excess: int, flash_excess: int = 0) -> None:
        self.region = region
        self.flash_needed = board.flash.bytes + flash_excess if flash_excess else 0
        self.available = board.ram.bytes if region == "ram" else board.flash.bytes
        self.needed = self.available + excess
        what = f"{board.reserved_ram} bytes of stack reserve included" if region == "ram" else "code and weights"
        super().__init__(
            f"{board.name}: the image needs {self.needed} bytes of {region} ({what}), {self.available} available; "
            + ("lower --sram or choose a board with more RAM" if region == "ram" else "choose a board with more flash")
        )


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A linked image."""

    elf: Path
    ram_bytes: int  # arena, data, bss; without the stack
    flash_bytes: int  # code, constants, initial values of data
    arena_bytes: int
    stack_bytes: int | None = None  # reserve, where it is the bound of the calls (`emit.total_ram`)

    @property
    def other_ram_bytes(self) -> int:
        """Return the bytes of RAM besides arena and stack."""
        return self.ram_bytes - self.arena_bytes


def find_tool(name: str, remedy: str) -> str:
    """Find a program's path; raise `MissingToolError` with the remedy."""
    path = shutil.which(name)
    if path is None:
        raise MissingToolError(name, remedy)
    return path


def require_uart(board: Board) -> None:
    """Raise `UsageError` if the board's file names no serial port."""
    if board.uart is None:
        raise UsageError(
            f"board {board.name} names no uart: add one to a copy of its file, and compile with that as --board"
        )


@dataclass(frozen=True, slots=True)
class Program:
    """One program in a folder: the files to compile and link, and the compiler options."""

    name: str  # of the linked file, without suffix
    folder: Path
    target: Core
    optimise: str
    sources: Mapping[str, tuple[str, ...]]  # file name -> its compiler options in addition to the target's
    objects: tuple[str, ...]
    arena_bytes: int
    memories: tuple[str, ...] = ()  # of the board, with sections of their own


def build_image(
    image: Image,
    board: Board,
    kind: str = "emulator",
    jobs: int | None = None,
    unless_current: Callable[[str], None] | None = None,
    cache: Cache = NO_CACHE,
) -> BuildResult:
    """Build a program of a compiled folder for `board`, which need not be the board it was written for.

    Parameters
    ----------
    kind : str
        `emulator` (measured through semihosting), `serial` (answers `run --port`) or `application` (main.c as its user
        has written it).
    jobs : int, optional
        Compilers that run at once; None runs one on each processor.
    unless_current : callable, optional
        If given, an existing program that is up to date is used; otherwise it is called with the reason for the build.
    cache : Cache
        Keeps compiled sources (`emit.object_cache`).

    Raises `UsageError` for a board that cannot run the target's code or lacks the serial port, `MissingToolError`
    without compiler, `MemoryOverflowError` if RAM or flash is too small, `ToolError` if the compiler refuses the
    sources.
    """
    board.require_target(image.target)
    if not image.target.family.links:
        raise UsageError(
            f"nothing is linked for {image.target.name} here: build {image.name} by the maker's tools (export), or run it in "
            "this process (--board host)"
        )
    if lacking := [name for name in image.memory_names if name not in board.memories]:
        raise UsageError(f"board {board.name} has no memory called {lacking[0]}, which {image.name} was compiled for")
    if kind == "serial":
        require_uart(board)
        if not (image.folder / "serial_main.c").is_file():
            raise UsageError(
                f"{image.folder} has no serial_main.c, as {image.board} names no uart: compile it for --board {board.name}"
            )
    program, suffix = _program(image, kind)
    return link(program, board, image.folder / "build" / (board.name + suffix), jobs, unless_current, cache)


def _program(image: Image, kind: str) -> tuple[Program, str]:
    """Return an image's program, and the suffix of the build folder."""
    beside, defines, suffix = PROGRAMS[kind]
    shared = tuple(f"-D{name}" for name in image.defines)
    own = dict.fromkeys((*beside, *own_sources(image)), (*defines, *shared))
    if kind == "serial" and image.several:
        for k, network in enumerate(image.networks):
            serve = (f"-DTVM_CASCADE_SERVE=serve_{network.name}", *(["-DTVM_CASCADE_OTHER"] if k else []))
            own[serial_file(network)] = (*defines, *shared, *serve)
    elif kind == "serial":  # serial_main.c may be one that the user has edited for an earlier network
        digest = f"-DNETWORK_DIGEST=0x{image.networks[0].interface.digest:08X}u"
        own = {source: (*options, digest) for source, options in own.items()}
    program = Program(
        name=image.name,
        folder=image.folder,
        target=image.target,
        optimise=image.optimise,
        sources={**{source: (*n.c_flags, *shared) for n in image.networks for source in n.sources}, **own},
        objects=tuple(name for network in image.networks for name in network.objects),
        arena_bytes=image.arena_bytes,
        memories=image.memory_names,
    )
    return program, suffix


def link(
    program: Program,
    board: Board,
    output: Path,
    jobs: int | None = None,
    unless_current: Callable[[str], None] | None = None,
    cache: Cache = NO_CACHE,
) -> BuildResult:
    """Compile the sources of `program` and link them into `output`; for the arguments see `build_image`."""
    folder, output = program.folder.absolute(), output.absolute()  # a name that begins with a dash is no option
    board_folder = add_board(folder, board, program.memories)
    elf, stamp = output / f"{program.name}.elf", output / f"{program.name}.made-of"
    digest = _digest(program, folder, board_folder)
    if unless_current is not None:
        if elf.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == digest:
            return BuildResult(elf, *memory_use(elf, board), program.arena_bytes)
        changed = f": its files or {board_folder.relative_to(folder)} changed since it was" if stamp.is_file() else ""
        unless_current(f"{program.name}: linking for {board.name}{changed}")
    target = program.target
    gcc = find_tool(target.family.gcc, target.family.compiler_remedy)
    output.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    made = _compile(gcc, program, (folder, board_folder), output, jobs, cache)
    link_flags = (*target.gcc_flags, *target.family.link_flags, f"-T{board_folder / 'link.ld'}")
    inputs = sorted([*made, *(str(folder / one) for one in program.objects)])
    partial = output / f"{program.name}.partial"  # a linker that is killed leaves half a program
    _link((gcc, *link_flags, *inputs, "-lm", "-o", str(partial)), board)
    partial.replace(elf)
    with whole_file(stamp) as written:
        written.write_text(digest, encoding="utf-8")
    return BuildResult(elf, *memory_use(elf, board), program.arena_bytes)


def _compile(
    gcc: str, program: Program, includes: Sequence[Path], output: Path, jobs: int | None, cache: Cache
) -> list[str]:
    """Compile every source; returns the objects."""
    folder = program.folder.absolute()
    flags = (*program.target.gcc_flags, *compile_flags(program.optimise))
    watching, done = monitor(), count(1)  # that of this thread, for the threads below

    def compile_one(source: str) -> str:
        made = output / f"{source}.o"
        options = (*flags, *program.sources[source])
        entry = CachedObject(cache, gcc, options, folder / source, tuple(includes))
        if not entry.restore(made):
            where = (*(f"-I{include}" for include in includes), *entry.list_headers(made))
            run_tool((gcc, *options, *where, "-c", str(folder / source), "-o", str(made)))
            entry.keep(made)
        watching.report("C files", next(done), len(program.sources), unit="")
        return str(made)

    # Largest first: the weights' file takes as long as all others together.
    order = sorted(program.sources, key=lambda source: -(folder / source).stat().st_size)
    with ThreadPoolExecutor(max_workers=jobs or os.cpu_count()) as pool:
        return list(pool.map(compile_one, order))


def _digest(program: Program, folder: Path, board_folder: Path) -> str:
    """Hash everything a program is built from by SHA-256: options, sources, headers, objects, the board's files."""
    target = program.target
    options = (*target.gcc_flags, *target.family.link_flags, *compile_flags(program.optimise))
    found = hashlib.sha256(repr((options, sorted((k, tuple(v)) for k, v in program.sources.items()))).encode())
    headers = sorted(path.name for path in folder.glob("*.h"))
    board = sorted(str(path.relative_to(folder)) for path in board_folder.iterdir() if not path.is_dir())
    for file in sorted({*program.sources, *program.objects, *headers, *board}):
        content = readable(folder / file).read_bytes()
        found.update(f"{file} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _link(command: Sequence[str], board: Board) -> None:
    try:
        run_tool(command)
    except ToolError as error:
        overflows = {match[1].lower(): int(match[2]) for match in _OVERFLOW.finditer(str(error))}
        if "ram" in overflows:
            raise MemoryOverflowError(board, "ram", overflows["ram"], overflows.get("flash", 0)) from None
        if "flash" in overflows:
            raise MemoryOverflowError(board, "flash", overflows["flash"]) from None
        raise


def run_tool(command: Sequence[str]) -> str:
    """Run a toolchain program and return the printed text; raise `ToolError` with the messages if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ToolError(f"{command[0]} took longer than {_COMPILE_TIMEOUT_S} s: {' '.join(command)}") from None
    if done.returncode != 0:
        raise ToolError(f"{Path(command[0]).name} failed:\n{done.stderr.strip()}")
    return done.stdout
