"""The framed serial link to a board: bytes over a terminal device, frames with checksums, requests with answers.

A frame is FLAG, the escaped bytes of (type, sequence, payload, CRC-32), FLAG, as in HDLC (ISO/IEC 13239, start-stop
transmission). A damaged frame is dropped, and a request without an answer is sent again with the same sequence number:
every request must be harmless when it comes twice. A device that vanishes is opened again until the deadline.
"""

from __future__ import annotations

import os
import select
import struct
import termios
import time
import zlib
from collections.abc import Iterator
from types import TracebackType

from tvm_cascade.errors import ToolError, UsageError

FLAG, ESCAPE, ESCAPE_XOR = 0x7E, 0x7D, 0x20
REPLY = 0x80
MAX_PAYLOAD = 140  # bytes; as the board's end
_MAX_ENCODED = 2 * (MAX_PAYLOAD + 6)
_REOPEN_PAUSE_S = 0.05


class LinkError(ToolError):
    """A board that does not answer, or answers nonsense."""


def encode(kind: int, sequence: int, payload: bytes) -> bytes:
    """One frame, flags included."""
    body = bytes((kind, sequence)) + payload
    body += struct.pack("<I", zlib.crc32(body))
    escaped = bytearray((FLAG,))
    for byte in body:
        if byte in (FLAG, ESCAPE):
            escaped += bytes((ESCAPE, byte ^ ESCAPE_XOR))
        else:
            escaped.append(byte)
    escaped.append(FLAG)
    return bytes(escaped)


class Decoder:
    """Frames out of a stream of bytes; whatever does not check is dropped."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Add received bytes; yields (type, sequence, payload) of every frame that is now complete."""
        self._pending += data
        while (end := self._pending.find(FLAG)) >= 0:
            raw = bytes(self._pending[:end])
            del self._pending[: end + 1]
            frame = _decode(raw)
            if frame is not None:
                yield frame
        if len(self._pending) > _MAX_ENCODED:  # noise without a flag must not pile up
            self._pending.clear()


def _decode(raw: bytes) -> tuple[int, int, bytes] | None:
    body, flip = bytearray(), 0
    for byte in raw:
        if byte == ESCAPE:
            flip = ESCAPE_XOR
            continue
        body.append(byte ^ flip)
        flip = 0
    if len(body) < 6:
        return None
    content, (check,) = bytes(body[:-4]), struct.unpack("<I", body[-4:])
    if zlib.crc32(content) != check:
        return None
    return content[0], content[1], content[2:]


class SerialLink:
    """Requests to a board over a terminal device such as /dev/ttyACM0; a context manager."""

    def __init__(self, port: str, baud: int = 115200, timeout_s: float = 60.0) -> None:
        if not hasattr(termios, f"B{baud}"):
            raise UsageError(f"the system knows no serial speed of {baud} baud")
        self.port = port
        self.deadline = time.monotonic() + timeout_s
        self._speed = getattr(termios, f"B{baud}")
        self._file: int | None = None
        self._sequence = 0
        self._decoder = Decoder()
        self.retries = 0  # requests that were sent again
        self.reopened = 0  # times the device had vanished

    def __enter__(self) -> SerialLink:
        self._open_or_raise()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def request(self, kind: int, payload: bytes = b"", answer_s: float = 0.5) -> bytes:
        """Send a request until its answer comes and return the answer's payload.

        `answer_s` is how long the first attempt waits, later ones up to 16 times as long: the board may be computing.
        Attempts go on until the link's deadline, then `LinkError` is raised.
        """
        self._sequence = (self._sequence + 1) % 256
        frame = encode(kind, self._sequence, payload)
        attempt = 0
        while time.monotonic() < self.deadline:
            answer = self._attempt(frame, kind | REPLY, answer_s * 2 ** min(attempt, 4))
            if answer is not None:
                return answer
            attempt += 1
            self.retries += 1
        raise LinkError(
            f"{self.port}: the board does not answer; is it flashed with this project's serial image "
            "(`tvm-cascade flash`), and the port the right one?"
        )

    def _attempt(self, frame: bytes, kind: int, answer_s: float) -> bytes | None:
        if self._file is None and not self._reopen():
            return None
        try:
            self._write(frame)
            end = min(self.deadline, time.monotonic() + answer_s)
            while (left := end - time.monotonic()) > 0:
                for got, sequence, payload in self._decoder.feed(self._read(left)):
                    if (got, sequence) == (kind, self._sequence):
                        return payload
        except OSError:
            self._close()
            self.reopened += 1
        return None

    def _read(self, timeout_s: float) -> bytes:
        assert self._file is not None
        if not select.select((self._file,), (), (), timeout_s)[0]:
            return b""
        data = os.read(self._file, 4096)
        if not data:
            raise OSError("end of file")
        return data

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        while data:
            left = max(0.0, self.deadline - time.monotonic())
            if not select.select((), (self._file,), (), min(left, 1.0))[1]:
                raise OSError("the device takes no data")
            data = data[os.write(self._file, data) :]

    def _reopen(self) -> bool:
        try:
            self._open()
        except OSError:
            time.sleep(_REOPEN_PAUSE_S)
            return False
        return True

    def _open_or_raise(self) -> None:
        try:
            self._open()
        except OSError as error:
            raise LinkError(f"{self.port}: {error.strerror or error}") from None

    def _open(self) -> None:
        file = os.open(self.port, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            self._make_raw(file)
        except (OSError, termios.error) as error:
            os.close(file)
            raise OSError(f"is no serial port ({error})") from None
        self._file, self._decoder = file, Decoder()

    def _make_raw(self, file: int) -> None:
        """Eight bits, no parity, no flow control, nothing translated."""
        control = termios.CS8 | termios.CREAD | termios.CLOCAL
        characters = termios.tcgetattr(file)[6]
        termios.tcsetattr(file, termios.TCSANOW, [0, 0, control, 0, self._speed, self._speed, characters])

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
