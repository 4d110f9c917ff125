"""Many independent examinations, each in a process of its own: what crashes or hangs there is an outcome like any other."""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

SECONDS = 60  # of processor time for one; longer is a hang
PASS, REFUSED, WRONG, CRASH, HANG = "pass", "refused", "wrong", "crash", "hang"
_WAITING = 10  # times as long by the clock, for what sleeps, or shares the processor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one, and why where it did not pass."""

    verdict: str
    reason: str = ""


def forked(
    tasks: Iterable[T],
    examine: Callable[[T], Outcome],
    jobs: int = 1,
    seconds: int = SECONDS,
    until: float = math.inf,
) -> Iterator[tuple[T, Outcome]]:
    """What `examine` says of every task, in the order in which they end: `jobs` processes at a time, each of which may take
    `seconds` of processor time. What still runs at `until`, of the monotonic clock, is ended and has no outcome."""
    waiting, running = iter(tasks), list[_Child[T]]()
    while True:
        running += [_started(task, examine, seconds, until) for task in islice(waiting, jobs - len(running))]
        if time.monotonic() >= until:
            for child in running:
                _ended(child, False, seconds)
            return
        if not running:
            return
        left = max(min(child.deadline for child in running) - time.monotonic(), 0)
        ready = select.select([child.pipe for child in running], [], [], left)[0]
        for child in list(running):
            if child.pipe in ready or child.deadline <= time.monotonic() < until:
                running.remove(child)
                yield child.task, _ended(child, child.pipe in ready, seconds)


@dataclass(frozen=True, slots=True)
class _Child(Generic[T]):
    task: T
    process: int
    pipe: int  # from which its outcome is read
    deadline: float  # of the monotonic clock


def _started(task: T, examine: Callable[[T], Outcome], seconds: int, until: float) -> _Child[T]:
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.setpgid(0, 0)
            gc.freeze()  # a collection would write to, and so copy, every page that is shared with the parent
            os.close(read)
            _silence()
            hard = resource.getrlimit(resource.RLIMIT_CPU)[1]  # which no child of this process could raise
            most = seconds if hard == resource.RLIM_INFINITY else min(seconds, hard)
            resource.setrlimit(resource.RLIMIT_CPU, (most, hard))
            found = _in_new_thread(examine, task)
        except BaseException as error:  # of the examination itself: what it examines, it reports
            found = Outcome(CRASH, f"the examination ended with {type(error).__name__}: {error}")
        try:
            os.write(write, json.dumps((found.verdict, found.reason)).encode())
        finally:
            os._exit(0)
    os.close(write)
    return _Child(task, process, read, min(time.monotonic() + _WAITING * seconds, until))


def _in_new_thread(examine: Callable[[T], Outcome], task: T) -> Outcome:
    """A fork has none of the threads of its parent, but memory that speaks of them: TVM's pool of threads, one for each
    thread that asks, would wait for workers that are not there. A new thread starts a pool of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(examine, task).result()


def _ended(child: _Child[T], ready: bool, seconds: int) -> Outcome:
    text = os.read(child.pipe, 1 << 16) if ready else b""
    os.close(child.pipe)
    if not text:
        with suppress(OSError):  # with the compilers that it started
            os.killpg(child.process, signal.SIGKILL)
    status = os.waitpid(child.process, 0)[1]
    if text:
        return Outcome(*json.loads(text))
    if not ready or os.waitstatus_to_exitcode(status) == -signal.SIGXCPU:
        return Outcome(HANG, f"longer than {seconds} s")
    return Outcome(CRASH, f"the process died with status {status}")


def _silence() -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
