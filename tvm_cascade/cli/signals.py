"""Signals to a command: Ctrl-C and SIGTERM end the command; in a search that asks for it, the first Ctrl-C ends the
search alone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tvm_cascade.search_monitor import SearchMonitor, monitor

PATIENCE = 1.5  # seconds that a command has after SIGTERM to remove its unfinished files


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, so unfinished files are removed and the emulator is ended."""


_stopping: list[type[BaseException]] = []  # exceptions of the signals to stop, in order of arrival
_searching: list[SearchMonitor] = []  # of a search that the next Ctrl-C ends, in place of the command


def _stop(number: int, _frame: object) -> None:
    if number == signal.SIGINT and _searching:
        _searching.pop().interrupt()
        _write(2, "tvm-cascade: interrupted; ending with the best so far (Ctrl-C again: without it)")
        return
    _stopping.append(KeyboardInterrupt if number == signal.SIGINT else Terminated)
    raise _stopping[0]


def _write(file: int, text: str) -> None:
    """Write a line past Python's buffers: the interrupted code may hold their locks."""
    os.write(file, f"{text}\n".encode())


@contextmanager
def first_interrupt_ends_searches() -> Iterator[None]:
    """Stop the block's searches at the first Ctrl-C, with the best result so far; end the command at the second."""
    _searching.append(monitor())
    try:
        yield
    finally:
        _searching.clear()


def stoppable(command: Callable[[], None], last_words: str) -> None:
    """Run a command; let SIGINT and SIGTERM end it even if TVM swallows the exception raised inside a callback.

    If the command goes on for `PATIENCE` seconds after SIGTERM, as in a long call to a library, end the process with
    exit status 143 and `last_words` on standard output.
    """
    _stopping.clear()
    if threading.current_thread() is not threading.main_thread():
        command()
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    with _ended_by_force(last_words):
        try:
            command()
        except BaseException:
            if not _stopping:
                raise
        if _stopping:
            raise _stopping[0]


@contextmanager
def _ended_by_force(last_words: str) -> Iterator[None]:
    """End the process if the block goes on for `PATIENCE` seconds after SIGTERM.

    Python runs handlers only between two steps, so not during a call to a library. But Python writes a signal's number
    to the wake-up file at once, and a thread waiting there can end the process.
    """
    if os.name == "nt":  # where a program is terminated without a signal
        yield
        return
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    done = threading.Event()

    def watch() -> None:
        while (number := os.read(reads, 1)) != b"\0":
            if number == bytes([signal.SIGTERM]) and not done.wait(PATIENCE):
                _write(2, "tvm-cascade: terminated")
                if last_words:
                    _write(1, last_words)
                os._exit(143)

    thread = threading.Thread(target=watch, name="signals", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        os.write(writes, b"\0")
        thread.join()
        os.close(reads)
        os.close(writes)
