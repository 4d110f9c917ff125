"""The emitted program of a compiled folder as a function of many inferences: in this process, in the emulator, on a board."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tvm_cascade import extras
from tvm_cascade.boards.board import load_board
from tvm_cascade.boards.machines import core_of
from tvm_cascade.emit.board_files import find_board
from tvm_cascade.emit.host import HostProgram, host_function
from tvm_cascade.emit.image import METADATA, Image, host_records
from tvm_cascade.emit.toolchain import build_image, require_uart
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.runs import emulator
from tvm_cascade.runs.desk import resolve_port
from tvm_cascade.runs.run_image import serial_options
from tvm_cascade.runs.serial_run import run_serial

HOST = "host"
Feed = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Program:
    """A program for several inferences in a call."""

    run: Callable[[Sequence[Feed]], list[Feed]]  # inputs by name -> outputs by name
    most: int  # inferences in one call that keep progress visible and memory small


def target_for(board: str) -> str:
    """Return a board's default target: its own core, or the target with most of the core's instructions.

    Raises `UsageError` for an unknown board.
    """
    if board == HOST:
        return HOST
    return core_of(load_board(board)).name


def require_board(board: str, port: str | None) -> str | None:
    """Return the serial port of `board`, None if it is emulated; `port` may be "auto".

    Raises `UsageError` for a board that is unknown, without emulator or without serial port, and for a port with no
    board or several; `MissingToolError` without the emulator or pyserial.
    """
    if port is None:
        if board != HOST:
            emulator.find_qemu(load_board(board))
        return None
    extras.need("pyserial")
    if board == HOST:
        raise UsageError(
            "--port needs --board: the board that is behind it, and that `flash` has written the program to"
        )
    require_uart(load_board(board))
    return resolve_port(port)


def open_program(image: Image, board: str, timeout_s: float, port: str | None = None) -> Program:
    """Open the network of a compiled folder, run on `board` ("host": in this process), behind `port` or emulated.

    Raises `LoadError` if the folder lacks the program, `MissingToolError` without the emulator.
    """
    if port is not None:
        return _on_desk(image, board, timeout_s, port)
    return _host(image) if board == HOST else _emulated(image, board, timeout_s)


def _host(image: Image) -> Program:
    records = host_records(image)
    if image.name not in records:
        raise LoadError(image.folder / METADATA, f"has no host program of {image.name}; compile again")
    record = records[image.name]
    infer = host_function(HostProgram.load(Path(record.folder), record.data))

    return Program(lambda feeds: [infer(feed) for feed in feeds], 16)


def _on_desk(image: Image, name: str, timeout_s: float, port: str) -> Program:
    (network,) = image.networks
    options = serial_options(image, find_board(image.folder, name), timeout_s)

    def run(feeds: Sequence[Feed]) -> list[Feed]:
        arrays = [[feed[spec.name] for spec in network.inputs] for feed in feeds]
        done = run_serial(port, network.interface, arrays, options)
        return [dict(zip((spec.name for spec in network.outputs), one, strict=True)) for one in done.outputs]

    return Program(run, 16)


def _emulated(image: Image, name: str, timeout_s: float) -> Program:
    board = find_board(image.folder, name)
    elf = build_image(image, board, unless_current=lambda _line: None).elf
    inputs = [label for label, _ in image.named_inputs()]
    outputs = [label for label, _ in image.named_outputs()]

    def run(feeds: Sequence[Feed]) -> list[Feed]:
        arrays = [[feed[name] for name in inputs] for feed in feeds]
        done = emulator.run(elf, board, image, arrays, timeout_s * (len(feeds) + 1))
        return [dict(zip(outputs, one, strict=True)) for one in done.outputs]

    return Program(run, 16)
