"""Timing loaded code by TVM's own clock: kernels and programs, on this machine or, through a session, on another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

MIN_MS = 2  # of one timed repetition of a kernel

Timer = Callable[[int], list[float]]  # number of repetitions -> milliseconds of each
Types = Sequence[tuple[tuple[int, ...], str]]  # shape and element type of every argument


def clock_of(
    module: Any, device: Any, types: Types, kernel: bool, min_ms: float = MIN_MS, pooled: bool = True
) -> Timer:
    """Make the timer of a loaded module, possibly on another machine: for its function `main`, or a virtual machine's
    program `main`.

    Every call has one untimed run before; a repetition of a kernel is as many runs as take `min_ms`. `pooled`: memory
    of a finished program is kept for others, else freed.
    """
    args = [tvm.runtime.tensor(x, device) for x in random_inputs(types)]
    if kernel:
        return lambda repeats: _milliseconds(
            module.time_evaluator("main", device, number=1, repeat=repeats, min_repeat_ms=min_ms)(*args)
        )
    machine = relax.VirtualMachine(module, device, "pooled" if pooled else "naive")
    machine.set_input("main", *args)
    return lambda repeats: _milliseconds(
        machine.time_evaluator("invoke_stateful", device, number=1, repeat=repeats, min_repeat_ms=0)("main")
    )


def _milliseconds(result: Any) -> list[float]:
    return [t * 1e3 for t in result.results]


def run_in_turn(timers: Sequence[Timer], rounds: int, repeats: int) -> list[list[float]]:
    """Measure the milliseconds of every timer, in rounds; every other round begins with the last timer."""
    samples: list[list[float]] = [[] for _ in timers]
    for k in range(rounds):
        order = range(len(timers)) if k % 2 == 0 else range(len(timers) - 1, -1, -1)
        for i in order:
            samples[i] += timers[i](repeats)
    return samples


def last_line(error: Exception) -> str:
    """Return the message of a TVM error, without the traceback."""
    lines = [x for x in str(error).splitlines() if x.strip()] or [type(error).__name__]
    return lines[-1][:300]


def random_inputs(types: Types) -> list[np.ndarray]:
    """Draw arrays of the given shapes and types: numbers between 0 and 1, zeros for integers."""
    rng = np.random.default_rng(0)
    return [rng.random(shape, dtype="float32").astype(dtype) for shape, dtype in types]
