"""Kernels of stages tuned by MetaSchedule: what is tried, how the best is told from the default.

On CPUs these are convolutions (`cpu_float.direct_conv2d`), for one core and without parallel loops: the kernel that runs
beside others in a concurrent group and the one that all threads share are the same loops, so both compute the same bits.
On CUDA it is every kernel, in MetaSchedule's own space. A learned cost model (XGBoost) proposes candidates; the fastest
ones are run again in turn with the default schedule, and kept only where they are faster than that.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tvm
from tvm.tirx import PrimFunc

from tvm_cascade.errors import UsageError
from tvm_cascade.schedules.stages.cpu_float import Tiling, convolution_shape, default_pixels, tile_convolution
from tvm_cascade.schedules.stages.stage_records import KernelRecords, Record, apply_trace, digest, plain_trace
from tvm_cascade.schedules.tir import s_tir
from tvm_cascade.schedules.tuning.metaschedule import FAILED, Progress, Search, ms, require_json, without_intrinsics

MARGIN = 0.02  # by which a candidate must beat the default
FINALISTS = 3
_MOST_PIXELS = 28  # of an accumulator tile: as many vectors as leave registers for weights and inputs
_FEWEST_PIXELS = 4


class Machine(Protocol):
    """Where candidates run."""

    @property
    def target(self) -> Any:
        """TVM's target that MetaSchedule's rules see."""
        ...

    @property
    def records_as(self) -> str:
        """The target of the records (`stage_records.record_target`)."""
        ...

    @property
    def name(self) -> str:
        """Model of the processor or device."""
        ...

    def pair(self) -> tuple[Any, Any]:
        """MetaSchedule's builder and runner."""
        ...

    def default(self, func: PrimFunc) -> PrimFunc:
        """The kernel under its default schedule, for one core."""
        ...

    def least_ms(self, funcs: Sequence[PrimFunc]) -> list[float]:
        """Least milliseconds of scheduled kernels that take the same parameters, run in turn."""
        ...


@dataclass(frozen=True)
class Report:
    """What tuning did: different kernels that can be tuned, those with a faster schedule, candidates measured now."""

    kernels: int
    tuned: int
    measured: int


def tune(
    funcs: Sequence[PrimFunc],
    records: KernelRecords,
    machine: Callable[[], Machine],
    target: str,
    search: Search,
    progress: Progress = lambda _text: None,
) -> Report:
    """Records for every kernel of `funcs` that can be tuned and has none for `target` (`record_target`).

    `machine` is asked for where there is something to measure; `search.trials` of 0 measures nothing. Raises
    `MissingToolError` for an `apache-tvm-ffi` with which MetaSchedule crashes, and what `machine` raises.
    """
    able = (
        funcs if target.startswith("cuda") else [f for f in funcs if convolution_shape(s_tir.Schedule(f)) is not None]
    )
    distinct = {digest(f): f for f in able}
    missing = [f for f in distinct.values() if records.get(f, target) is None]
    measured = 0
    if missing and search.trials:
        require_json()
        place = machine()
        progress(f"measuring {len(missing)} kernels, {search.trials} candidates each, into {records.path}")
        model = ms.cost_model.XGBModel(num_warmup_samples=search.batch, num_tuning_cores=1)
        for func in missing:
            record = _tuned(func, place, search, model)
            records.add(record)
            measured += record.candidates
    found = [records.get(f, target) for f in distinct.values()]
    return Report(len(distinct), sum(r is not None and r.trace is not None for r in found), measured)


def _tuned(func: Any, machine: Machine, search: Search, model: Any) -> Record:
    """Search, then run the best candidates in turn with the default."""
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
    builder, runner = machine.pair()
    cpu = machine.records_as == "llvm"
    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=32, init_min_unmeasured=8, genetic_num_iters=1, genetic_max_fail_count=4
    )
    with without_intrinsics() if cpu else contextlib.nullcontext(), tempfile.TemporaryDirectory() as scratch:
        task = ms.TuneContext(
            mod=tvm.IRModule({"main": func.with_attr("global_symbol", "main")}),
            target=machine.target,
            space_generator=_cpu_space() if cpu else "post-order-apply",
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
            num_trials_per_iter=min(search.batch, search.trials),
            builder=builder,
            runner=runner,
            database=database,
            measure_callbacks=[ms.measure_callback.AddToDatabase(), ms.measure_callback.UpdateCostModel()],
            cost_model=model,
        )
    found = [r for r in database.get_all_tuning_records() if r.run_secs and float(r.run_secs[0]) < FAILED]
    found.sort(key=lambda r: float(r.run_secs[0]))
    return [plain_trace(r.trace) for r in found[:FINALISTS]], len(database)


def _applies(func: PrimFunc, trace: Any) -> bool:
    try:
        apply_trace(func, trace)
    except UsageError:
        return False
    return True


def _cpu_space() -> Any:
    return ms.space_generator.ScheduleFn(design, sch_rules=[], postprocs=[], mutator_probs={})


def design(sch: Any) -> list[Any]:
    """The CPU's space for a convolution: orders of loops, in each the accumulator tile to choose."""
    shape = convolution_shape(sch)
    assert shape is not None
    blocks, wide, taps = shape
    pixels = _pixels(wide)
    made = []
    for rows_first in (False, True):
        for taps_first in (False, True) if taps > 1 else (False,):
            here = sch.copy()
            made.append(
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
    return made


def _pixels(wide: int) -> list[int]:
    """Widths of an accumulator tile: the default, divisors of the row, and those that leave little of its last tile idle."""
    found = {default_pixels(wide)}
    for tiles in range(1, wide + 1):
        pixels = -(-wide // tiles)
        if _FEWEST_PIXELS <= pixels <= _MOST_PIXELS:
            found.add(pixels)
    return sorted(found)


def _choice(sch: Any, values: Sequence[int]) -> Any:
    return sch.sample_categorical(list(values), [1 / len(values)] * len(values))
