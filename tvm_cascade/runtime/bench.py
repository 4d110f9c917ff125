"""Where kernels are timed: on this machine (`LocalBench`), or on the servers of an RPC tracker (`runtime.farm.FarmBench`).

Both compile a PrimFunc and give a timer for it. Everything that is measured for a CPU goes through one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tvm

from tvm_cascade.passes.stage_cpu import threads
from tvm_cascade.runtime.execute import host_target

MIN_MS = 2  # of one timed repetition

Timer = Callable[[int], list[float]]  # number of repetitions -> milliseconds of each


class Bench(Protocol):
    """A CPU on which kernels are timed."""

    name: str  # of the CPU and its number of threads, under which measurements are stored
    workers: int  # threads of TVM's pool there

    def timer(self, func: Any) -> Timer:
        """Compile a PrimFunc; the timer runs it on random inputs."""
        ...


class LocalBench:
    """This machine's CPU."""

    def __init__(self, workers: int | None = None) -> None:
        """`workers`: threads, default TVM's pool."""
        self.workers = workers or threads()
        self._target: Any = host_target()
        self.name = f"cpu:{self._target.attrs.get('mcpu', 'generic')}:{self.workers}"

    def timer(self, func: Any) -> Timer:
        """See `Bench`."""
        built = tvm.compile(main_module(func), self._target)
        args = [tvm.runtime.tensor(x) for x in random_inputs(types_of(func))]

        def time(repeats: int) -> list[float]:
            clock = built.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=repeats, min_repeat_ms=MIN_MS)
            return [t * 1e3 for t in clock(*args).results]

        return time


def main_module(func: Any) -> tvm.IRModule:
    """A module whose only function, `main`, is the PrimFunc."""
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def types_of(func: Any) -> list[tuple[tuple[int, ...], str]]:
    """Shape and type of every parameter."""
    return [(tuple(int(d) for d in p.ty.shape), str(p.ty.dtype)) for p in func.params]


def random_inputs(types: list[tuple[tuple[int, ...], str]]) -> list[np.ndarray]:
    """Arrays of the given shapes and types."""
    rng = np.random.default_rng(0)
    return [rng.random(shape, dtype="float32").astype(dtype) for shape, dtype in types]
