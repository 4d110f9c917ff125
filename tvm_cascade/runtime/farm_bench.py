"""A farm as a `runtime.bench.Bench`: kernels and programs are compiled here, and timed by as many servers as are used."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false
from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm

from tvm_cascade.runtime.bench import FailedRunError, Program, milliseconds_or_reason
from tvm_cascade.runtime.clock import Timer
from tvm_cascade.runtime.cuda_code import CudaCode
from tvm_cascade.runtime.farm import Farm, Job
from tvm_cascade.runtime.shared_library import write_library
from tvm_cascade.staging.kernels.processors import written
from tvm_cascade.staging.program.cuda import cuda_target


class FarmBench:
    """A `Bench`: a farm's servers, all of the same kind."""

    def __init__(self, farm: Farm, target: str = "llvm") -> None:
        """Open the bench; `target`: "llvm", or "cuda" with or without options for a farm of GPUs."""
        self.farm, about = farm, farm.about
        if farm.device == "cuda":
            self.target = target if "-arch=" in target else f"{target} -arch={about['arch']}"
            self.built_for: Any = cuda_target(self.target)
            self.machine, self.workers, self.device = str(about["gpu"]), 0, "cuda:0"
            self.name = f"rpc:{farm.key}:{self.machine}"
            self.cache_bytes = int(about["cache"])
        else:
            self.cache_bytes = 0
            self.machine, self.workers, self.device = str(about["cpu"]), int(about["threads"]), "cpu:0"
            kind: dict[str, Any] = {"kind": "llvm", "mcpu": self.machine}
            self.built_for = tvm.target.Target(kind if self.machine != "generic" else {"kind": "llvm"})
            self.target = written(self.built_for)
            self.name = f"rpc:{farm.key}:{self.machine}:{self.workers}"
        self._folder = tempfile.TemporaryDirectory(prefix="tvm_cascade_farm")
        self._count = 0
        self._met: list[FarmTimer] | None = None  # timers that are asked while they are collected

    def timer(self, program: Program) -> Timer:
        """Make a timer; see `Bench`."""
        return FarmTimer(self, self._job([program]))

    def times(self, timers: Sequence[Timer], repeats: int) -> list[list[float] | str]:
        """Measure every timer; see `Bench`."""
        for timer in timers:
            if isinstance(timer, FarmTimer):
                timer.submit(repeats)
        return [milliseconds_or_reason(timer, repeats) for timer in timers]

    def in_turn(self, programs: Sequence[Program], rounds: int, repeats: int = 1) -> list[list[float]]:
        """Measure programs in turn; see `Bench`."""
        job = self._job(programs)
        job.rounds, job.repeats = rounds, repeats
        self.farm.submit(job)
        return self.result(job)

    def result(self, job: Job) -> list[list[float]]:
        """Wait for a submitted job and return the samples. Raises `FailedRunError` if the job cannot be run."""
        while not job.done:
            for _ in self.farm.finished(wait=True):
                pass
        if job.samples is None:
            raise FailedRunError(f"measuring on the farm failed: {job.error}; what was measured is kept")
        return job.samples

    @contextmanager
    def collecting(self) -> Iterator[list[FarmTimer]]:
        """Collect all timers asked in the block in a list instead of measuring; their times are zeros."""
        self._met = []
        try:
            yield self._met
        finally:
            self._met = None

    def met(self, timer: FarmTimer) -> bool:
        """Record a timer if timers are only collected; return True in that case."""
        if self._met is None:
            return False
        self._met.append(timer)
        return True

    def _job(self, programs: Sequence[Program]) -> Job:
        first = programs[0]
        return Job([self._library(p.built) for p in programs], first.types, first.kernel, first.min_ms)

    def _library(self, built: Any) -> Path:
        self._count += 1
        path = Path(self._folder.name) / f"program_{self._count}.so"
        code = CudaCode((str(self.built_for.attrs["arch"]),)) if self.farm.device == "cuda" else None
        write_library(built, path, code)
        return path


class FarmTimer:
    """A timer with submitted samples, or samples measured on call."""

    def __init__(self, bench: FarmBench, job: Job) -> None:
        self._bench, self.job = bench, job

    def submit(self, repeats: int) -> None:
        """Send the timer's job."""
        self.job.repeats = repeats
        self._bench.farm.submit(self.job)

    def __call__(self, repeats: int) -> list[float]:
        if self._bench.met(self):
            return [0.0] * repeats
        if not self.job.done or self.job.repeats != repeats:
            self.submit(repeats)
        return list(self._bench.result(self.job)[0])

    def forget(self) -> None:
        """Drop the samples: the next call measures anew."""
        self.job.samples, self.job.error = None, ""
