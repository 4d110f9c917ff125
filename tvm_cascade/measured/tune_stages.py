"""Tuning a staged network's kernels on a bench: a CPU or a GPU in this machine, or in a farm."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.tirx import PrimFunc

from tvm_cascade.errors import CascadeError
from tvm_cascade.parallel.problem import Schedule
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.runtime.bench import Bench, LocalBench, kernel_program
from tvm_cascade.runtime.cuda import has_cuda, with_architecture
from tvm_cascade.runtime.tuning_pair import bench_pair
from tvm_cascade.schedules.tuning.metaschedule import Progress, Search
from tvm_cascade.schedules.tuning.metaschedule import host_target as one_core
from tvm_cascade.staging.kernels.cpu_elementary import vectorizable
from tvm_cascade.staging.kernels.cpu_float import schedule_cpu
from tvm_cascade.staging.kernels.dots import PLAIN
from tvm_cascade.staging.kernels.processors import accumulators, integer_dot
from tvm_cascade.staging.kernels.records import KernelRecords, record_target
from tvm_cascade.staging.kernels.tuning import Machine, Report, tune
from tvm_cascade.staging.program.cuda import schedule_cuda
from tvm_cascade.staging.program.graph import StageGraph
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.layouts import packed_tensors
from tvm_cascade.staging.program.program import plan_program
from tvm_cascade.staging.program.specs import Spec

_ROUNDS = 5  # in each of which finalists are measured in turn
_MIN_MS = 1  # of a measurement
_REPEATS = 10  # short measurements, of which the least counts: it excludes time of other programs


def tune_stages(
    net: StageGraph,
    units: UnitGraph,
    folder: str | Path,
    target: str = "llvm",
    schedule: Schedule | None = None,
    search: Search = Search(),  # noqa: B008
    progress: Progress = lambda _text: None,
    bench: Bench | None = None,
) -> Report:
    """Tune kernels without a record: every unit's kernels, or the kernels in `schedule`'s stages, merges included.

    `bench`: measures candidates and decides `target`; None: this machine. Raises `UsageError` for unreadable records,
    `MissingToolError` if a GPU is needed and missing.
    """
    cpu = not target.startswith("cuda")
    if bench is not None:
        target = bench.target
    elif not cpu and has_cuda():
        target = with_architecture(target)
    tiles, dot = (accumulators(target), integer_dot(target)) if cpu else (None, PLAIN)
    if schedule is None:
        graph = net.graph
        specs = [Spec(k) for unit in units.kernels for k in unit if not all(graph.ops[i].view for i in k)]
        packed = packed_tensors(net) if cpu else frozenset()
        kernels = build_kernels(net, specs, cpu, packed=packed, accumulators=tiles, dot=dot)
    else:
        program = plan_program(net, units, schedule, captured=not cpu)
        kernels = build_kernels(net, program.specs, cpu, program.slices, program.packed, accumulators=tiles, dot=dot)

    def machine() -> Machine:
        return BenchMachine(bench or LocalBench(target=target))

    return tune([k.func for k in kernels], KernelRecords(folder), machine, record_target(target), search, progress)


class BenchMachine:
    """A `stage_tuning.Machine`: a single core of a bench's processor, or the bench's GPU.

    On processors schedules are searched for a generic model, and measured as compiled for the bench's.
    """

    def __init__(self, bench: Bench) -> None:
        gpu = bench.target.startswith("cuda")
        self._bench, self.name = bench, bench.machine
        self._problems: list[CascadeError] = []  # that ended a search
        self.records_as = record_target(bench.target)
        self.target = bench.built_for if gpu else one_core()
        self.processor = None if gpu else bench.target

    def pair(self) -> tuple[Any, Any]:
        """Return MetaSchedule's builder and runner."""
        return bench_pair(self._bench, _MIN_MS, _REPEATS, self._problems)

    def default(self, func: PrimFunc) -> PrimFunc:
        """Apply the hand-written schedule for processors, or the default for GPUs."""
        if self.processor is None:
            return schedule_cuda(tvm.IRModule({"main": func}), self.records_as)["main"]
        return schedule_cpu(func, False, accumulators(self.processor))

    def least_ms(self, funcs: Sequence[PrimFunc]) -> list[float]:
        """Measure kernels in turn, see `stage_tuning.Machine`. Raises the error that ended the search for candidates."""
        if self._problems:
            raise self._problems[0]
        kernels = funcs if self.processor is None else [vectorizable(func) for func in funcs]
        programs = [kernel_program(func, self._bench, _MIN_MS) for func in kernels]
        return [min(samples) for samples in self._bench.in_turn(programs, _ROUNDS, _REPEATS)]
