"""The far end of serial ports for tests: emulated boards on pseudo-terminals, lines that damage, forge, hang up and reset.

All damage is drawn from a fixed seed, at numbers of bytes carried: not at times.
"""

from __future__ import annotations

import os
import random
import re
import select
import subprocess
import threading
import tty
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tvm_cascade.boards.board import Board
from tvm_cascade.runs.serial_link import Decoder, encode


class EmulatedBoard:
    """A QEMU process that runs the image `elf`, whose UART is a pseudo-terminal."""

    def __init__(self, board: Board, elf: Path) -> None:
        self.elf = elf
        command = [board.family.qemu, "-M", str(board.qemu_machine), *board.family.qemu_arguments, "-kernel", str(elf)]
        silent = ["-display", "none", "-monitor", "none", "-chardev", "pty,id=uart", "-serial", "chardev:uart"]
        self.process = subprocess.Popen(
            [*command, *silent], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        match = re.search(r"/dev/\S+", self.process.stdout.readline())
        assert match is not None
        self.port = match[0]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class BadLine:
    """A relay between a port of its own (`path`, a symbolic link) and the board's, doing to the bytes what lines do."""

    def __init__(self, path: Path, start_board: Callable[[], EmulatedBoard], error_rate: float, events: dict[int, str]):
        self.path, self.start_board, self.error_rate, self.events = path, start_board, error_rate, events
        self.random = random.Random(3)
        self.damaged = self.carried = 0
        self.happened: list[str] = []
        self.board = start_board()
        self.far = self._open_far()
        self.near = -1
        self._plug_in()
        self.running = True
        self.thread = threading.Thread(target=self._relay, daemon=True)
        self.thread.start()

    def _open_far(self) -> int:
        file = os.open(self.board.port, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        tty.setraw(file)
        return file

    def _plug_in(self) -> None:
        master, slave = os.openpty()
        tty.setraw(slave)
        os.set_blocking(master, False)
        fresh = self.path.with_suffix(".new")
        fresh.symlink_to(os.ttyname(slave))
        fresh.replace(self.path)
        self.near, self.slave = master, slave

    def _unplug(self) -> None:
        self.path.unlink()
        os.close(self.slave)
        os.close(self.near)

    def _relay(self) -> None:
        while self.running:
            for file in select.select((self.near, self.far), (), (), 0.02)[0]:
                try:
                    data = os.read(file, 256)
                except OSError:
                    continue
                self._write(self.far if file == self.near else self.near, self._spoil(data))
                self._happen()

    def _write(self, file: int, data: bytes) -> None:
        """Write `data`; what nobody takes within a tenth of a second is lost, as on a wire. A relay that waited would stand
        still for good with a board that waits for it to read."""
        while data and select.select((), (file,), (), 0.1)[1]:
            with suppress(BlockingIOError):
                data = data[os.write(file, data) :]

    def _spoil(self, data: bytes) -> bytes:
        """Flip a bit, add a byte, lose one, replace a burst by noise, or say again what has just been said."""
        spoiled = bytearray()
        burst = 0
        for byte in data:
            self.carried += 1
            if burst > 0:
                burst -= 1
                spoiled.append(self.random.randrange(256))
                continue
            if self.random.random() >= self.error_rate:
                spoiled.append(byte)
                continue
            self.damaged += 1
            kind = self.random.randrange(5)
            if kind == 0:
                spoiled.append(byte ^ (1 << self.random.randrange(8)))
            elif kind == 1:
                spoiled += bytes((byte, self.random.randrange(256)))
            elif kind == 3:
                burst = self.random.randrange(2, 13)
            elif kind == 4:
                spoiled += bytes((byte,)) + bytes(spoiled[-64:])
        return bytes(spoiled)

    def _happen(self) -> None:
        """Events at numbers of bytes carried."""
        for position in [position for position in self.events if position <= self.carried]:
            event = self.events.pop(position)
            self.happened.append(event)
            if event == "hang up":
                self._unplug()
                self._plug_in()
            else:
                os.close(self.far)
                self.board.stop()
                self.board = self.start_board()
                self.far = self._open_far()

    def stop(self) -> None:
        self.running = False
        self.thread.join()
        self._unplug()
        os.close(self.far)
        self.board.stop()


class Forger:
    """A relay that changes the last byte of the first `times` frames of `kind`, and their checksums with it."""

    def __init__(self, board_port: str, kind: int, times: int) -> None:
        self.kind, self.times = kind, times
        self.far = os.open(board_port, os.O_RDWR | os.O_NOCTTY)
        self.near, self.slave = os.openpty()
        for file in (self.far, self.slave):
            tty.setraw(file)
        self.port, self.running = os.ttyname(self.slave), True
        self.thread = threading.Thread(target=self._relay, daemon=True)
        self.thread.start()

    def _relay(self) -> None:
        decoders = {self.near: Decoder(), self.far: Decoder()}
        while self.running:
            for file in select.select(tuple(decoders), (), (), 0.02)[0]:
                for kind, sequence, payload in decoders[file].feed(os.read(file, 4096)):
                    forged = bytearray(payload)
                    if kind == self.kind and self.times > 0:
                        self.times -= 1
                        forged[-1] ^= 0x10
                    os.write(self.far if file == self.near else self.near, encode(kind, sequence, bytes(forged)))

    def stop(self) -> None:
        self.running = False
        self.thread.join()
        for file in (self.far, self.near, self.slave):
            os.close(file)


class Answering:
    """The far end of a port, played by a function from received bytes to bytes sent, every few milliseconds."""

    def __init__(self, play: Callable[[bytes], bytes]) -> None:
        self.master, self.slave = os.openpty()
        tty.setraw(self.slave)
        self.port, self.play, self.running = os.ttyname(self.slave), play, True
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while self.running:
            ready = select.select((self.master,), (), (), 0.005)[0]
            sent = self.play(os.read(self.master, 4096) if ready else b"")
            if sent and select.select((), (self.master,), (), 0)[1]:
                os.write(self.master, sent)

    def stop(self) -> None:
        self.running = False
        self.thread.join()
        os.close(self.slave)
        os.close(self.master)
