"""Boards on the desk: lists of what is plugged in, the port that is meant, and text that boards send."""

from __future__ import annotations

import os
import random
import threading
import tty
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from serial.tools.list_ports_common import ListPortInfo

from tvm_cascade.boards.board import list_boards, load_board
from tvm_cascade.boards.machines import core_of
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.cores import get_core
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.toolchain import build_image
from tvm_cascade.emit.write_image import BuildOptions, write_image
from tvm_cascade.errors import ToolError, UsageError
from tvm_cascade.runs.desk import resolve_port, serial_ports
from tvm_cascade.runs.flash import flash_image
from tvm_cascade.runs.serial_link import EXIT, FLAG, REPLY, TEXT, SerialLink, TextReader, encode

NUCLEO = ("/dev/ttyACM0", 0x0483, "STM32 STLink", "066DFF525750")
PICO = ("/dev/ttyACM1", 0x2E8A, "Pico", None)
Plug = Callable[..., None]


def call(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Plug:
    """Plugs in boards; a port on the mainboard is there always."""

    def plugged(*boards: tuple[str, int, str, str | None]) -> None:
        found = [ListPortInfo("/dev/ttyS0")]
        for device, vendor, description, number in boards:
            info = ListPortInfo(device)
            info.vid, info.description, info.serial_number = vendor, description, number
            found.append(info)
        monkeypatch.setattr("serial.tools.list_ports.comports", lambda: found)

    plugged()
    return plugged


def test_what_is_plugged_in(plug: Plug) -> None:
    assert serial_ports() == ()
    plug(PICO, NUCLEO)
    assert list(map(str, serial_ports())) == [
        "/dev/ttyACM0 (STM32 STLink, ST-Link, serial number 066DFF525750)",
        "/dev/ttyACM1 (Pico)",
    ]


def test_the_one_that_is_plugged_in_is_meant(plug: Plug) -> None:
    plug(NUCLEO)
    assert resolve_port("auto") == "/dev/ttyACM0"
    assert resolve_port("/dev/ttyS0") == "/dev/ttyS0"
    plug(NUCLEO, PICO)
    with pytest.raises(UsageError, match=r"which serial port\? Plugged in: /dev/ttyACM0 \(STM32 .*, /dev/ttyACM1"):
        resolve_port("auto")


@pytest.mark.parametrize("command", ["run", "flash", "monitor"])
def test_the_command_line_lists(command: str, plug: Plug) -> None:
    done = call(command, "--list")
    assert (done.exit_code, done.stdout) == (0, "no serial port over USB: is the board plugged in?\n")
    plug(NUCLEO, PICO)
    assert call(command, "--list").stdout.splitlines()[1:] == ["/dev/ttyACM1 (Pico)"]


def test_a_port_that_is_missing(
    tmp_path: Path, toy: EmittedNetwork, plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run --port` without a port, and what `flash` says of a board that does not answer."""
    board = load_board("stm32vldiscovery")
    image = write_image(tmp_path / "p", (toy,), BuildOptions(get_core("cortex-m3"), board))
    done = call("run", image.folder, "--port")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "which serial port? Plugged in: none, is the board plugged in?" in done.stderr
    plug(NUCLEO)
    with pytest.raises(UsageError, match=r"no such device; serial ports here: /dev/ttyACM0 .*066DFF525750"):
        SerialLink("/dev/no-such-port").__enter__()
    program = tmp_path / "pyocd"
    program.write_text("#!/bin/sh\necho no probe found >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ToolError, match=r"lists them\); plugged in: /dev/ttyACM0 \(STM32 STLink, ST-Link, serial"):
        flash_image(image, board, tool="pyocd")


def test_text_and_frames_however_they_are_cut() -> None:
    said = encode(TEXT | REPLY, 0, b"fault at 0x1234\n") + encode(2 | REPLY, 7, b"an answer, untold")
    said += encode(EXIT | REPLY, 0, (6).to_bytes(4, "little"))
    stream = "grüße ~5 mA ~\n".encode() + said + b"after~" + encode(TEXT | REPLY, 0, b"again")
    want = "grüße ~5 mA ~\nfault at 0x1234\n[the firmware has ended with status 6]\nafter~again"
    draw = random.Random(5)
    for _ in range(50):
        reader, made, at = TextReader(), "", 0
        while at < len(stream):
            size = draw.choice((1, 2, 3, 40, 400))
            made += reader.feed(stream[at : at + size])
            at += size
        assert made + reader.feed(b"") == want


def test_what_begins_like_a_frame_is_not_held_for_ever() -> None:
    reader = TextReader()
    assert reader.feed(b"a~b") + reader.feed(b"") == "a~b"
    assert len(reader.feed(bytes((FLAG,)) + b"x" * 5000)) == 5001


def test_monitor_prints_what_comes() -> None:
    near, far = os.openpty()
    try:
        tty.setraw(far)
        # what comes before the port is open is discarded
        later = threading.Timer(0.3, os.write, (near, b"hello\r\n\tworld \x1b[31m\n"))
        later.start()
        done = call("monitor", os.ttyname(far), "--seconds", "0.8")
        later.join()
        assert (done.exit_code, done.stderr) == (0, f"{os.ttyname(far)} at 115200 baud\n")
        assert done.stdout == "hello\n    world ?[31m\n"
    finally:
        os.close(near)
        os.close(far)


@pytest.mark.parametrize("name", [name for name in list_boards() if load_board(name).derived])
def test_boards_that_people_own_link(name: str, tmp_path: Path, toy: EmittedNetwork, emulator: None) -> None:
    board = load_board(name)
    assert board.uart is not None and board.flash_tool is not None and board.qemu_machine is None
    assert "not tried on a board" in board.sources["uart"]
    image = write_image(tmp_path / "p", (toy,), BuildOptions(core_of(board), board))
    for kind in ("serial", "application"):
        assert build_image(image, board, kind).elf.is_file()
