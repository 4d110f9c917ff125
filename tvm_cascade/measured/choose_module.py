"""Choose the fastest among equivalent modules by running all in turn.

Runs are interleaved, so a disturbance affects all candidates, and a candidate is judged by the median speedup over the
first, run by run. A candidate must win by `margin`, with a least time no longer; so, with the original first, a
rewritten module is not chosen because of noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax

from tvm_cascade.cost.records import median_interval
from tvm_cascade.errors import GraphError, UsageError
from tvm_cascade.parallel.problem import CONCURRENT, Schedule, Stage
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime.bench import Bench, LocalBench, Program

if TYPE_CHECKING:
    from tvm_cascade.staging.program.schedule_stages import LowerOptions

_MOST_ROUNDS, _ENOUGH = 101, 2.0


@dataclass(frozen=True, slots=True)
class Choice:
    """Index of the fastest module, each module's least milliseconds, and median ratios to the first."""

    best: int
    milliseconds: tuple[float, ...]
    ratios: tuple[float, ...] = ()  # above 1: faster than the first


def staged(mod: tvm.IRModule, target: Any = None, bench: Bench | None = None) -> Any:
    """Compile a module with this project's kernels, operators in sequence; by TVM's default if that is impossible.

    `bench` runs the result; None: this machine's CPU, with all vector instructions. `target` is ignored.
    """
    from tvm_cascade.runtime.execute import compile_stages
    from tvm_cascade.staging.program.network import stage_network
    from tvm_cascade.staging.program.schedule_stages import lower_stages

    bench = bench or LocalBench()
    try:
        net = stage_network(mod, bench.target)
        units = unit_graph(net.graph, "fused")
        stages = tuple(Stage(CONCURRENT, (unit.ops,)) for unit in units.units)
        return compile_stages(lower_stages(net, units, Schedule(stages, 0.0), lowering(bench)), bench.built_for)
    except GraphError:
        with bench.built_for:
            return tvm.compile(mod, bench.built_for)


def lowering(bench: Bench, metaschedule: str | Path | None = None) -> LowerOptions:
    """Return the options for lowering a schedule for a bench; `metaschedule`: folder with records of tuned kernels."""
    from tvm_cascade.staging.program.schedule_stages import LowerOptions

    place = int(bench.device.partition(":")[2] or 0)
    return LowerOptions(target=bench.target, workers=bench.workers or 1, device=place, metaschedule=metaschedule)


def fastest_on(bench: Bench, modules: Sequence[tvm.IRModule], runs: int = 7, margin: float = 0.01) -> Choice:
    """Choose the fastest module on a bench, as `fastest` does, with this project's kernels."""
    inputs = [_inputs(mod, 0) for mod in modules]
    programs = [
        Program(staged(mod, bench=bench), [(a.shape, str(a.dtype)) for a in arrays])
        for mod, arrays in zip(modules, inputs, strict=True)
    ]

    def rounds(count: int) -> list[tuple[float, ...]]:
        columns = bench.in_turn(programs, count)
        return [tuple(t / 1e3 for t in row) for row in zip(*columns, strict=True)]

    first = rounds(runs)
    more = _more(first)
    return decide(first + (rounds(more) if more > 0 else []), margin)


def _more(rounds: Sequence[Sequence[float]]) -> int:
    """Compute the number of further rounds for short programs."""
    taken = sum(map(sum, rounds)) / len(rounds)
    return min(_MOST_ROUNDS, int(_ENOUGH / taken)) - len(rounds) if taken else 0


def fastest(
    modules: Sequence[tvm.IRModule],
    target: Any = "llvm",
    runs: int = 7,
    margin: float = 0.01,
    clock: Callable[[], float] = time.perf_counter,
    build: Callable[[tvm.IRModule, Any], Any] = tvm.compile,
    seed: int = 0,
) -> Choice:
    """Compiles and runs `main` of every module on the same random inputs, on the CPU.

    Short programs run more rounds than `runs`, up to `_MOST_ROUNDS` in `_ENOUGH` seconds: their ratios scatter more.
    `clock` gives seconds; `time.process_time` with one thread is least disturbed by other programs. Raises `UsageError`
    if the modules' inputs differ.
    """
    inputs = [_inputs(mod, seed) for mod in modules]
    if any([(a.shape, a.dtype) for a in x] != [(a.shape, a.dtype) for a in inputs[0]] for x in inputs):
        raise UsageError("the modules to choose from take different inputs: give rewritten forms of one module")
    device: Any = tvm.cpu()
    machines = [relax.VirtualMachine(build(mod, target), device) for mod in modules]
    given = [tvm.runtime.tensor(a) for a in inputs[0]]

    def one_round() -> list[float]:
        return [_seconds(machine, given, clock) for machine in machines]

    one_round()  # the first run allocates
    rounds = [one_round() for _ in range(runs)]
    return decide(rounds + [one_round() for _ in range(_more(rounds))], margin)


def decide(rounds: Sequence[Sequence[float]], margin: float, certain: bool = False) -> Choice:
    """Choose by `rounds`, the seconds of every candidate in each round: the first, unless another wins by `margin` in
    the median ratio with a least time no longer; if `certain`, only with 95 % confidence that the median exceeds 1.
    """
    count = len(rounds[0])
    columns = [[r[0] / r[k] if r[k] else 1.0 for r in rounds] for k in range(count)]
    ratios = [median(column) for column in columns]
    least = [min(r[k] for r in rounds) for k in range(count)]
    able = [k for k in range(count) if ratios[k] * (1 - margin) >= 1 and least[k] <= least[0]]
    if certain:
        able = [k for k in able if median_interval(columns[k])[0] > 1]
    chosen = max(able, key=lambda k: (ratios[k], -k), default=0)
    return Choice(chosen, tuple(t * 1e3 for t in least), tuple(ratios))


def _seconds(machine: Any, given: Sequence[Any], clock: Callable[[], float]) -> float:
    begin = clock()
    machine["main"](*given)
    return clock() - begin


def _inputs(mod: tvm.IRModule, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    arrays = []
    for param in mod["main"].params:
        shape, dtype = [int(d) for d in param.ty.shape.values], str(param.ty.dtype)
        integer = np.dtype(dtype).kind in "iu"
        value = random.integers(-100, 100, shape) if integer else random.random(shape)
        arrays.append(value.astype(dtype))
    return arrays
