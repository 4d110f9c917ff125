"""`run_apart`: runs a check in a process of its own, ended when it crashes or hangs.

A kernel with a wrong address may write anywhere. In this process it would break the heap, which TVM's handler of
signals then needs: the process would hang. A forked process has the memory of this one, built code included, starts in
milliseconds, and takes nothing but itself along.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from tvm_cascade.errors import ValidationError

SECONDS = 120  # of processor time for a check; longer is a hang
_SET_DUMPABLE = 4  # of Linux's prctl: a crash writes no core file
_WAITING = 10  # times as long by the clock
_ENDING = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGPROF")  # signals, left to the system


def run_apart(check: Callable[[], None], declined: type[Exception], seconds: int = SECONDS) -> None:
    """Run `check` in a forked process; in this one where there is no Linux, or no process to be had.

    Raises
    ------
    ValidationError
        Raised by `check`; or the check crashed, or took more than `seconds` of processor time.
    Exception
        Of the class `declined`, raised by `check`.
    """
    if sys.platform != "linux":
        check()
        return
    read, write = os.pipe()
    try:
        process = _fork()
    except OSError:  # processes or memory are limited
        os.close(read)
        os.close(write)
        check()
        return
    if process == 0:
        _end_with(check, declined, write, seconds)
    os.close(write)
    told = None
    try:
        told = _read(read, time.monotonic() + _WAITING * seconds)
    finally:
        os.close(read)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if not told:
        hangs = told is None or status == -signal.SIGPROF
        raise ValidationError(f"it did not end in {seconds} s on random data" if hangs else _crash(status))
    kind, message, names = json.loads(told)
    if kind == declined.__name__:
        raise declined(message)
    if kind:
        raise ValidationError(message, names)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python, which counts idle threads too
        return os.fork()


def _end_with(check: Callable[[], None], declined: type[Exception], pipe: int, seconds: int) -> NoReturn:
    """Run `check`, write what it raised to `pipe`, and end the process."""
    told: tuple[str, str, list[str]] = "", "", []
    try:
        gc.disable()  # a collection would write to, and so copy, every page shared with the parent
        for name in _ENDING:
            signal.signal(signal.Signals[name], signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 2)  # of the C library: "corrupted size vs. prev_size"
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        check()
    except ValidationError as error:
        told = "ValidationError", str(error), list(error.operators)
    except declined as error:
        told = declined.__name__, str(error), []
    except BaseException as error:  # such as of the memory being short
        told = "ValidationError", f"it ended with {type(error).__name__} on random data", []
    try:
        with os.fdopen(pipe, "wb") as file:
            file.write(json.dumps(told).encode())
    finally:
        os._exit(0)


def _read(pipe: int, deadline: float) -> bytes | None:
    """Return all that a process writes before it ends; None if it does not end until `deadline`."""
    poll, parts = select.poll(), list[bytes]()
    poll.register(pipe, select.POLLIN)
    while poll.poll(max(deadline - time.monotonic(), 0) * 1000):
        parts.append(os.read(pipe, 1 << 16))
        if not parts[-1]:
            return b"".join(parts)
    return None


def _crash(status: int) -> str:
    return f"it crashed with {signal.Signals(-status).name if status < 0 else f'status {status}'} on random data"
