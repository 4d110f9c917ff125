"""Which of several equivalent modules is fastest on this machine: the last word where a cost model has only guessed.

Runs are interleaved, so that a disturbance hits all candidates alike, and the fastest run of each counts. A later
candidate must win by `margin` over an earlier one, so with the original first a rewritten module is never chosen for
noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_cascade.errors import UsageError


@dataclass(frozen=True, slots=True)
class Choice:
    """The index of the fastest module, and the milliseconds of all."""

    best: int
    milliseconds: tuple[float, ...]


def fastest(
    modules: Sequence[tvm.IRModule],
    target: Any = "llvm",
    runs: int = 5,
    margin: float = 0.01,
    clock: Callable[[], float] = time.perf_counter,
    build: Callable[[tvm.IRModule, Any], Any] = tvm.compile,
    seed: int = 0,
) -> Choice:
    """Compiles and runs `main` of every module on the same random inputs, on the CPU.

    `clock` gives seconds; `time.process_time` with one thread is least disturbed by other programs. Raises
    `UsageError` where the modules' inputs differ.
    """
    inputs = [_inputs(mod, seed) for mod in modules]
    if any([(a.shape, a.dtype) for a in x] != [(a.shape, a.dtype) for a in inputs[0]] for x in inputs):
        raise UsageError("the modules to choose from take different inputs: give rewritten forms of one module")
    device: Any = tvm.cpu()
    machines = [relax.VirtualMachine(build(mod, target), device) for mod in modules]
    given = [tvm.runtime.tensor(a) for a in inputs[0]]
    best = [float("inf")] * len(modules)
    for _ in range(runs + 1):
        for k, machine in enumerate(machines):
            begin = clock()
            machine["main"](*given)
            best[k] = min(best[k], (clock() - begin) * 1e3)
    chosen = 0
    for k in range(1, len(best)):
        if best[k] < best[chosen] * (1 - margin):
            chosen = k
    return Choice(chosen, tuple(best))


def _inputs(mod: tvm.IRModule, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    made = []
    for param in mod["main"].params:
        shape, dtype = [int(d) for d in param.ty.shape.values], str(param.ty.dtype)
        integer = np.dtype(dtype).kind in "iu"
        value = random.integers(-100, 100, shape) if integer else random.random(shape)
        made.append(value.astype(dtype))
    return made
