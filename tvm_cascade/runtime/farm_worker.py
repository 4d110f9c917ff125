"""A process of the farm (`runtime.farm`): takes jobs from standard input, one JSON line each, for timing on a server.

    python -m tvm_cascade.runtime.farm_worker HOST PORT KEY

A job is `{"libraries", "types", "kernel", "min_ms", "repeats", "rounds", "device", "expect", "seconds"}`; without
libraries the job asks for a description of the server. The answer is `{"samples"}`, a list for every library,
`{"about"}` or `{"error", "lost"}`. The first line, `{}`, says that the process is ready. A session with a server is
kept for jobs that follow soon after. A server is requested only if the tracker has a free server: a waiting request
would stay in the tracker when this process ends.
"""

from __future__ import annotations

import gc
import json
import os
import select
import sys
import time
from typing import Any

from tvm import rpc

from tvm_cascade.runtime.clock import clock_of, last_line, run_in_turn

_KEEP_S = 5.0  # a session is given back after that time, so that others get the server
_IDLE_S = 0.3  # and where no job comes for that long
_POLL_S = 0.1
_PATIENCE_S = 20.0  # without any server of the key, or with none but other machines


class _NoServerError(Exception):
    """No suitable server was free in time."""


class Worker:
    """Sessions with servers of a single key, one at a time."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._tracker = rpc.connect_tracker(host, port)
        self._key = key
        self._session: Any = None
        self._about: dict[str, Any] = {}
        self._began = self._seconds = 0.0  # when the session began, and how long its longest job may take

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run a job and return the result; server errors become answers."""
        try:
            self._connect(job["device"], job.get("expect"), float(job["seconds"]))
            if "libraries" not in job:
                return {"about": self._about}
            return {"samples": self._time(job)}
        except (RuntimeError, OSError, ValueError, AttributeError, _NoServerError) as error:  # TVM's are RuntimeErrors
            self.release()
            return {"error": last_line(error), "lost": isinstance(error, _NoServerError)}

    def release(self) -> None:
        """End the session."""
        self._session = None
        gc.collect()  # modules and tensors of the server hold the session

    @property
    def busy(self) -> bool:
        """Return True if a session is held."""
        return self._session is not None

    def _connect(self, device: str, expect: dict[str, Any] | None, seconds: float) -> None:
        if self._session is not None and time.monotonic() - self._began < _KEEP_S and seconds <= self._seconds:
            return
        self.release()
        end, met = time.monotonic() + seconds, None
        patience = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            if not self._free():
                if not self._servers() and time.monotonic() > patience:
                    raise _NoServerError(f"the tracker has no server of key {self._key} any more")
                time.sleep(_POLL_S)
                continue
            session = self._tracker.request(self._key, session_timeout=int(_KEEP_S + seconds) + 1, max_retry=1)
            met = _describe(session, device)
            if expect is None or met == expect:
                self._session, self._about, self._began, self._seconds = session, met, time.monotonic(), seconds
                return
            del session
            gc.collect()
            if time.monotonic() > patience:
                raise _NoServerError(f"a server of key {self._key} is another machine: {met}, others are {expect}")
            time.sleep(5 * _POLL_S)  # it is free again at once: let others have it
        raise _NoServerError(f"no server of key {self._key} was free for {seconds:g} s")

    def _free(self) -> int:
        return self._tracker.summary()["queue_info"].get(self._key, {"free": 0})["free"]

    def _servers(self) -> int:
        return sum(s["key"] == f"server:{self._key}" for s in self._tracker.summary()["server_info"])

    def _time(self, job: dict[str, Any]) -> list[list[float]]:
        session, paths = self._session, job["libraries"]
        names = [os.path.basename(path) for path in paths]
        types, device = [(tuple(s), t) for s, t in job["types"]], session.device(job["device"], 0)
        timers = []
        for path, name in zip(paths, names, strict=True):
            session.upload(path, name)
            timers.append(clock_of(session.load_module(name), device, types, job["kernel"], job["min_ms"]))
        samples = run_in_turn(timers, job["rounds"], job["repeats"])
        for name in names:
            session.remove(name)
        return samples


def _describe(session: Any, device: str) -> dict[str, Any]:
    """Describe a kind of server: CPU, threads, the compiler behind the runtime; the GPU if asked for."""

    def ask(name: str, default: Any) -> Any:
        try:
            return session.get_function(name)()
        except (RuntimeError, AttributeError, ValueError):
            return default

    about = {
        "cpu": str(ask("target.llvm_get_system_cpu", "generic")),
        "threads": int(ask("runtime.NumThreads", 1)),
        "llvm": int(ask("target.llvm_version_major", 0)),
    }
    if device == "cpu":
        return about
    gpu = session.device(device, 0)
    if not gpu.exist:
        raise _NoServerError(f"a server has no GPU that TVM's runtime for {device} finds")
    arch = f"sm_{str(gpu.compute_version).replace('.', '')}"
    return about | {"gpu": str(gpu.device_name), "arch": arch, "cache": int(gpu.l2_cache_size_bytes or 0)}


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    host, port, key = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    worker = Worker(host, port, key)
    answers.write("{}\n")  # it stands: from now on answers are waited for
    answers.flush()
    while True:
        if worker.busy and not select.select([sys.stdin], [], [], _IDLE_S)[0]:
            worker.release()
        line = sys.stdin.readline()
        if not line:
            return 0
        answers.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    sys.exit(main())
