"""Writing an image into the flash of a real board with whichever of pyocd, openocd and st-flash is installed."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tvm_cascade.errors import MissingToolError, ToolError, UsageError
from tvm_cascade.micro.board import Board
from tvm_cascade.micro.project import Project
from tvm_cascade.micro.toolchain import build_project, find_tool

TOOLS = ("pyocd", "openocd", "st-flash")  # in order of preference
_REMEDY = "pip install pyocd, or apt-get install openocd, or apt-get install stlink-tools (Debian, Ubuntu)"
_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class FlashResult:
    """What was written, and how."""

    elf: Path
    tool: str
    command: tuple[str, ...]


def flash_project(project: Project, board: Board, image: str = "serial", tool: str | None = None) -> FlashResult:
    """Build an image of `project` for `board` and write it to the board that is plugged in.

    `image` is `serial` (answers `run --port`) or `application` (main.c as the user has written it); `tool` is one of
    `TOOLS`, by default the first that is installed and knows the board.

    Raises `UsageError` for boards that none of them can write, `MissingToolError` if none is installed, `ToolError` if
    it fails.
    """
    if image not in ("serial", "application"):
        raise UsageError(f"unknown image {image!r}; known: serial, application")
    chosen = choose_tool(board, tool)
    elf = build_project(project, board, image=image).elf
    command = _command(chosen, board, elf)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ToolError(f"{chosen} took longer than {_TIMEOUT_S} s; is the board plugged in?") from None
    if done.returncode != 0:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise ToolError(f"{chosen} failed: {output[-1] if output else 'no message'}; is {board.name} plugged in?")
    return FlashResult(elf, chosen, command)


def choose_tool(board: Board, tool: str | None = None) -> str:
    """The program to flash `board` with: `tool` if given and able, else the first that is installed."""
    known = board.flash_tool
    able = [] if known is None else [known.pyocd and "pyocd", known.openocd and "openocd", known.stflash and "st-flash"]
    able = [str(name) for name in able if name]
    if not able:
        raise UsageError(
            f"board file of {board.name} has no flash_tool: add the names that pyocd or openocd know it by"
        )
    if tool is not None and tool not in able:
        raise UsageError(f"{board.name} cannot be flashed with {tool}; its board file knows {', '.join(able)}")
    wanted = [tool] if tool else able
    for name in wanted:
        if shutil.which(name) is not None:
            return name
    raise MissingToolError(" or ".join(wanted), _REMEDY)


def _command(tool: str, board: Board, elf: Path) -> tuple[str, ...]:
    known = board.flash_tool
    assert known is not None
    if tool == "pyocd":
        return ("pyocd", "flash", "--target", known.pyocd, str(elf))
    if tool == "openocd":
        files = tuple(word for file in known.openocd for word in ("-f", file))
        return ("openocd", *files, "-c", f"program {{{elf}}} verify reset exit")
    return ("st-flash", "--reset", "write", str(_binary(board, elf)), f"0x{board.flash.origin:08x}")


def _binary(board: Board, elf: Path) -> Path:
    """The image as bare bytes from the start of flash, which is all st-flash reads."""
    objcopy = find_tool(f"{board.family.prefix}objcopy", board.family.compiler_remedy)
    binary = elf.with_suffix(".bin")
    done = subprocess.run(
        (objcopy, "-O", "binary", str(elf), str(binary)), capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise ToolError(f"{objcopy} failed: {done.stderr.strip()}")
    return binary
