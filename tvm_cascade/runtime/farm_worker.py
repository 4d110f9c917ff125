"""A process of the farm (`runtime.farm`): takes jobs from standard input, one JSON line each, and times them on a server.

    python -m tvm_cascade.runtime.farm_worker HOST PORT KEY

A job is `{"library", "types", "repeats", "min_ms", "expect", "seconds"}`; without a library it asks what a server is. The answer
is `{"samples"}`, `{"about"}` or `{"error"}`. The first line, `{}`, says that the process is ready. A session with a server is
kept for jobs that follow soon after. A server is requested only where the tracker has a free one: a request that waits
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

import tvm
from tvm import rpc

from tvm_cascade.runtime.bench import random_inputs

_KEEP_S = 5.0  # a session is given back after that time, so that others get the server
_IDLE_S = 0.3  # and where no job comes for that long
_POLL_S = 0.1
_PATIENCE_S = 20.0  # without any server of the key, or with none but other machines


class _NoServerError(Exception):
    """No server that is right was free in time."""


class Worker:
    """Sessions with servers of one key, one at a time."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._tracker = rpc.connect_tracker(host, port)
        self._key = key
        self._session: Any = None
        self._about: dict[str, Any] = {}
        self._began = 0.0

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        """The result of a job; errors of servers become answers."""
        try:
            self._connect(job.get("expect"), float(job["seconds"]))
            if "library" not in job:
                return {"about": self._about}
            return {"samples": self._time(job)}
        except (RuntimeError, OSError, ValueError, AttributeError, _NoServerError) as error:  # TVM's are RuntimeErrors
            self.release()
            lines = [x for x in str(error).splitlines() if x.strip()] or [type(error).__name__]
            return {"error": lines[-1][:300], "lost": isinstance(error, _NoServerError)}

    def release(self) -> None:
        """End the session."""
        self._session = None
        gc.collect()  # modules and tensors of the server hold the session

    @property
    def busy(self) -> bool:
        """Whether a session is held."""
        return self._session is not None

    def _connect(self, expect: dict[str, Any] | None, seconds: float) -> None:
        if self._session is not None and time.monotonic() - self._began < _KEEP_S:
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
            met = _describe(session)
            if expect is None or met == expect:
                self._session, self._about, self._began = session, met, time.monotonic()
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

    def _time(self, job: dict[str, Any]) -> list[float]:
        session, name = self._session, os.path.basename(job["library"])
        session.upload(job["library"], name)
        module = session.load_module(name)
        device = session.cpu(0)
        args = [tvm.runtime.tensor(x, device) for x in random_inputs([(tuple(s), t) for s, t in job["types"]])]
        options = {"number": 1, "repeat": job["repeats"], "min_repeat_ms": job["min_ms"]}
        samples = [t * 1e3 for t in module.time_evaluator("main", device, **options)(*args).results]
        session.remove(name)
        return samples


def _describe(session: Any) -> dict[str, Any]:
    """What tells one kind of server from another: its CPU, its threads, the compiler behind its runtime."""

    def ask(name: str, default: Any) -> Any:
        try:
            return session.get_function(name)()
        except (RuntimeError, AttributeError, ValueError):
            return default

    return {
        "cpu": str(ask("target.llvm_get_system_cpu", "generic")),
        "threads": int(ask("runtime.NumThreads", 1)),
        "llvm": int(ask("target.llvm_version_major", 0)),
    }


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
