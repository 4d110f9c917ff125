"""The serial protocol: its framing, and both of its ends through emulated UARTs on pseudo-terminals.

Between host and board a relay damages, drops and adds bytes, hangs up and resets the board, from a fixed seed.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import struct
import time
import tty
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tvm_cascade.boards.board import list_boards, load_board
from tvm_cascade.cores import CORES
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.toolchain import build_image
from tvm_cascade.emit.write_image import BuildOptions, write_image
from tvm_cascade.errors import UsageError
from tvm_cascade.runs.emulator import FirmwareError
from tvm_cascade.runs.serial_link import FLAG, REPLY, Decoder, LinkError, SerialLink, _why_not, encode
from tvm_cascade.runs.serial_run import (
    BEGIN,
    CONTINUE,
    HELLO,
    READ,
    ROW,
    RUN,
    WRITE,
    SerialOptions,
    crc32c,
    run_serial,
)
from tvm_cascade.testing.serial_lines import Answering, BadLine, EmulatedBoard, Forger

DAMAGED, WANTS = 1, 3  # outcomes
Inputs = list[tuple[np.ndarray, np.ndarray]]


def test_frames_survive_any_split() -> None:
    payload = bytes(range(0x70, 0x90)) + b"\x7e\x7d\x7e"
    stream = encode(3, 255, payload) + b"\x00noise" + encode(4, 0, b"")
    for size in (1, 2, 7, 1000):
        decoder, frames = Decoder(), []
        for start in range(0, len(stream), size):
            frames += list(decoder.feed(stream[start : start + size]))
        assert frames == [(3, 255, payload), (4, 0, b"")]


def test_every_single_byte_error_is_noticed() -> None:
    frame = encode(2, 9, b"weights \x7e and \x7d sums")
    for position in range(len(frame)):
        for change in (0x01, 0x20, 0x80, 0xFF):
            damaged = bytearray(frame)
            damaged[position] ^= change
            got = list(Decoder().feed(bytes(damaged) + bytes((FLAG,))))
            assert got in ([], [(2, 9, b"weights \x7e and \x7d sums")])
        without = frame[:position] + frame[position + 1 :]
        assert list(Decoder().feed(without)) in ([], [(2, 9, b"weights \x7e and \x7d sums")])


def test_the_checksum_of_tensors_is_that_of_rfc_3720() -> None:
    assert (crc32c(b"123456789"), crc32c(bytes(32)), crc32c(b"")) == (0xE3069283, 0x8A9136AA, 0)


def test_noise_without_a_flag_is_forgotten() -> None:
    decoder = Decoder()
    for _ in range(100):
        assert list(decoder.feed(bytes(range(0x7C)))) == []
    assert len(decoder._pending) < 1000


@pytest.fixture(scope="module")
def serial_image(tmp_path_factory: pytest.TempPathFactory) -> Callable[[EmittedNetwork, str | Path], Path]:
    """The serial image of a network for a board; tests that run the same one share it."""
    built: dict[tuple[object, ...], Path] = {}

    def build(network: EmittedNetwork, name: str | Path) -> Path:
        key = (network.name, tuple(network.files.items()), str(name))
        if key not in built:
            board = load_board(name)
            target = [target for target in CORES.values() if board.core in target.runs_on][-1]
            project = write_image(tmp_path_factory.mktemp("serial") / "p", (network,), BuildOptions(target, board))
            built[key] = build_image(project, board, kind="serial").elf
        return built[key]

    return build


@pytest.fixture
def start(tmp_path: Path, serial_image: Callable) -> Iterator[Callable]:
    """Starts a board with a network's serial image, behind a relay if options for one are given."""
    running: list[EmulatedBoard | BadLine] = []

    def start_it(network: EmittedNetwork, name: str | Path = "mps2-an386", **relay: object) -> tuple[str, object]:
        board = load_board(name)
        if shutil.which(board.family.gcc) is None or shutil.which(board.family.qemu) is None:
            pytest.skip(f"{board.family.gcc} or {board.family.qemu} is not installed")
        elf = serial_image(network, name)
        if not relay:
            running.append(EmulatedBoard(board, elf))
            return running[-1].port, running[-1]  # type: ignore[union-attr]
        line = BadLine(tmp_path / "ttyBAD", lambda: EmulatedBoard(board, elf), **relay)  # type: ignore[arg-type]
        running.append(line)
        return str(line.path), line

    yield start_it
    for one in running:
        one.stop()


def check(result: object, inputs: Inputs, reference: Callable) -> None:
    for (output,), (a, b) in zip(result.outputs, inputs, strict=True):  # type: ignore[attr-defined]
        np.testing.assert_array_equal(output, reference(a, b))


@pytest.mark.parametrize(
    "name", [name for name in list_boards() if load_board(name).uart and load_board(name).qemu_machine]
)
def test_every_board_answers(
    name: str, toy: EmittedNetwork, toy_inputs: Inputs, reference: Callable, start: Callable
) -> None:
    port, _ = start(toy, name)
    result = run_serial(port, toy.interface, toy_inputs, SerialOptions(timeout_s=30, answer_s=0.1))
    check(result, toy_inputs, reference)
    assert result.arena_high_water_bytes == 72
    assert 100 < result.stack_bytes < 400
    assert result.instructions is None


@pytest.mark.parametrize(
    ("name", "receive", "transmit", "setup"),
    [
        (
            "mps2-an386",
            {"status": "0x40004004", "mask": 2, "data": "0x40004000"},
            {"status": "0x40004004", "mask": 1, "ready": "clear", "data": "0x40004000"},
            [["0x40004010", 217], ["0x40004008", 3]],
        ),
        (
            "riscv32-virt",
            {"status": "0x10000005", "mask": 1, "data": "0x10000000", "bits": 8},
            {"status": "0x10000005", "mask": "0x20", "data": "0x10000000", "bits": 8},
            [],
        ),
    ],
)
def test_a_port_that_is_described_by_its_registers(
    name: str,
    receive: dict,
    transmit: dict,
    setup: list,
    tmp_path: Path,
    toy: EmittedNetwork,
    toy_inputs: Inputs,
    reference: Callable,
    start: Callable,
) -> None:
    uart = {"kind": "polled", "receive": receive, "transmit": transmit, "setup": setup}
    own = json.loads(load_board(name).source) | {"name": "own", "uart": uart}
    (tmp_path / "own.json").write_text(json.dumps(own))
    port, _ = start(toy, tmp_path / "own.json")
    check(run_serial(port, toy.interface, toy_inputs, SerialOptions(timeout_s=30, answer_s=0.1)), toy_inputs, reference)


@pytest.mark.parametrize("error_rate", [0.0005, 0.005])
def test_noise(
    error_rate: float, toy: EmittedNetwork, toy_inputs: Inputs, reference: Callable, start: Callable
) -> None:
    inputs = toy_inputs * 8
    port, line = start(toy, error_rate=error_rate, events={})
    check(run_serial(port, toy.interface, inputs, SerialOptions(timeout_s=60, answer_s=0.05)), inputs, reference)
    assert line.damaged > 0


def test_hang_ups(toy: EmittedNetwork, toy_inputs: Inputs, reference: Callable, start: Callable) -> None:
    inputs = toy_inputs * 4
    port, line = start(toy, error_rate=0.0, events=dict.fromkeys((150, 700, 701, 2000), "hang up"))
    check(run_serial(port, toy.interface, inputs, SerialOptions(timeout_s=60, answer_s=0.1)), inputs, reference)
    assert line.happened == ["hang up"] * 4


def test_resets_of_the_board(toy: EmittedNetwork, toy_inputs: Inputs, reference: Callable, start: Callable) -> None:
    """A reset loses inputs or outputs wherever it comes: the inference starts over, with noise on top."""
    inputs = toy_inputs * 4
    port, line = start(toy, error_rate=0.001, events=dict.fromkeys((180, 420, 900, 1500), "reset"))
    check(run_serial(port, toy.interface, inputs, SerialOptions(timeout_s=60, answer_s=0.1)), inputs, reference)
    assert line.happened == ["reset"] * 4


def test_streamed_rows(streaming_toy: EmittedNetwork, toy_inputs: Inputs, reference: Callable, start: Callable) -> None:
    inputs = toy_inputs * 3
    events = {300: "reset", 700: "hang up", 1500: "reset"}
    port, line = start(streaming_toy, error_rate=0.002, events=events)
    result = run_serial(port, streaming_toy.interface, inputs, SerialOptions(timeout_s=120, answer_s=0.05))
    check(result, inputs, reference)
    assert line.happened == ["reset", "hang up", "reset"] and line.damaged > 0


def test_a_row_that_is_damaged_on_its_way_is_asked_for_again(streaming_toy: EmittedNetwork, start: Callable) -> None:
    port, _ = start(streaming_toy)
    with SerialLink(port, timeout_s=30) as link:
        link.request(BEGIN, struct.pack("<I", 0x5A))
        link.request(WRITE, struct.pack("<I", 0) + bytes(24))
        run = struct.pack("<II", 9, crc32c(bytes(24)))
        for _ in range(2):
            assert struct.unpack_from("<II", link.request(RUN, run)) == (WANTS, 0)
        row = bytes((1, 2, 3, 4))
        link.request(ROW, struct.pack("<II", 0, 0) + row)
        for crc, answer in ((5, (DAMAGED, 0)), (crc32c(row), (WANTS, 1))):
            assert struct.unpack_from("<II", link.request(CONTINUE, struct.pack("<III", 9, 0, crc))) == answer


def test_a_run_asked_for_twice_runs_once(make_toy: Callable[..., EmittedNetwork], start: Callable) -> None:
    """RUN overwrites its inputs, so a second execution would compute something else: the network counts its runs."""
    port, _ = start(make_toy(prologue="static signed char runs;\n", extra="y[0] = ++runs;"))
    with SerialLink(port, timeout_s=30) as link:
        link.request(BEGIN, struct.pack("<I", 0x5A))
        link.request(WRITE, struct.pack("<I", 0) + bytes(48))
        for number, count in ((7, 1), (7, 1), (8, 2)):
            answer = link.request(RUN, struct.pack("<II", number, crc32c(bytes(48))))
            assert struct.unpack_from("<Ii", answer) == (0, 0)
            outputs = link.request(READ, struct.pack("<III", number, 0, 24))
            assert (outputs[:4], outputs[4]) == (bytes(4), count)
        assert struct.unpack("<I", link.request(READ, struct.pack("<III", 7, 0, 24)))[0] == 2


def test_damaged_inputs_are_not_run(toy: EmittedNetwork, start: Callable) -> None:
    port, _ = start(toy)
    with SerialLink(port, timeout_s=30) as link:
        link.request(BEGIN, struct.pack("<I", 0x5A))
        answer = link.request(RUN, struct.pack("<II", 1, 0x12345678))
        assert struct.unpack_from("<I", answer)[0] == 1


def test_a_network_that_fails(make_toy: Callable[..., EmittedNetwork], toy_inputs: Inputs, start: Callable) -> None:
    network = make_toy(extra="if (a[0] || y) return -7;")
    port, _ = start(network)
    with pytest.raises(FirmwareError, match="the network returned -7"):
        run_serial(port, network.interface, toy_inputs, SerialOptions(timeout_s=30, answer_s=0.1))


def test_another_network_is_noticed(
    toy: EmittedNetwork, make_toy: Callable[..., EmittedNetwork], toy_inputs: Inputs, start: Callable
) -> None:
    port, _ = start(toy)
    with pytest.raises(UsageError, match=r"holds another network, .*flash this project"):
        run_serial(port, make_toy(arena=96).interface, toy_inputs, SerialOptions(timeout_s=30, answer_s=0.1))


def test_other_weights_of_the_same_network_are_noticed(
    toy: EmittedNetwork, make_toy: Callable[..., EmittedNetwork], toy_inputs: Inputs, start: Callable
) -> None:
    port, _ = start(toy)
    other = make_toy(prologue="/* trained again */\n").interface
    assert replace(other, digest=0) == replace(toy.interface, digest=0)
    with pytest.raises(UsageError, match="or other weights of it; flash this project"):
        run_serial(port, other, toy_inputs, SerialOptions(timeout_s=30, answer_s=0.1))


@pytest.mark.parametrize("kind", [WRITE, READ | REPLY])
def test_damage_that_a_frame_does_not_show(
    kind: int, tmp_path: Path, toy: EmittedNetwork, toy_inputs: Inputs, reference: Callable, start: Callable
) -> None:
    """Frames of tensor bytes with another byte and the checksum that belongs to it: the inference starts over."""
    port, _ = start(toy)
    forger = Forger(port, kind, times=3)
    try:
        check(
            run_serial(forger.port, toy.interface, toy_inputs, SerialOptions(timeout_s=30, answer_s=0.2)),
            toy_inputs,
            reference,
        )
        assert forger.times == 0
        forger.times = 1000
        with pytest.raises(LinkError, match="has lost its inputs or outputs 25 times"):
            run_serial(forger.port, toy.interface, toy_inputs[:1], SerialOptions(timeout_s=30, answer_s=0.2))
    finally:
        forger.stop()


@pytest.mark.parametrize(
    ("board", "extra", "message"),
    [
        ("mps2-an386", "__builtin_trap();", r"faulted in toy_run: undefined instruction .*; reset the board"),
        ("riscv32-virt", "__builtin_trap();", r"faulted in toy_run: .* \(pc=0x[0-9a-f]{8} .*mcause="),
        (
            "stm32vldiscovery",
            "{ volatile uint8_t deep[900]; for (int k = 0; k < 900; ++k) deep[k] = 1; y[0] = (int8_t)deep[9]; }",
            "stopped with status 6: stack overflow: the stack has grown into the data",
        ),
    ],
)
def test_faults_are_told_over_the_port(
    board: str, extra: str, message: str, make_toy: Callable, toy_inputs: Inputs, start: Callable
) -> None:
    network = make_toy(arena=7500 if board == "stm32vldiscovery" else 80, extra=extra)
    port, running = start(network, board)
    prefix = load_board(board).family.prefix
    for _ in range(2):  # a second run is told too that the firmware has ended
        with pytest.raises(FirmwareError, match=message):
            run_serial(
                port,
                network.interface,
                toy_inputs,
                SerialOptions(timeout_s=20, answer_s=0.2, elf=running.elf, tool_prefix=prefix),
            )
        message = "stopped with status [56]: no message; reset the board"


def _answers_hello_only(digest: Callable[[], bytes]) -> Callable[[bytes], bytes]:
    decoder = Decoder()

    def play(data: bytes) -> bytes:
        return b"".join(encode(HELLO | REPLY, seq, digest()) for kind, seq, _ in decoder.feed(data) if kind == HELLO)

    return play


def test_what_comes_instead_of_answers_is_named(toy: EmittedNetwork, toy_inputs: Inputs) -> None:
    """Garbage for ever, our own bytes, a board that answers once: each ends in time and says what it may be."""
    garbage = random.Random(5)
    hello = struct.pack("<5I", 3, 48, 24, 80, toy.interface.digest)
    for play, message in (
        (
            lambda data: garbage.randbytes(500),
            r"\d+ bytes came, but no frame that checks; are both ends at 115200 baud",
        ),
        (lambda data: data, "sends back what it is sent"),
        (_answers_hello_only(lambda: hello), r"stopped answering; .*--timeout.*\(no answer in 0\.6 s\)"),
        (_answers_hello_only(lambda: hello[:16]), "holds another network"),
    ):
        far = Answering(play)
        started = time.monotonic()
        with pytest.raises((LinkError, UsageError), match=message):
            run_serial(far.port, toy.interface, toy_inputs, SerialOptions(timeout_s=0.6, answer_s=0.1))
        assert time.monotonic() - started < 30  # it ends; how soon is the machine's affair
        far.stop()


def test_ports_that_are_taken_forbidden_or_gone(tmp_path: Path, toy: EmittedNetwork, toy_inputs: Inputs) -> None:
    far = Answering(lambda data: b"")
    with SerialLink(far.port), pytest.raises(LinkError, match="in use by another program"):
        run_serial(far.port, toy.interface, toy_inputs)
    link = tmp_path / "tty"
    link.symlink_to(far.port)
    with SerialLink(str(link), timeout_s=0.3, answer_s=0.1) as open_link:
        link.unlink()
        open_link._close()
        with pytest.raises(LinkError, match="has vanished and not come back"):
            open_link.request(HELLO)
    far.stop()
    forbidden = _why_not("/dev/null", PermissionError(errno.EACCES, "Permission denied"))
    assert re.match(r"permission denied; become a member of its group \(`sudo usermod -aG \w+ \$USER`", forbidden)


def test_old_bytes_of_a_port_are_thrown_away(toy: EmittedNetwork) -> None:
    """An answer to an earlier program, still in the line, must not answer this one."""
    master, slave = os.openpty()
    tty.setraw(slave)
    os.write(master, encode(HELLO | REPLY, 1, b"stale"))
    with (
        SerialLink(os.ttyname(slave), timeout_s=0.3, answer_s=0.1) as link,
        pytest.raises(LinkError, match="does not answer"),
    ):
        link.request(HELLO)
    os.close(slave)
    os.close(master)


def test_silence_and_missing_ports(tmp_path: Path, toy: EmittedNetwork, toy_inputs: Inputs) -> None:
    master, slave = os.openpty()
    with pytest.raises(LinkError, match="does not answer; is it flashed"):
        run_serial(os.ttyname(slave), toy.interface, toy_inputs, SerialOptions(timeout_s=0.3, answer_s=0.1))
    os.close(slave)
    os.close(master)
    with pytest.raises(UsageError, match="no such device; serial ports here: "):
        run_serial(str(tmp_path / "ttyNONE"), toy.interface, toy_inputs)
    (tmp_path / "file").write_text("")
    with pytest.raises(LinkError, match="is no serial port"):
        run_serial(str(tmp_path / "file"), toy.interface, toy_inputs)
    with pytest.raises(UsageError, match="no serial speed of 12345"):
        SerialLink("/dev/null", baud=12345)
