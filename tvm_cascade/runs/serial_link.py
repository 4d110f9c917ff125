"""The framed serial link to a board: bytes over a serial port (by pyserial), frames with checksums, requests with answers.

A frame is FLAG, the escaped bytes of (type, sequence, payload, CRC-32), FLAG, as in HDLC (ISO/IEC 13239, start-stop
transmission). A damaged frame is dropped, and a request without an answer is sent again with the same sequence number:
every request must be harmless when it comes twice. A device that vanishes is opened again until the deadline.

A damaged frame passes the check with a probability of 2^-32. That suffices for requests and measurements; inputs and
outputs have a second, end-to-end check (see `serial_run`).
"""

from __future__ import annotations

import codecs
import errno
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tvm_cascade import extras
from tvm_cascade.errors import ToolError, UsageError
from tvm_cascade.runs.desk import listed, serial_ports

if TYPE_CHECKING:
    from serial import Serial

FLAG, ESCAPE, ESCAPE_XOR = 0x7E, 0x7D, 0x20
REPLY = 0x80
TEXT, EXIT = 8, 9  # frame types that a board sends unasked, with REPLY set: console text, exit status
MAX_PAYLOAD = 140  # bytes; the same on the board's side
_MAX_ENCODED = 2 * (MAX_PAYLOAD + 6)
_REOPEN_PAUSE_S = 0.05
_MAX_CONSOLE = 2000  # characters
_TURN_S = 0.05  # longest that reading waits before it looks at the deadline again


class LinkError(ToolError):
    """A board without an answer, or with nonsense."""


class BoardStopped(ToolError):
    """Firmware that has stopped: a fault, or a stack overflow, with the reported `status` and `console`."""

    def __init__(self, port: str, status: int, console: str) -> None:
        super().__init__(f"{port}: the firmware has ended with status {status}: {console or 'no message'}")
        self.status, self.console = status, console


def encode(kind: int, sequence: int, payload: bytes) -> bytes:
    """Encode a single frame, flags included."""
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
    """A reader of frames from a byte stream; frames with a wrong checksum are dropped."""

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


class TextReader:
    """A reader of text from a stream of bytes with frames in between; only frames with text or a status are shown."""

    def __init__(self) -> None:
        self._held = bytearray()  # since the last flag, which may have begun a frame
        self._opened = False  # whether there was one
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")  # a character may come in two parts

    def feed(self, data: bytes) -> str:
        """Return the text in received bytes; without bytes, release the bytes held as a possible beginning of a frame."""
        if not data:
            return self._released() if self._held else ""
        made = ""
        for byte in data:
            if byte != FLAG:
                self._held.append(byte)
                continue
            frame = _decode(bytes(self._held)) if self._opened else None
            if frame is not None:
                made += _told(frame)
                self._held.clear()
                self._opened = False  # this flag was its last
            else:
                made += self._released()
                self._opened = True
        if (not self._opened and self._held) or len(self._held) > _MAX_ENCODED:
            made += self._released()
        return made

    def _released(self) -> str:
        flag = bytes((FLAG,)) if self._opened else b""
        text = self._characters.decode(flag + bytes(self._held))
        self._held.clear()
        self._opened = False
        return text


def _told(frame: tuple[int, int, bytes]) -> str:
    kind, _, payload = frame
    if kind == TEXT | REPLY:
        return payload.decode("ascii", "replace")
    if kind == EXIT | REPLY and len(payload) == 4:
        return f"[the firmware has ended with status {struct.unpack('<I', payload)[0]}]\n"
    return ""


class SerialLink:
    """Requests to a board over a serial port such as /dev/ttyACM0 or COM3; a context manager.

    `timeout_s` is the time limit for an answer, `answer_s` the first attempt's; each further attempt waits twice as
    long, up to 16 times, because the board may be computing. The device is locked against programs that check locks (as
    pyserial, picocom and minicom do), and bytes received before are discarded.

    Raises `MissingToolError` without pyserial, `UsageError` if there is no such port, `LinkError` if the port cannot be
    used or the board does not answer.
    """

    def __init__(self, port: str, baud: int = 115200, timeout_s: float = 60.0, answer_s: float = 0.5) -> None:
        self._pyserial = extras.load("pyserial")
        if baud not in self._pyserial.Serial.BAUDRATES:
            raise UsageError(f"there is no serial speed of {baud} baud")
        self.port, self.baud, self.timeout_s, self.answer_s = port, baud, timeout_s, answer_s
        self._device: Serial | None = None
        self._sequence = 0
        self._deadline = 0.0  # of the current request, monotonic seconds
        self._decoder = Decoder()
        self._console = b""  # console text of the board, such as the report of a fault
        self.answers = 0  # received over this link
        self.heard = self.frames = self.echoes = 0  # bytes, frames and echoed requests since the current request began

    def __enter__(self) -> SerialLink:
        try:
            self._open()
        except OSError as error:
            kind = UsageError if error.errno == errno.ENOENT else LinkError
            raise kind(f"{self.port}: {_why_not(self.port, error)}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def request(self, kind: int, payload: bytes = b"", timeout_s: float | None = None) -> bytes:
        """Send a request until the answer comes, and return the answer's payload.

        Attempts go on for `timeout_s` (None: the link's), then `LinkError` is raised; `BoardStopped` if the firmware
        reports an end.
        """
        self._sequence = (self._sequence + 1) % 256
        self.heard = self.frames = self.echoes = 0
        patience = self.timeout_s if timeout_s is None else timeout_s
        self._deadline = time.monotonic() + patience
        frame = encode(kind, self._sequence, payload)
        attempt = 0
        while time.monotonic() < self._deadline:
            answer = self._attempt(frame, kind, self.answer_s * 2 ** min(attempt, 4))
            if answer is not None:
                self.answers += 1
                return answer
            attempt += 1
        raise LinkError(f"{self.port}: {self._diagnosis()} (no answer in {patience:g} s)")

    def listen(self, seconds: float | None = None) -> Iterator[str]:
        """Yield the text sent by the board, for ever or for `seconds`: output of the program, reports of faults, and
        the exit status.

        Open the port again if the device vanishes and comes back.
        """
        reader = TextReader()
        end = None if seconds is None else time.monotonic() + seconds
        while end is None or time.monotonic() < end:
            if self._device is None and not self._reopen():
                continue
            try:
                text = reader.feed(self._read())
            except OSError:
                self._close()
                continue
            if text:
                yield text

    def _diagnosis(self) -> str:
        """Guess from the bytes received why there is no answer."""
        image = "flashed with this project's serial image (`tvm-cascade flash`)"
        if self._device is None:
            return "the device has vanished and not come back; check cable and supply"
        if self.echoes:
            return "the device sends back what it is sent; is it the board's port, and are its two lines apart?"
        if self.answers:
            return "the board has stopped answering; was it reset to another image, or does it need longer (--timeout)?"
        if self.heard and not self.frames:
            return (
                f"{self.heard} bytes came, but no frame that checks; are both ends at {self.baud} baud, "
                f"and is the board {image}?"
            )
        return f"the board does not answer; is it {image}, and the port the right one?"

    def _attempt(self, frame: bytes, kind: int, answer_s: float) -> bytes | None:
        if self._device is None and not self._reopen():
            return None
        try:
            self._write(frame)
            end = min(self._deadline, time.monotonic() + answer_s)
            while time.monotonic() < end:
                data = self._read()
                self.heard += len(data)
                for got, sequence, payload in self._decoder.feed(data):
                    self.frames += 1
                    self.echoes += (got, sequence) == (kind, self._sequence)
                    self._listen(got, payload)
                    if (got, sequence) == (kind | REPLY, self._sequence):
                        return payload
        except OSError:
            self._close()
        return None

    def _listen(self, kind: int, payload: bytes) -> None:
        """Handle frames a board sends unasked: collect console text; raise `BoardStopped` on an exit status."""
        if kind == TEXT | REPLY:
            self._console = (self._console + payload)[-_MAX_CONSOLE:]
        elif kind == EXIT | REPLY and len(payload) == 4:
            text = self._console.decode("ascii", "replace")
            raise BoardStopped(self.port, struct.unpack("<I", payload)[0], text)

    def _read(self) -> bytes:
        """Read all bytes received so far, or the first byte within a twentieth of a second."""
        assert self._device is not None
        return self._device.read(self._device.in_waiting or 1)

    def _write(self, data: bytes) -> None:
        assert self._device is not None
        self._device.write(data)

    def _reopen(self) -> bool:
        try:
            self._open()
        except OSError:
            time.sleep(_REOPEN_PAUSE_S)
            return False
        return True

    def _open(self) -> None:
        """Open the port for 8 bits without parity or flow control, for nobody else; raises `OSError`."""
        try:
            self._device = self._pyserial.Serial(
                self.port, self.baud, timeout=_TURN_S, write_timeout=1.0, exclusive=True
            )
        except OSError as error:
            if error.errno is None:  # what pyserial says of files that are no ports
                raise OSError(f"is no serial port ({error})") from None
            raise
        except Exception as error:  # termios.error of a device that vanishes meanwhile: pyserial lets it through
            raise OSError(f"is no serial port ({error})") from None
        self._decoder = Decoder()

    def _close(self) -> None:
        if self._device is not None:
            self._device.close()
            self._device = None


def _why_not(port: str, error: OSError) -> str:
    """Explain why a port cannot be opened, with the remedy."""
    taken = (errno.EBUSY, errno.EAGAIN, *((errno.EACCES,) if sys.platform == "win32" else ()))
    if error.errno in taken:
        return "is in use by another program; close it"
    if error.errno == errno.EACCES:
        try:
            group = Path(port).group()
        except (OSError, KeyError):
            group = "dialout"
        return (
            f"permission denied; become a member of its group (`sudo usermod -aG {group} $USER`, then log in again) "
            "or unlock it once with `sudo chmod a+rw`"
        )
    if error.errno == errno.ENOENT:
        return f"no such device; serial ports here: {listed(serial_ports())}"
    return error.strerror or str(error)
