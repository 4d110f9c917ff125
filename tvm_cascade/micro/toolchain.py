"""Compiling and linking a project folder with Arm's GNU toolchain: the same commands as the folder's CMakeLists.txt.

Objects land in `build/<board>/`, beside the image `<name>.elf`. The image is the one that the emulator measures. A digest of
what it was made of lies beside it: a run takes the image that is there as long as that holds.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tvm_cascade.cores import Core
from tvm_cascade.errors import MissingToolError, ToolError, UsageError
from tvm_cascade.micro.board import Board
from tvm_cascade.micro.cmake import compile_flags
from tvm_cascade.micro.elf import memory_use
from tvm_cascade.micro.network import EmittedNetwork
from tvm_cascade.micro.project import Project, add_board, write_host_project, write_project
from tvm_cascade.publish import whole_file

# Images of a folder: sources beside the network's, definitions, suffix of the file name.
IMAGES = {
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
    """An image that does not fit its board.

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

    @property
    def other_ram_bytes(self) -> int:
        """RAM beside arena and stack."""
        return self.ram_bytes - self.arena_bytes


def find_tool(name: str, remedy: str) -> str:
    """Path of a program; raises `MissingToolError` with the remedy."""
    path = shutil.which(name)
    if path is None:
        raise MissingToolError(name, remedy)
    return path


def build(
    folder: Path, network: EmittedNetwork, target: Core, board: Board, optimise: str = "balanced", jobs: int = 2
) -> BuildResult:
    """Write the project folder of `network` and build its image for `board`.

    Raises `MissingToolError` without a compiler, `MemoryOverflowError` where RAM or flash is too small, `ToolError` if
    the compiler refuses the sources.
    """
    find_tool(target.family.gcc, target.family.compiler_remedy)
    return build_project(write_project(folder, network, target, board, optimise), board, jobs)


def build_host(folder: Path, network: EmittedNetwork, sanitize: bool = False, compiler: str = "gcc") -> Path:
    """Build a measuring main.c around `network` for this machine in `folder` and return the program.

    The program reads inputs.bin and writes results.bin in its working directory, as the emulated image does. With
    `sanitize`, AddressSanitizer and UndefinedBehaviorSanitizer stop it at the first error. Networks emitted as objects
    cannot be built for another machine: emit C.
    """
    if network.objects:
        raise UsageError(f"{network.name} was emitted as an object for its target: use --emit c to build it here")
    gcc = find_tool(compiler, f"apt-get install {compiler} (Debian, Ubuntu) or xcode-select --install (macOS)")
    write_host_project(folder, network)
    sanitizers = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    program = folder / network.name
    sources = [str(folder / name) for name in (*network.sources, "main.c", "port_host.c")]
    checks = sanitizers if sanitize else ()
    flags = (*compile_flags("balanced"), *checks, *network.c_flags, "-DTVM_CASCADE_MEASURE", f"-I{folder}")
    _run_tool((gcc, *flags, *sources, "-lm", "-o", str(program)))
    return program


def require_uart(board: Board, image: str = "serial") -> None:
    """Raise `UsageError` if the image needs a serial port and the board's file names none."""
    if image == "serial" and board.uart is None:
        raise UsageError(f"board {board.name} names no uart; add one to its board file")


def build_project(
    project: Project,
    board: Board,
    jobs: int = 2,
    image: str = "emulator",
    unless_current: Callable[[str], None] | None = None,
) -> BuildResult:
    """Build an image of an existing folder for `board`, which need not be the board it was compiled for.

    `image` is `emulator` (measured through semihosting), `serial` (answers `run --port`) or `application` (main.c as
    the user has written it). With `unless_current` an image that was made of the same files and board is taken as it is, and
    the function is told why where there is none.
    """
    board.require_target(project.target)
    require_uart(board, image)
    own_sources, defines, suffix = IMAGES[image]
    if image == "serial":  # serial_main.c may be one that the user has edited for an earlier network
        defines = (*defines, f"-DNETWORK_DIGEST=0x{project.interface.digest:08X}u")
    return build_image(
        name=project.name,
        folder=project.folder,
        target=project.target,
        board=board,
        optimise=project.optimise,
        sources={**{s: project.network_flags for s in project.sources}, **{s: defines for s in own_sources}},
        objects=project.objects,
        arena_bytes=project.interface.arena_bytes,
        output=project.folder / "build" / (board.name + suffix),
        jobs=jobs,
        unless_current=unless_current,
    )


def build_image(
    *,
    name: str,
    folder: Path,
    target: Core,
    board: Board,
    optimise: str,
    sources: Mapping[str, Sequence[str]],
    objects: Sequence[str],
    arena_bytes: int,
    output: Path,
    jobs: int = 2,
    unless_current: Callable[[str], None] | None = None,
) -> BuildResult:
    """Compile `sources` (files of `folder`, each with options of its own), link them with `objects` into `output`."""
    folder, output = folder.absolute(), output.absolute()  # a name that begins with a dash is no option
    board_folder = add_board(folder, board)
    elf, stamp = output / f"{name}.elf", output / f"{name}.made-of"
    options = (*target.gcc_flags, *target.family.link_flags, *compile_flags(optimise))
    digest = _digest(folder, board_folder, options, sources, objects)
    if unless_current is not None:
        if elf.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == digest:
            return BuildResult(elf, *memory_use(elf, board), arena_bytes)
        changed = f": its files or {board_folder.relative_to(folder)} changed since it was" if stamp.is_file() else ""
        unless_current(f"{name}: linking for {board.name}{changed}")
    gcc = find_tool(target.family.gcc, target.family.compiler_remedy)
    output.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    flags = (*target.gcc_flags, *compile_flags(optimise), f"-I{folder}", f"-I{board_folder}")

    def compile_one(source: str) -> str:
        made = str(output / f"{source}.o")
        _run_tool((gcc, *flags, *sources[source], "-c", str(folder / source), "-o", made))
        return made

    # Largest first: the weights' file takes as long as all others together.
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        made = list(pool.map(compile_one, sorted(sources, key=lambda source: -(folder / source).stat().st_size)))
    link_flags = (*target.gcc_flags, *target.family.link_flags, f"-T{board_folder / 'link.ld'}")
    inputs = sorted([*made, *(str(folder / one) for one in objects)])
    partial = output / f"{name}.partial"  # a linker that is killed leaves half an image
    _link((gcc, *link_flags, *inputs, "-lm", "-o", str(partial)), board)
    partial.replace(elf)
    with whole_file(stamp) as written:
        written.write_text(digest, encoding="utf-8")
    return BuildResult(elf, *memory_use(elf, board), arena_bytes)


def _digest(
    folder: Path,
    board_folder: Path,
    options: Sequence[str],
    sources: Mapping[str, Sequence[str]],
    objects: Sequence[str],
) -> str:
    """SHA-256 of what an image is made of: options, sources, headers, objects, the board's files."""
    found = hashlib.sha256(repr((tuple(options), sorted((k, tuple(v)) for k, v in sources.items()))).encode())
    headers = sorted(path.name for path in folder.glob("*.h"))
    board = sorted(str(path.relative_to(folder)) for path in board_folder.iterdir() if path.is_file())
    for file in sorted({*sources, *objects, *headers, *board}):
        content = (folder / file).read_bytes()
        found.update(f"{file} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _link(command: Sequence[str], board: Board) -> None:
    try:
        _run_tool(command)
    except ToolError as error:
        overflows = {match[1].lower(): int(match[2]) for match in _OVERFLOW.finditer(str(error))}
        if "ram" in overflows:
            raise MemoryOverflowError(board, "ram", overflows["ram"], overflows.get("flash", 0)) from None
        if "flash" in overflows:
            raise MemoryOverflowError(board, "flash", overflows["flash"]) from None
        raise


def _run_tool(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ToolError(f"{command[0]} took longer than {_COMPILE_TIMEOUT_S} s: {' '.join(command)}") from None
    if done.returncode != 0:
        raise ToolError(f"{Path(command[0]).name} failed:\n{done.stderr.strip()}")
