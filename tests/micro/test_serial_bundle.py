"""The serial protocol of several networks in one image, through emulated UARTs, with a board that is reset."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tvm_cascade.boards.board import load_board
from tvm_cascade.cores import get_core
from tvm_cascade.emit.bundle import write_bundle
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.toolchain import build_image
from tvm_cascade.emit.write_image import BuildOptions, write_image
from tvm_cascade.errors import UsageError
from tvm_cascade.runs import serial_run as wire
from tvm_cascade.runs.emulator import FirmwareError
from tvm_cascade.runs.serial_link import SerialLink
from tvm_cascade.runs.serial_run import SerialOptions, run_serial
from tvm_cascade.testing.serial_lines import BadLine, EmulatedBoard

BOARD = load_board("mps2-an386")
UNKNOWN = struct.pack("<I", 2)
Inputs = list[tuple[np.ndarray, np.ndarray]]


def build(folder: Path, networks: list[EmittedNetwork]) -> Path:
    """The serial image of `networks`."""
    projects = [
        write_image(folder / network.name, (network,), BuildOptions(get_core("cortex-m4"), BOARD))
        for network in networks
    ]
    return build_image(write_bundle(folder / "b", projects, BOARD), BOARD, kind="serial").elf


@pytest.fixture
def toys(
    toy: EmittedNetwork,
    make_toy: Callable[..., EmittedNetwork],
    streaming_toy: EmittedNetwork,
    renamed: Callable,
    emulator_tools: None,
) -> Callable[..., list[EmittedNetwork]]:
    """The toy, its form that asks for rows, and one with `extra` in its code."""
    return lambda name, extra: [toy, renamed(streaming_toy, "rows"), renamed(make_toy(extra=extra), name)]


@pytest.fixture
def check(reference: Callable) -> Callable[[tuple, Inputs], None]:
    """`check(outputs, inputs)` compares with numpy."""

    def check_it(outputs: tuple, inputs: Inputs) -> None:
        for (output,), (a, b) in zip(outputs, inputs, strict=True):
            np.testing.assert_array_equal(output, reference(a, b))

    return check_it


def test_networks_run_one_after_the_other(tmp_path: Path, toys: Callable, toy_inputs: Inputs, check: Callable) -> None:
    """In any order, and back again; a fault of one is told as that of a single network."""
    networks = toys("bad", "__builtin_trap();")
    toy, _, bad = networks
    elf = build(tmp_path, networks)
    running = EmulatedBoard(BOARD, elf)
    common = {"timeout_s": 30, "answer_s": 0.1}
    try:
        for k in (1, 0, 1):
            result = run_serial(
                running.port, networks[k].interface, toy_inputs, SerialOptions(network_number=k, **common)
            )
            check(result.outputs, toy_inputs)
        for wrong in (1, 3):
            with pytest.raises(UsageError, match="holds another network"):
                run_serial(running.port, toy.interface, toy_inputs, SerialOptions(network_number=wrong, **common))
        prefix = BOARD.family.prefix
        with pytest.raises(FirmwareError, match="faulted in bad_run"):
            run_serial(
                running.port,
                bad.interface,
                toy_inputs,
                SerialOptions(elf=elf, tool_prefix=prefix, network_number=2, **common),
            )
    finally:
        running.stop()


def test_a_board_that_was_reset_runs_no_other_network(
    tmp_path: Path, toys: Callable, toy_inputs: Inputs, check: Callable
) -> None:
    """The first network takes the inputs of the others and computes something else: its outputs must never come."""
    *others, first = toys("first", "y[0] ^= 1;")
    networks = [first, *others]
    elf = build(tmp_path, networks)
    inputs = toy_inputs * 4
    line = BadLine(tmp_path / "ttyBAD", lambda: EmulatedBoard(BOARD, elf), error_rate=0.0, events={})
    try:
        for k in (1, 2):
            start = line.carried
            line.events |= {start + position: "reset" for position in (180, 420, 900, 1500)}
            result = run_serial(
                str(line.path),
                networks[k].interface,
                inputs,
                SerialOptions(timeout_s=60, answer_s=0.1, network_number=k),
            )
            check(result.outputs, inputs)
        assert line.happened == ["reset"] * 8
    finally:
        line.stop()


def test_nothing_runs_before_a_network_is_selected(
    tmp_path: Path, toy: EmittedNetwork, renamed: Callable, emulator_tools: None
) -> None:
    """Whatever the moment of a reset, what follows it is answered, and not by a network."""
    running = EmulatedBoard(BOARD, build(tmp_path, [toy, renamed(toy, "second")]))
    run = struct.pack("<II", 7, wire.crc32c(bytes(48)))
    begin = (wire.BEGIN, struct.pack("<I", 0x5A))
    later = (
        (wire.RUN, run),
        (wire.ROW, bytes(12)),
        (wire.CONTINUE, bytes(12)),
        (wire.READ, struct.pack("<III", 7, 0, 16)),
    )
    try:
        with SerialLink(running.port, timeout_s=30) as link:
            for kind, payload in ((wire.HELLO, b""), begin, (wire.WRITE, bytes(52)), *later):
                assert link.request(kind, payload) == UNKNOWN
            assert link.request(wire.SELECT, struct.pack("<I", 1)) == b""
            for kind, payload in (begin, (wire.WRITE, bytes(52))):
                assert link.request(kind, payload) == b""
            assert struct.unpack_from("<Ii", link.request(wire.RUN, run)) == (0, 0)
    finally:
        running.stop()
