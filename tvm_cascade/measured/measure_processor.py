"""Measure the description of this machine's CPU (`cost.processor`) with this project's own kernels.

Programs of stages are compiled and run as they are for users: a 1x1 convolution for arithmetic, sums of two tensors for
traffic, chains of tiny kernels for overheads. A figure is the least time of many runs, so that other processes on the
machine disturb it little. The measurement runs in a process of its own, because TVM reads the number of threads as it
starts: `measure` starts it, `python -m tvm_cascade.measured.measure_processor` is it.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from typing import Any

import numpy as np

from tvm_cascade.cost.processor import Processor, cores, keep, this_model
from tvm_cascade.errors import ToolError
from tvm_cascade.operators.table import efficiency

Progress = Callable[[str], None]

_SECONDS = 0.4  # of runs for a figure
_TOGETHER = 3  # times as long for a figure of threads together, which others on the machine disturb more
_BATCHES = 4  # of them: inputs are copied for each
_FEWEST, _MOST = 5, 2000  # runs for a figure
_PATIENCE = 120.0  # seconds, after which the process is ended
_CHANNELS, _SIZE = 256, 28  # of the convolution: weights and image stay in a core's own cache
_CHAIN, _STAGES = 32, 8  # tiny kernels, and stages of them: what a run costs by itself is little of their sum
_MIB = (1, 4, 16, 64, 256)  # footprints of traffic
_BUSY = 0.3  # load for each core, from which on the figures of all threads are doubtful
_LONGEST_SYNC_US = 200.0  # of a fork and join: longer, threads have waited for other processes
_FASTER = 1.5  # than memory: what is faster comes from the cache
_VECTOR_BITS = (("avx512f", 512), ("avx", 256), ("sse2", 128), ("neon", 128))


def measure(progress: Progress = lambda _text: None) -> Processor:
    """Measure this machine's CPU in a process of its own, on all cores that it may use, and keep the description.

    `progress` is called with a text line for every figure. Raises `ToolError` if the process fails or other processes
    keep the cores busy, `UsageError` if the description cannot be kept.
    """
    threads = cores()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > _BUSY * threads:
        progress(
            f"other processes use this machine (load {load:.1f} on {threads} cores): measure again when it is idle"
        )
    environment = os.environ | {"TVM_NUM_THREADS": str(threads), "TVM_BIND_THREADS": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "tvm_cascade.measured.measure_processor"]
    last = ""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            for last in process.stdout:
                if not last.startswith("{"):
                    progress(last.rstrip())
            error = process.stderr.read()
            process.wait(_PATIENCE)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0 or not last.startswith("{"):
        reason = (error.strip().splitlines() or ["it ended without a result"])[-1]
        raise ToolError(f"the processor could not be measured: {reason}")
    processor = Processor(**json.loads(last))
    if processor.sync_us > _LONGEST_SYNC_US:
        raise ToolError(
            f"a fork and join took {processor.sync_us:.0f} us: other processes keep the cores busy; measure again when this "
            "machine is idle (nothing was kept)"
        )
    keep(processor)
    return processor


def measured_here(progress: Progress) -> Processor:
    """Measure in this process, on all threads of TVM's pool."""
    from tvm_cascade.staging.program.cpu import threads as pool

    threads = pool()
    progress("arithmetic of one thread")
    work = _CHANNELS * _CHANNELS * _SIZE * _SIZE / efficiency("conv2d") * 1e3
    one = _arithmetic(1, 1)
    lanes = divided = one
    if threads > 1:
        progress(f"arithmetic of {threads} threads")
        lanes, divided = _arithmetic(threads, threads), _arithmetic(1, threads)
    progress("kernels and parallel regions")
    launch = _overhead(1, 1, _CHAIN)
    sync = max(0.0, _overhead(threads, threads, _STAGES) - launch) if threads > 1 else 0.0
    single = _traffic(1, progress)
    every = _traffic(threads, progress) if threads > 1 else single
    thread_macs, macs = work / one, _together(work / one, work * threads / lanes, threads)
    cached = [mib for mib in _MIB[:-1] if single[mib] >= _FASTER * single[_MIB[-1]]]
    cached = cached[: next((k for k, mib in enumerate(cached) if mib != _MIB[k]), len(cached))]  # from the smallest on
    thread_cache = _middle([single[mib] for mib in cached])
    return Processor(
        model=this_model(),
        architecture=_architecture(),
        threads=threads,
        vector_bits=_vector_bits(),
        thread_macs_per_s=thread_macs,
        macs_per_s=macs,
        split=min(1.0, work / max(divided - sync, 1e-9) / macs),
        thread_bytes_per_s=single[_MIB[-1]],
        bytes_per_s=_together(single[_MIB[-1]], every[_MIB[-1]], threads),
        cache_bytes=cached[-1] << 20 if cached else 0,
        thread_cache_bytes_per_s=thread_cache,
        cache_bytes_per_s=_together(thread_cache, _middle([every[mib] for mib in cached]), threads),
        launch_us=launch * 1e3,
        sync_us=sync * 1e3,
        measured=date.today().isoformat(),
    )


def _together(one: float, every: float, threads: int) -> float:
    """Return the rate of all threads within what is possible: no less than one thread's, no more than that of each."""
    return min(max(one, every), one * threads)


def _middle(rates: list[float]) -> float:
    """Return the middle of some rates; 0 without any."""
    return sorted(rates)[(len(rates) - 1) // 2] if rates else 0.0


def _arithmetic(lanes: int, workers: int) -> float:
    """Return the milliseconds of 1x1 convolutions, each with an input of its own; several run one per thread."""
    from tvm import relax

    shape = (1, _CHANNELS, _SIZE, _SIZE)
    weights = np.random.default_rng(0).standard_normal((_CHANNELS, _CHANNELS, 1, 1)).astype("float32")
    return _least_ms(
        lanes,
        shape,
        lambda xs: [relax.op.nn.conv2d(x, relax.const(weights, "float32")) for x in xs],
        lambda units: [[unit.ops for unit in units]],
        workers,
        longer=workers > 1,
    )


def _overhead(lanes: int, workers: int, length: int) -> float:
    """Return the milliseconds of a kernel that computes next to nothing; of several, those of a stage with one per thread."""
    from tvm import relax

    def body(xs: list[Any], emit: Callable[[Any], Any]) -> list[Any]:
        for k in range(length):
            xs = [emit(relax.op.nn.relu(x) if k % 2 else relax.op.negative(x)) for x in xs]
        return xs

    def stages(units: Any) -> list[list[Any]]:
        return [[units[k * lanes + lane].ops for lane in range(lanes)] for k in range(length)]

    return _least_ms(lanes, (1, 16), body, stages, workers, steps=True, longer=workers > 1) / length


def _traffic(workers: int, progress: Progress) -> dict[int, float]:
    """Measure the bytes per second for sums of two tensors, by footprint in MiB."""
    from tvm import relax

    progress(f"traffic of {'one thread' if workers == 1 else f'{workers} threads'}")
    rates = {}
    for mib in _MIB:
        rows = (mib << 20) // (12 * 1024)
        milliseconds = _least_ms(
            2, (rows, 1024), lambda xs: [relax.op.add(*xs)], lambda units: [[unit.ops] for unit in units], workers
        )
        rates[mib] = 12 * 1024 * rows / milliseconds * 1e3
    return rates


def _least_ms(
    inputs: int,
    shape: tuple[int, ...],
    body: Callable[..., list[Any]],
    stages: Callable[[Any], list[list[Any]]],
    workers: int,
    steps: bool = False,
    longer: bool = False,
) -> float:
    """Compile a program of stages and return the least milliseconds of its runs. With `steps`, `body` emits bindings."""
    from tvm import relax

    from tvm_cascade.parallel.problem import CONCURRENT, Schedule, Stage
    from tvm_cascade.parallel.units import unit_graph
    from tvm_cascade.runtime import Session, compile_stages
    from tvm_cascade.staging.program.network import stage_network
    from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages

    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{k}", relax.TensorType(shape, "float32")) for k in range(inputs)]
    with builder.function("main", params):
        with builder.dataflow():
            made = body(params, builder.emit) if steps else [builder.emit(value) for value in body(params)]
            result = builder.emit_output(relax.Tuple(made))
        builder.emit_func_output(result)
    net = stage_network(builder.finalize(), "llvm")
    units = unit_graph(net.graph, "op")
    schedule = Schedule(tuple(Stage(CONCURRENT, tuple(groups)) for groups in stages(units.units)), 0.0)
    session = Session(compile_stages(lower_stages(net, units, schedule, LowerOptions(winograd=0, workers=workers))))
    data = [np.ones(shape, "float32")] * inputs
    times, left = session.times_ms(data, _FEWEST, warm_up=1), _SECONDS * 1e3 * (_TOGETHER if longer else 1)
    while len(times) < _MOST and left > sum(times[-_FEWEST:]):
        runs = int(left / _BATCHES / (sum(times[-_FEWEST:]) / _FEWEST))
        batch = session.times_ms(data, min(_MOST, max(_FEWEST, runs)), warm_up=0)
        times, left = times + batch, left - sum(batch)
    return min(times)


def _architecture() -> str:
    from tvm_cascade.staging.kernels.processors import host_target

    return str(host_target().attrs.get("mcpu", "generic"))


def _vector_bits() -> int:
    import tvm

    from tvm_cascade.staging.kernels.processors import host_target

    has = tvm.get_global_func("target.target_has_feature", allow_missing=True)
    return next((bits for name, bits in _VECTOR_BITS if has is not None and has(name, host_target())), 128)


def main() -> None:
    """Print a line for every step, then the description as JSON in one line."""
    processor = measured_here(lambda text: print(text, flush=True))
    print(json.dumps(asdict(processor)), flush=True)


if __name__ == "__main__":
    main()
