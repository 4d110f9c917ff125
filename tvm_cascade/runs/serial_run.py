"""Run a network on a real board over a serial port; the board's side is `templates/serial_main.c.in`.

An inference is BEGIN (paint the arena), WRITE for all inputs, RUN with a fresh number and the checksum of the inputs,
READ for the outputs; their checksum came with the answer to RUN. For a streamed input the answer to RUN requests a row:
ROW sends the row in parts, CONTINUE completes it, and the answer requests the next. A board reset in between has lost
the inputs or the run: RUN then reports damaged inputs, the other requests an unknown run, and the inference starts
over. In an image with several networks an inference begins with SELECT; without SELECT, a board after a reset answers
that it knows nothing.

Checksums of tensors and rows are CRC-32C, checksums of frames CRC-32. The polynomials have no common factor, so an
error goes unnoticed only if it is a multiple of both: no error within 64 bits is, and one in 2^64 otherwise.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tvm_cascade.emit.network import Interface
from tvm_cascade.errors import UsageError
from tvm_cascade.runs.emulator import PATTERNS, FirmwareError, Inference, RunResult, explain_failure, run_result
from tvm_cascade.runs.serial_link import BoardStopped, LinkError, SerialLink

HELLO, BEGIN, WRITE, RUN, READ, ROW, CONTINUE = range(1, 8)
SELECT = 10
_DONE, _WANTS = 0, 3  # outcomes: finished, requests a row; any other means that the board has lost inputs or run
_VERSION = 3
_CHUNK = 128  # bytes of data in a frame
_FIRST_S = 10.0  # timeout of the first request: shorter, since the board cannot be computing yet
_STARTS = 25  # attempts at one inference
_EMPTY_RUNS = 9  # requests without an inference, of which the median counts


def _table() -> tuple[int, ...]:
    values = list(range(256))
    for _ in range(8):
        values = [(value >> 1) ^ (0x82F63B78 if value & 1 else 0) for value in values]
    return tuple(values)


_CRC32C = _table()


def crc32c(data: bytes) -> int:
    """Compute CRC-32C (Castagnoli), as in RFC 3720, appendix B.4."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC32C[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class SerialOptions:
    """Settings of a run over a serial port."""

    baud: int = 115200
    timeout_s: float = 60.0  # of one request; it includes the time that an inference takes
    answer_s: float = 0.5  # time before a request without an answer is sent again
    elf: Path | None = None  # the image on the board, to name the function where a fault occurred
    tool_prefix: str = ""  # of the GNU tools that read `elf`
    network_number: int | None = None  # index in an image of several networks


def run_serial(
    port: str,
    interface: Interface,
    inputs: Sequence[Sequence[np.ndarray]],
    options: SerialOptions | None = None,
) -> RunResult:
    """Execute the network on the board at `port`, once per element of `inputs` (arrays in the order of the interface).

    The first inference runs twice, over an arena painted in two ways, as in the emulator. Instructions are not counted:
    `RunResult.instructions` is None.

    Raises `LinkError` if the board does not answer, `FirmwareError` if the network fails, faults or overflows the
    stack, `UsageError` for inputs with other types or sizes or a board with another network.
    """
    if not inputs:
        raise UsageError("no inputs to run")
    packed = [interface.pack_inputs(arrays) for arrays in inputs]
    options = options or SerialOptions()
    select = options.network_number
    started = time.monotonic()
    try:
        with SerialLink(port, options.baud, options.timeout_s, options.answer_s) as link:
            if select is not None:
                link.request(SELECT, struct.pack("<I", select), min(_FIRST_S, options.timeout_s))
            _check_network(link, interface)
            again = _infer(link, interface, packed[0], PATTERNS[1], select)
            if interface.states:
                _check_network(link, interface)  # clears the states
            main = [_infer(link, interface, data, PATTERNS[0], select) for data in packed]
    except BoardStopped as stopped:
        why = explain_failure(stopped.console, stopped.status, options.elf or Path("unknown"), options.tool_prefix)
        raise FirmwareError(f"{port}: {why}; reset the board before the next run") from None
    return run_result(port, interface, main, again, None, started)


def time_serial(
    port: str, interface: Interface, arrays: Sequence[np.ndarray], repeat: int, options: SerialOptions
) -> tuple[tuple[float, ...], float]:
    """Return the milliseconds for `repeat` inferences on the board at `port`, and for a request.

    This machine's clock measures from the request to the answer. A RUN with a wrong checksum is answered after the same
    check of the inputs, without an inference: the median of such requests is taken off.

    Raises the errors of `run_serial`.
    """
    data = interface.pack_inputs(arrays)
    try:
        with SerialLink(port, options.baud, options.timeout_s, options.answer_s) as link:
            if options.network_number is not None:
                link.request(SELECT, struct.pack("<I", options.network_number), min(_FIRST_S, options.timeout_s))
            _check_network(link, interface)
            started = time.monotonic()
            _infer(link, interface, data, PATTERNS[0], options.network_number)
            link.answer_s = max(link.answer_s, 2 * (time.monotonic() - started))  # a repeated request costs time
            empty = float(np.median([_timed(link, data, damaged=True)[1] for _ in range(_EMPTY_RUNS)]))
            taken = [max(0.0, _timed_run(link, interface, data) - empty) for _ in range(repeat)]
    except BoardStopped as stopped:
        why = explain_failure(stopped.console, stopped.status, options.elf or Path("unknown"), options.tool_prefix)
        raise FirmwareError(f"{port}: {why}; reset the board before the next run") from None
    return tuple(taken), empty


def _timed_run(link: SerialLink, interface: Interface, data: bytes) -> float:
    """Return the milliseconds of a RUN; write the inputs again if the inference before has overwritten some."""
    for attempt in range(_STARTS):
        if interface.states or attempt:
            _check_network(link, interface)  # clears the states
            _write_inputs(link, data)
        answer, milliseconds = _timed(link, data)
        if len(answer) == 20 and struct.unpack_from("<Ii", answer) == (_DONE, 0):
            return milliseconds
    raise LinkError(f"{link.port}: the board has lost its inputs {_STARTS} times; is its supply stable?")


def _timed(link: SerialLink, data: bytes, damaged: bool = False) -> tuple[bytes, float]:
    """Send RUN, with a wrong checksum of the inputs if `damaged`; return the answer and the milliseconds until then."""
    request = struct.pack("<II", secrets.randbelow(0xFFFFFFFF) + 1, crc32c(data) ^ damaged)
    started = time.perf_counter()
    answer = link.request(RUN, request)
    return answer, (time.perf_counter() - started) * 1e3


def _write_inputs(link: SerialLink, data: bytes) -> None:
    for start in range(0, len(data), _CHUNK):
        link.request(WRITE, struct.pack("<I", start) + data[start : start + _CHUNK])


def _check_network(link: SerialLink, interface: Interface) -> None:
    answer = link.request(HELLO, timeout_s=min(_FIRST_S, link.timeout_s))
    want = (
        _VERSION,
        sum(spec.bytes for spec in interface.inputs if spec.stream_axis is None),
        sum(spec.bytes for spec in interface.outputs),
        interface.arena_bytes,
        interface.digest,
    )
    if len(answer) != 20 or struct.unpack("<5I", answer) != want:
        raise UsageError(
            f"{link.port}: the board holds another network, or other weights of it; flash this project first "
            "(`tvm-cascade flash`)"
        )


def _infer(link: SerialLink, interface: Interface, data: bytes, pattern: int, select: int | None) -> Inference:
    """Run an inference; start over, at most `_STARTS` times in all, if the board has lost inputs or run."""
    whole, rows = _split(interface, data)
    for _ in range(1 if interface.states else _STARTS):  # a board that has lost its inputs has lost its states
        if select is not None:
            link.request(SELECT, struct.pack("<I", select))
        link.request(BEGIN, struct.pack("<I", pattern))
        _write_inputs(link, whole)
        number = secrets.randbelow(0xFFFFFFFF) + 1
        answer = _run(link, number, whole, rows)
        if answer is None:
            continue
        status, arena, stack, check = answer
        if status != 0:
            raise FirmwareError(f"{link.port}: the network returned {status}")
        outputs = _read_outputs(link, number, sum(spec.bytes for spec in interface.outputs))
        if outputs is not None and crc32c(outputs) == check:
            return Inference((arena,), stack, outputs)
    times = "once, and its states with them" if interface.states else f"{_STARTS} times"
    raise LinkError(f"{link.port}: the board has lost its inputs or outputs {times}; is its supply stable?")


def _split(interface: Interface, data: bytes) -> tuple[bytes, list[bytes]]:
    """Split input bytes into inputs held whole, and streamed rows in the order of the network's requests."""
    start = sum(spec.bytes for spec in interface.inputs if spec.stream_axis is None)
    whole, rows = data[:start], []
    for k in interface.requests:
        end = start + interface.inputs[k].row_bytes
        rows.append(data[start:end])
        start = end
    return whole, rows


def _run(link: SerialLink, number: int, whole: bytes, rows: Sequence[bytes]) -> tuple[int, int, int, int] | None:
    """Send RUN, and rows while the board requests them; returns (status, arena bytes, stack bytes, checksum of outputs).

    None if the board has lost the inputs or the run.
    """
    answer = link.request(RUN, struct.pack("<II", number, crc32c(whole)))
    while True:
        if len(answer) != 20:
            return None
        outcome, first, second, third, fourth = struct.unpack("<IiIII", answer)
        if outcome == _DONE:
            return first, second, third, fourth
        if outcome != _WANTS or first >= len(rows):
            return None
        row = rows[first]
        for start in range(0, len(row), _CHUNK):
            taken = link.request(ROW, struct.pack("<II", first, start) + row[start : start + _CHUNK])
            if struct.unpack("<I", taken)[0] != _DONE:
                return None
        answer = link.request(CONTINUE, struct.pack("<III", number, first, crc32c(row)))


def _read_outputs(link: SerialLink, number: int, size: int) -> bytes | None:
    """Read all output bytes of a run; None if the board no longer knows the run."""
    data = bytearray()
    while len(data) < size:
        wanted = min(_CHUNK, size - len(data))
        answer = link.request(READ, struct.pack("<III", number, len(data), wanted))
        if len(answer) != 4 + wanted or struct.unpack_from("<I", answer)[0] != _DONE:
            return None
        data += answer[4:]
    return bytes(data)
