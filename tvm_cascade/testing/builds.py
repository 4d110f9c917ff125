"""An emitted network built: for a board, and for this machine, where sanitizers can watch it."""

from __future__ import annotations

from pathlib import Path

from tvm_cascade.boards.board import Board
from tvm_cascade.cores import Core, get_core
from tvm_cascade.emit.board_files import board_header
from tvm_cascade.emit.cmake import compile_flags
from tvm_cascade.emit.image import Image
from tvm_cascade.emit.main_text import main_source
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.template import template
from tvm_cascade.emit.toolchain import BuildResult, build_image, find_tool, run_tool
from tvm_cascade.emit.write_image import BuildOptions, write_files, write_image
from tvm_cascade.errors import UsageError


def build(folder: Path, network: EmittedNetwork, target: Core, board: Board) -> BuildResult:
    """Write the folder of one network and build its measured program; raises as `write_image` and `build_image`."""
    find_tool(target.family.gcc, target.family.compiler_remedy)
    return build_image(write_image(folder, (network,), BuildOptions(target, board)), board)


def build_host(folder: Path, network: EmittedNetwork, sanitize: bool = False, compiler: str = "gcc") -> Path:
    """Build a measuring main.c around `network` for this machine in `folder` and return the program.

    The program reads inputs.bin and writes results.bin in its working directory, as the emulated image does. With
    `sanitize`, AddressSanitizer and UndefinedBehaviorSanitizer stop it at the first error. Networks emitted as objects
    cannot be built for another machine: emit C.
    """
    if network.objects:
        raise UsageError(f"{network.name} was emitted as an object for its target: use --emit c to build it here")
    gcc = find_tool(compiler, f"apt-get install {compiler} (Debian, Ubuntu) or xcode-select --install (macOS)")
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder, network.files)
    write_files(folder, {name: template(name) for name in ("port.h", "port_host.c", "measure.h")})
    image = Image(folder, (network.record,), get_core("host"), "host", "balanced")
    write_files(folder, {"main.c": main_source(image), "board.h": board_header(None)})
    sanitizers = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    program = folder / network.name
    sources = [str(folder / name) for name in (*network.sources, "main.c", "port_host.c")]
    checks = sanitizers if sanitize else ()
    flags = (*compile_flags("balanced"), *checks, *network.c_flags, "-DTVM_CASCADE_MEASURE", f"-I{folder}")
    run_tool((gcc, *flags, *sources, "-lm", "-o", str(program)))
    return program
