"""Tuning of stage kernels by MetaSchedule: the search space, the search, and the comparison with the default schedule.

On CPUs, convolutions (`cpu_compute.direct_conv2d` and `direct_pointwise`) are tuned, for one core and without parallel
loops: a kernel in a concurrent group and a kernel shared by all threads have the same loops, so both compute the same
bits. On CUDA every kernel is tuned, in MetaSchedule's own space. A learned cost model (XGBoost) proposes candidates;
the fastest are measured again, in alternation with the default schedule, and recorded only if faster.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import tvm
from tvm.tirx import PrimFunc

from tvm_cascade.errors import UsageError
from tvm_cascade.schedules.tir import s_tir
from tvm_cascade.schedules.tuning.metaschedule import (
    FAILED,
    Progress,
    Search,
    measured_by,
    ms,
    require_json,
    without_intrinsics,
)
from tvm_cascade.staging.kernels.cpu_float import Tiling, convolution_shape, default_pixels, tile_convolution
from tvm_cascade.staging.kernels.cpu_pointwise import PointTiling, is_pointwise, point_rows, tile_pointwise
from tvm_cascade.staging.kernels.processors import accumulators
from tvm_cascade.staging.kernels.records import KernelRecords, Record, apply_trace, digest, plain_trace

MARGIN = 0.02  # share of the default's time by which a candidate must be faster
FINALISTS = 3  # candidates that are measured again with the default
_MOST_PIXELS = 28  # most pixels of an accumulator tile: that many vectors leave registers for weights and inputs
_FEWEST_PIXELS = 4
_VECTORS = (1, 2, 3, 4)  # of pixels in an accumulator tile of a pointwise convolution


class Machine(Protocol):
    """The machine for running candidates."""

    @property
    def target(self) -> Any:
        """Return the TVM target for MetaSchedule's rules."""
        ...

    @property
    def records_as(self) -> str:
        """Return the target name in records (`stage_records.record_target`)."""
        ...

    @property
    def name(self) -> str:
        """Return the model name of the processor or device."""
        ...

    @property
    def processor(self) -> str | None:
        """Return the processor as text for `processors.processor`; None: a GPU."""
        ...

    def pair(self) -> tuple[Any, Any]:
        """Make a builder and a runner for MetaSchedule."""
        ...

    def default(self, func: PrimFunc) -> PrimFunc:
        """Apply the default schedule to the kernel, for a single core."""
        ...

    def least_ms(self, funcs: Sequence[PrimFunc]) -> list[float]:
        """Measure kernels with equal parameters in turn; return the least milliseconds of each."""
        ...


@dataclass(frozen=True)
class Report:
    """Summary of a `tune` call."""

    kernels: int  # distinct kernels that can be tuned
    tuned: int  # those with a recorded schedule that is faster than the default
    measured: int  # candidates measured in this call


def tune(
    funcs: Sequence[PrimFunc],
    records: KernelRecords,
    machine: Callable[[], Machine],
    target: str,
    search: Search,
    progress: Progress = lambda _text: None,
) -> Report:
    """Tune every kernel of `funcs` that can be tuned and has no record for `target` (`record_target`); add the records.

    `machine()` is called only if there is something to measure; `search.trials` of 0 measures nothing. Raises
    `MissingToolError` for an `apache-tvm-ffi` with which MetaSchedule crashes, and whatever `machine()` raises.
    """
    able = funcs if target.startswith("cuda") else [f for f in funcs if tunable(f)]
    distinct = {digest(f): f for f in able}
    known = {f: records.get(f, target) for f in distinct.values()}
    missing = [f for f, record in known.items() if record is None or not record.candidates]
    measured = 0
    if missing and search.trials:
        require_json()
        runner = machine()
        progress(f"measuring {len(missing)} kernels, {search.trials} candidates each, into {records.path}")
        model = ms.cost_model.XGBModel(num_warmup_samples=search.batch, num_tuning_cores=1)
        with _numpy_seeded(search.seed):
            for func in missing:
                record, before = _tuned(func, runner, search, model), known[func]
                if before is not None:  # a library's kernel was measured
                    record = replace(record, library=before.library, library_ms=before.library_ms)
                records.add(record)
                measured += record.candidates
    results = [records.get(f, target) for f in distinct.values()]
    return Report(len(distinct), sum(r is not None and r.trace is not None for r in results), measured)


@contextlib.contextmanager
def _numpy_seeded(seed: int) -> Iterator[None]:
    """Set the seed of NumPy's global generator while the context lasts, and restore the former state.

    MetaSchedule's cost model draws from this generator until measurements exist: equal seeds give equal candidates.
    """
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


def _tuned(func: Any, machine: Machine, search: Search, model: Any) -> Record:
    """Search, then measure the best candidates in alternation with the default; the record of the result."""
    traces, candidates = _search(func, machine, search, model)
    traces = [t for t in traces if _applies(func, t)]
    default, *times = machine.least_ms([machine.default(func), *(apply_trace(func, t) for t in traces)])
    best = min(range(len(times)), key=lambda k: times[k], default=None)
    shapes = " ".join("x".join(str(int(d)) for d in p.ty.shape) for p in func.params)
    tuned = float("inf") if best is None else times[best]
    won = best is not None and tuned < default * (1 - MARGIN)
    least = min(tuned, default)
    return Record(
        digest(func),
        shapes,
        machine.records_as,
        machine.name,
        candidates,
        round(default, 5),
        round(tuned if won else least, 5),
        traces[best] if won and best is not None else None,
    )


def _search(func: PrimFunc, machine: Machine, search: Search, model: Any) -> tuple[list[Any], int]:
    """Traces of the fastest candidates, the fastest first, and how many were measured."""
    database = ms.database.MemoryDatabase()
    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=32, init_min_unmeasured=8, genetic_num_iters=1, genetic_max_fail_count=4
    )
    cpu = machine.processor
    with contextlib.nullcontext() if cpu is None else without_intrinsics(), tempfile.TemporaryDirectory() as scratch:
        task = ms.TuneContext(
            mod=tvm.IRModule({"main": func.with_attr("global_symbol", "main")}),
            target=machine.target,
            space_generator="post-order-apply" if cpu is None else _cpu_space(cpu),
            search_strategy=strategy,
            task_name="kernel",
            rand_state=search.seed + 1,
            num_threads=1,
            logger=logging.getLogger(__name__),
        )
        ms.tune.tune_tasks(
            tasks=[task.clone()],
            task_weights=[1.0],
            work_dir=scratch,
            max_trials_global=search.trials,
            **measured_by(machine.pair(), search, database),
            cost_model=model,
        )
    measured = [r for r in database.get_all_tuning_records() if r.run_secs and float(r.run_secs[0]) < FAILED]
    measured.sort(key=lambda r: float(r.run_secs[0]))
    return [plain_trace(r.trace) for r in measured[:FINALISTS]], len(database)


def _applies(func: PrimFunc, trace: Any) -> bool:
    try:
        apply_trace(func, trace)
    except UsageError:
        return False
    return True


def _cpu_space(processor: str) -> Any:
    return ms.space_generator.ScheduleFn(
        partial(design, processor=processor), sch_rules=[], postprocs=[], mutator_probs={}
    )


def tunable(func: PrimFunc) -> bool:
    """Test whether a kernel for CPUs has a search space."""
    return convolution_shape(s_tir.Schedule(func)) is not None or is_pointwise(s_tir.Schedule(func))


def design(sch: Any, processor: str = "llvm") -> list[Any]:
    """List the search space of a convolution on CPUs: one schedule per loop order, with a sampled accumulator tile."""
    shape = convolution_shape(sch)
    if shape is None:
        assert is_pointwise(sch)
        rows, vectors = _choice(sch, point_rows()), _choice(sch, _VECTORS)
        return [tile_pointwise(sch, PointTiling(rows, vectors), False)]
    blocks, wide, taps = shape
    pixels = _pixels(wide, accumulators(processor))
    candidates = []
    for rows_first in (False, True):
        for taps_first in (False, True) if taps > 1 else (False,):
            here = sch.copy()
            candidates.append(
                tile_convolution(
                    here,
                    Tiling(
                        _choice(here, pixels),
                        _choice(here, [b for b in (1, 2, 4) if blocks % b == 0]),
                        rows_first,
                        taps_first,
                    ),
                    False,
                )
            )
    return candidates


def _pixels(wide: int, vectors: int) -> list[int]:
    """List the candidate widths of an accumulator tile: the default, and the least width for each number of tiles per
    row.
    """
    widths = {default_pixels(wide, vectors)}
    for tiles in range(1, wide + 1):
        pixels = -(-wide // tiles)
        if _FEWEST_PIXELS <= pixels <= _MOST_PIXELS:
            widths.add(pixels)
    return sorted(widths)


def _choice(sch: Any, values: Sequence[int]) -> Any:
    return sch.sample_categorical(list(values), [1 / len(values)] * len(values))
