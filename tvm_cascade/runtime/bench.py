"""Benches for timing kernels and programs: this machine (`LocalBench`), or servers of an RPC tracker
(`runtime.farm_bench`).

Every measurement goes through a `Bench`: stages of a search, substituted operators, MetaSchedule's candidates, and
whole programs in turn. A measured program is compiled here for the bench's target, and timed there by TVM's own clock
(`runtime.clock`), on the computing machine.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import tvm

from tvm_cascade.errors import ToolError
from tvm_cascade.runtime.clock import MIN_MS, Timer, Types, clock_of, last_line, run_in_turn
from tvm_cascade.runtime.cuda import require_cuda, with_architecture
from tvm_cascade.runtime.cuda_code import CudaCode, compiled_as
from tvm_cascade.staging.kernels.processors import host_target
from tvm_cascade.staging.program.cpu import threads
from tvm_cascade.staging.program.cuda import cuda_target


class FailedRunError(ToolError):
    """The program to be timed does not run there."""


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled program or kernel, timed on random arguments."""

    built: Any  # TVM's executable: of a kernel, its function `main`; of a program, one for the virtual machine
    types: Types
    kernel: bool = False
    min_ms: float = MIN_MS  # of a repetition of a kernel, which then runs several times
    kept: bool = True  # it stays loaded, with its memory, from one call of its timer to the next


class Bench(Protocol):
    """A machine on which kernels and programs are timed."""

    name: str  # of the processor and its number of threads, or of the GPU, under which measurements are stored
    machine: str  # model of the processor or GPU
    workers: int  # threads of TVM's pool there; of a GPU, streams at the same time, 0 for any number
    device: str  # TVM's name of the device there: "cpu:0" or "cuda:0"
    cache_bytes: int  # of a GPU's last cache, 0 where it is not known; 0 for a CPU
    target: str  # "llvm" for this processor, "llvm -mcpu=NAME" for another one, or "cuda -arch=sm_90"
    built_for: Any  # the same as TVM's target, for which is compiled

    def timer(self, program: Program) -> Timer:
        """Make a timer of a kernel or a program. The timer raises `FailedRunError` if the program does not run."""
        ...

    def times(self, timers: Sequence[Timer], repeats: int) -> list[list[float] | str]:
        """Measure the milliseconds of every timer, several at a time if the bench can; or return why it does not run."""
        ...

    def in_turn(self, programs: Sequence[Program], rounds: int, repeats: int = 1) -> list[list[float]]:
        """Measure every program's milliseconds, run in turn on a single machine: `rounds` times `repeats` each."""
        ...


class LocalBench:
    """This machine: the CPU, or a GPU."""

    def __init__(self, workers: int | None = None, target: str = "llvm", device: str | None = None) -> None:
        """Open the bench.

        `workers`: threads, default TVM's pool. `target`: "llvm", or "cuda" with or without options. `device`: TVM's
        name, by default the target's first device; tests let the CPU stand in for a GPU, and streams then have no
        effect. Raises `MissingToolError` if there is no such GPU.
        """
        gpu = target.startswith("cuda")
        self.device = device or ("cuda:0" if gpu else "cpu:0")
        self._device: Any = tvm.runtime.device(self.device)
        self.cache_bytes = 0
        if self.device.startswith("cuda"):
            require_cuda(self._device.index)
            self.target, self.workers = with_architecture(target, self._device.index), workers or 0
            self.built_for: Any = cuda_target(self.target)
            self.machine = str(self._device.device_name)
            self.name = f"cuda:{self.machine}"
            self.cache_bytes = int(self._device.l2_cache_size_bytes or 0)
        else:
            self.target, self.workers = target, (workers or 0) if gpu else (workers or threads())
            self.built_for = host_target()
            self.machine = str(self.built_for.attrs.get("mcpu", "generic"))
            self.name = self.device if gpu else f"cpu:{self.machine}:{self.workers}"

    def timer(self, program: Program) -> Timer:
        """Make a timer; see `Bench`."""
        module = program.built.mod if program.kernel else program.built
        timed = program.types, program.kernel, program.min_ms, program.kept
        made: list[Timer] = []

        def time(repeats: int) -> list[float]:
            try:
                clock = made[0] if made else clock_of(module, self._device, *timed)
                made[:] = [clock] if program.kept else []
                return clock(repeats)
            except Exception as error:  # whatever TVM raises, or a library that a kernel calls
                raise FailedRunError(f"what was to be measured does not run here: {last_line(error)}") from None

        return time

    def times(self, timers: Sequence[Timer], repeats: int) -> list[list[float] | str]:
        """Measure every timer; see `Bench`."""
        return [milliseconds_or_reason(timer, repeats) for timer in timers]

    def in_turn(self, programs: Sequence[Program], rounds: int, repeats: int = 1) -> list[list[float]]:
        """Measure programs in turn; see `Bench`."""
        return run_in_turn([self.timer(p) for p in programs], rounds, repeats)


def kernel_program(func: Any, bench: Bench, min_ms: float = MIN_MS) -> Program:
    """Compile a PrimFunc as a kernel for a bench."""
    target = bench.built_for
    code = CudaCode((str(target.attrs["arch"]),)) if target.kind.name == "cuda" else None
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with nullcontext() if code is None else compiled_as(code), nullcontext() if code is None else target:
        return Program(tvm.compile(mod, target), types_of(func), True, min_ms)


def milliseconds_or_reason(timer: Timer, repeats: int) -> list[float] | str:
    """Run a timer, or return the reason for a failure."""
    try:
        return timer(repeats)
    except FailedRunError as error:
        return str(error)


def types_of(func: Any) -> list[tuple[tuple[int, ...], str]]:
    """Return shape and type for every PrimFunc parameter."""
    return [(tuple(int(d) for d in p.ty.shape), str(p.ty.dtype)) for p in func.params]
