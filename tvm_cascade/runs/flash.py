"""Write an image to the flash of a real board with pyocd, openocd, st-flash or esptool, whichever is installed, or by
copying a .uf2 file to the drive that the board's boot ROM shows.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tvm_cascade.boards.board import Board, list_boards, load_board
from tvm_cascade.boards.target_table import programmers
from tvm_cascade.emit.board_files import find_board
from tvm_cascade.emit.elf import symbol_address
from tvm_cascade.emit.image import Image, read_image
from tvm_cascade.emit.toolchain import build_image, find_tool, run_tool
from tvm_cascade.errors import MissingToolError, ToolError, UsageError
from tvm_cascade.runs.desk import seen
from tvm_cascade.runs.uf2 import boot_drives, write_uf2

TOOLS = ("pyocd", "openocd", "st-flash", "esptool", "uf2")  # in order of preference; uf2 needs no program
_REMEDIES = {
    "pyocd": "pip install pyocd",
    "openocd": "apt-get install openocd (Debian, Ubuntu)",
    "st-flash": "apt-get install stlink-tools (Debian, Ubuntu)",
    "esptool": "pip install esptool",
}
_TIMEOUT_S = 300.0
# list the debug probes
_LISTS = {"pyocd": "pyocd list", "openocd": "lsusb -v", "st-flash": "st-info --probe", "esptool": "esptool chip_id"}
_PROBE = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]*\Z")
_STAMP = re.compile(r"^(?:\d{7} [A-Z] |\d{4}-\d\d-\d\dT[\d:]+ )")  # time stamps of pyocd's and st-flash's lines
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_COMPLAINT = re.compile(
    r"\berror\b|\bfail|^\d+ [CE] |\bunable\b|couldn't|\bno (?:connected|available|device)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class FlashResult:
    """A flashed image, the flash programmer and the command line."""

    elf: Path
    tool: str
    command: tuple[str, ...]


def flash_folder(
    folder: Path, board: str | None, kind: str = "serial", tool: str | None = None, probe: str | None = None
) -> FlashResult:
    """Flash the compiled `folder`; `board` None is the board it was compiled for. Raises as `flash_image`."""
    image = read_image(folder)
    return flash_image(image, find_board(folder, board or image.board), kind, tool, probe)


def flash_image(
    image: Image,
    board: Board,
    kind: str = "serial",
    tool: str | None = None,
    probe: str | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> FlashResult:
    """Build a program of `image` for `board` and write this to the plugged-in board.

    Parameters
    ----------
    kind : str
        `serial` (answers `run --port`) or `application` (main.c as its user has written it).
    tool : str, optional
        One of `TOOLS`; None means uf2 if the board's drive is mounted, else the first that supports the board and is
        installed.
    probe : str, optional
        Serial number of the debug probe (esptool: the serial port), which is needed where several are plugged in.
    timeout_s : float
        Seconds that the tool may take.

    Raises `UsageError` if no tool can write the board, `MissingToolError` if no such tool is installed, `ToolError` if
    the tool fails or takes too long.
    """
    if kind not in ("serial", "application"):
        raise UsageError(f"unknown image {kind!r}; known: serial, application")
    if probe is not None and not _PROBE.match(probe):
        raise UsageError(f"{probe!r} is no serial number of a debug probe: letters, digits and ':._-' only")
    chosen = choose_tool(board, tool)
    elf = build_image(image, board, kind).elf
    weights = _weights(image)
    if chosen == "uf2":
        if weights:
            raise UsageError(
                f"{weights[0].name} does not go through the boot ROM, which takes an image: use another --tool"
            )
        return FlashResult(_copied(board, elf), chosen, ())
    if weights:
        command = _command(chosen, board, _with_weights(board, elf, weights[0]).resolve(), probe, _first(board))
    else:
        command = _command(chosen, board, elf.resolve(), probe)
    _write(command, chosen, board, probe, timeout_s)
    return FlashResult(elf, chosen, command)


def _weights(image: Image) -> tuple[Path, ...]:
    """Return the network's weights file, if it has one, which is written behind the image."""
    stored = (network.interface.weights for network in image.networks)
    return tuple(image.folder / one.file for one in stored if one is not None and one.in_file)


def _write(command: tuple[str, ...], chosen: str, board: Board, probe: str | None, timeout_s: float) -> None:
    """Run a tool that writes to the board; raise `ToolError` if it fails or takes too long."""
    try:
        # no input: a tool that asks which probe to take must fail, not wait
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as expired:
        said = _complaint(_text(expired.stdout), _text(expired.stderr))
        raise ToolError(
            f"{chosen} took longer than {timeout_s:g} s (its last words: {said}); is {board.name} plugged in?{seen()}"
        ) from None
    if done.returncode != 0:
        said = _complaint(_text(done.stdout), _text(done.stderr))
        raise ToolError(f"{chosen} failed: {said}; {_advice(chosen, board, said, probe)}")


def _text(output: bytes | None) -> str:
    return _COLOURS.sub("", (output or b"").decode("utf-8", "replace"))


def _complaint(out: str, err: str) -> str:
    """Return the first line of a tool's output that names an error, without the time stamp; else the last line."""
    lines = [line.strip() for line in (*err.splitlines(), *out.splitlines()) if line.strip()]
    told = [line for line in lines if _COMPLAINT.search(line)]
    return _STAMP.sub("", (told or lines[-1:] or ["no message"])[0])


def _advice(tool: str, board: Board, said: str, probe: str | None) -> str:
    known = board.flash_tool
    if tool == "pyocd" and known is not None and "not recognized" in said:
        return f"`pyocd pack install {known.pyocd}` teaches pyocd this chip"
    if probe is None:
        return (
            f"is {board.name} plugged in? Where several probes are, --probe chooses one (`{_LISTS[tool]}` lists them)"
        ) + seen()
    return f"is the probe {probe} plugged in? (`{_LISTS[tool]}` lists them)" + seen()


def choose_tool(board: Board, tool: str | None = None) -> str:
    """Choose the program to flash `board`: `tool` if given, else the first in `TOOLS` that supports the board and is
    installed.

    Raises `UsageError` if no program, or not `tool`, supports the board, `MissingToolError` if none is installed.
    """
    if tool is not None and tool not in TOOLS:
        raise UsageError(f"unknown tool {tool!r}; known: {', '.join(TOOLS)}")
    known = board.flash_tool
    able = [] if known is None else list(programmers(board))
    if not able:
        others = [name for name in list_boards() if load_board(name).flash_tool is not None]
        raise UsageError(
            f"{board.name} cannot be flashed: its board file has no flash_tool. --board takes one that has "
            f"({', '.join(others)}), or a board file of your own with the names that pyocd or openocd know the part by "
            "(tutorials/06_add_a_board.py)"
        )
    if tool is not None and tool not in able:
        raise UsageError(f"{board.name} cannot be flashed with {tool}; its board file knows {', '.join(able)}")
    wanted = [tool] if tool else able
    if "uf2" in wanted and boot_drives():
        return "uf2"
    for name in wanted:
        if name == "uf2" or shutil.which(name) is not None:
            return name
    raise MissingToolError(" or ".join(wanted), ", or ".join(_REMEDIES[name] for name in wanted))


def _command(tool: str, board: Board, elf: Path, probe: str | None, address: int | None = None) -> tuple[str, ...]:
    """Build the command line of pyocd 0.30 or later, OpenOCD 0.12 or later, stlink 1.6 or later.

    With an `address` the file is no ELF, but the bytes from there on. All three reset the board at the end; OpenOCD and
    st-flash verify by reading back.
    """
    known = board.flash_tool
    assert known is not None
    if tool == "pyocd":
        chosen = ("--probe", probe) if probe else ()
        place = () if address is None else ("--format", "bin", "--base-address", f"0x{address:x}")
        return ("pyocd", "flash", "--no-wait", *chosen, *place, "--target", known.pyocd, str(elf))
    if tool == "openocd":
        files = tuple(word for file in known.openocd for word in ("-f", file))
        chosen = ("-c", f"adapter serial {probe}") if probe else ()
        place = "" if address is None else f"0x{address:x} "
        return ("openocd", *files, *chosen, "-c", f"program {{{elf}}} {place}verify reset exit")
    if tool == "esptool":
        chosen = ("--port", probe) if probe else ()
        binary = _binary(board, elf) if address is None else elf
        return ("esptool", "--chip", known.esptool, *chosen, "write_flash", "0", str(binary))
    chosen = ("--serial", probe) if probe else ()
    binary = _binary(board, elf) if address is None else elf
    return ("st-flash", "--reset", *chosen, "write", str(binary), f"0x{address or board.flash.origin:08x}")


def _copied(board: Board, elf: Path) -> Path:
    """Write the image as .uf2 and copy this file to the drive of the board's boot ROM; return the file's path."""
    file = write_uf2(board, elf)
    drives = boot_drives()
    if len(drives) != 1:
        shown = "no drive of a boot ROM is" if not drives else "several drives of boot ROMs are"
        raise ToolError(
            f"{file} is written, but {shown} mounted here: hold BOOTSEL while you plug {board.name} in, then run this "
            "again, or copy the file to the drive yourself"
        )
    try:
        shutil.copy(file, drives[0])
    except OSError as error:
        raise ToolError(f"{file} cannot be copied to {drives[0]}: {error.strerror}") from None
    return file


def _first(board: Board) -> int:
    """Return the address of an image's first byte."""
    return min(part.origin for part in (board.flash, board.boot, board.vectors) if part is not None)


def _with_weights(board: Board, elf: Path, weights: Path) -> Path:
    """Write image and weights as one binary from the start of flash: tools erase whole sectors, which both may share."""
    start = symbol_address(elf, "__weights_start") - (board.flash_data or board.flash.origin)
    start += board.flash.origin - _first(board)
    whole, binary = elf.with_suffix(".with-weights.bin"), _binary(board, elf).read_bytes()
    whole.write_bytes(binary.ljust(start, b"\xff") + weights.read_bytes())
    return whole


def _binary(board: Board, elf: Path) -> Path:
    """Convert the image to raw binary from the start of flash, the only format for st-flash."""
    objcopy = find_tool(f"{board.family.prefix}objcopy", board.family.compiler_remedy)
    binary = elf.with_suffix(".bin")
    run_tool((objcopy, "-O", "binary", str(elf), str(binary)))
    return binary
