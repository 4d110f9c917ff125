"""Measuring on a farm: servers behind TVM's RPC tracker (rfc/0012).

`Farm` runs jobs in `parallel` worker processes (`farm_worker`), each with a session on a server. A worker that does not
answer in time, because the server hangs or was cut off, is killed and the job given to another; after a server's death
the job is measured again. Only the worker that holds a job answers, so no result is lost or counted twice.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from tvm.rpc import base

from tvm_cascade.errors import ToolError, UsageError
from tvm_cascade.runtime.clock import MIN_MS, Types

_SECONDS = 60.0  # for one library of a job, waiting for a server included
_START_SECONDS = 120.0  # for a worker to stand: it imports TVM
_ATTEMPTS = 4  # of one job


@dataclass(frozen=True, slots=True)
class Tracker:
    """The address of servers, and the key to ask for; `parallel` servers are used at the same time."""

    host: str
    port: int
    key: str
    parallel: int = 1

    def require(self) -> None:
        """Raise `UsageError` unless a tracker answers there, and knows a server of the key."""
        keys = [s["key"].removeprefix("server:") for s in self._summary()["server_info"]]
        if self.key not in keys:
            others = f"; it has {', '.join(sorted(set(keys)))}" if keys else ""
            raise UsageError(
                f"the tracker at {self.host}:{self.port} has no server of key {self.key}{others}: "
                f"start one with python -m tvm.exec.rpc_server --tracker {self.host}:{self.port} --key {self.key}"
            )

    def _summary(self) -> dict[str, Any]:
        where = f"{self.host}:{self.port}"
        try:
            with socket.create_connection((self.host, self.port), timeout=10) as link:
                link.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
                if struct.unpack("<i", base.recvall(link, 4))[0] != base.RPC_TRACKER_MAGIC:
                    raise UsageError(f"what answers at {where} is no RPC tracker")
                base.sendjson(link, [base.TrackerCode.SUMMARY])
                return base.recvjson(link)[1]
        except (OSError, struct.error, ValueError) as error:
            raise UsageError(
                f"no RPC tracker answers at {where} ({error}): start one with python -m tvm.exec.rpc_tracker"
            ) from None


@dataclass(eq=False)
class Job:
    """Compiled libraries to be timed in turn on a single server, and the samples once they are there."""

    libraries: Sequence[Path]
    types: Types
    kernel: bool  # as in `runtime.bench.Program`
    min_ms: float = MIN_MS
    repeats: int = 1
    rounds: int = 1
    samples: list[list[float]] | None = None  # milliseconds of every library
    error: str = ""  # why there are none

    @property
    def done(self) -> bool:
        """Return True if the job was measured, or cannot be."""
        return self.samples is not None or bool(self.error)

    def question(self) -> dict[str, Any]:
        """Return the job in the worker's format."""
        asked = {"libraries": [str(p) for p in self.libraries], "types": self.types, "kernel": self.kernel}
        return asked | {"min_ms": self.min_ms, "repeats": self.repeats, "rounds": self.rounds}


class Farm:
    """Worker processes for timing jobs; as a context manager, ends them."""

    def __init__(self, tracker: Tracker, seconds: float = _SECONDS, device: str = "cpu") -> None:
        """Start the workers.

        `seconds`: for a single library of a job. `device`: "cpu", or "cuda" for the first GPU of every server. Raises
        `UsageError` without a tracker or a server for the key, `ToolError` if no server answers.
        """
        tracker.require()
        self._seconds, self.device, self.key = seconds, device, tracker.key
        self._command = [sys.executable, "-m", "tvm_cascade.runtime.farm_worker"]
        self._command += [tracker.host, str(tracker.port), tracker.key]
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._done: SimpleQueue[Job] = SimpleQueue()
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False
        self._lost = ""  # why no server is left
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - workers write into it as long as the farm stands
        self._threads: list[threading.Thread] = []
        try:
            self.about = self._ask_about()
        except BaseException:
            self.close()
            raise
        for _ in range(tracker.parallel):
            self._threads.append(threading.Thread(target=self._serve, daemon=True))
            self._threads[-1].start()

    def __enter__(self) -> Farm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, job: Job) -> None:
        """Send a job to be timed."""
        job.samples, job.error = None, ""
        self._jobs.put(job)

    def finished(self, wait: bool) -> Iterator[Job]:
        """Yield finished jobs: all finished by now, or with `wait` the next. Raises `ToolError` if no server is left."""
        while True:
            try:
                job = self._done.get(wait, None)
            except Empty:
                return
            if self._lost:
                raise ToolError(f"measuring on the farm failed: {self._lost}; what was measured is kept")
            yield job
            if wait:
                return

    def close(self) -> None:
        """End all workers, and so their sessions."""
        self._ended = True
        for _ in self._threads:
            self._jobs.put(None)
        for process in list(self._running):
            process.kill()
        for thread in self._threads:
            thread.join(10)
        self._log.close()

    def _ask_about(self) -> dict[str, Any]:
        worker, error = self._start(), ""
        try:
            for _ in range(_ATTEMPTS):
                answer = self._answer(worker, {"seconds": self._seconds, "device": self.device})
                if answer is not None and "about" in answer:
                    return answer["about"]
                error = "it does not answer" if answer is None else answer["error"]
                if answer is None:
                    self._end(worker)
                    worker = self._start()
        finally:
            self._end(worker)
        raise ToolError(f"no server of the farm can be used: {error}")

    def _serve(self) -> None:
        """Take jobs until the farm ends; a thread for each worker."""
        worker: subprocess.Popen[str] | None = None
        while (job := self._jobs.get()) is not None:
            seconds = self._seconds * len(job.libraries)
            question = job.question() | {"expect": self.about, "seconds": seconds, "device": self.device}
            error, samples = "the farm ended", None
            for _ in range(_ATTEMPTS):
                if self._ended:
                    break
                worker = worker or self._start()
                answer = self._answer(worker, question)
                if answer is None:
                    self._end(worker)
                    worker, error = None, f"no answer within {2 * seconds:g} s, or the worker ended"
                elif "samples" in answer:
                    samples = answer["samples"]
                    break
                else:
                    error = answer["error"]
                    if answer["lost"]:
                        self._lost = error
                        break
            job.samples, job.error = samples, "" if samples is not None else f"{error} (tried {_ATTEMPTS} times)"
            self._done.put(job)
        if worker is not None:
            self._end(worker)

    def _start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=self._log, text=True, bufsize=1, env=environment
        )
        self._running.add(process)
        self._line(process, _START_SECONDS)  # a worker that does not stand gives no answer either
        return process

    def _end(self, process: subprocess.Popen[str]) -> None:
        self._running.discard(process)
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()

    def _answer(self, worker: subprocess.Popen[str], question: dict[str, Any]) -> dict[str, Any] | None:
        """Ask the worker; return None without an answer."""
        assert worker.stdin is not None
        try:
            worker.stdin.write(json.dumps(question) + "\n")
            worker.stdin.flush()
        except (OSError, ValueError):
            return None
        return self._line(worker, 2 * float(question["seconds"]))

    def _line(self, worker: subprocess.Popen[str], seconds: float) -> dict[str, Any] | None:
        """Read the next line of a worker; None if it does not come in time."""
        assert worker.stdout is not None
        try:
            ready = select.select([worker.stdout], [], [], seconds)[0]
            return json.loads(worker.stdout.readline()) if ready else None
        except (OSError, ValueError):
            return None
