"""Tuning the kernels of a staged network on this machine: its CPU, or its GPU."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.tirx import PrimFunc

from tvm_cascade.parallel.problem import Schedule
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.passes.stage_cuda import cuda_target, schedule_cuda
from tvm_cascade.passes.stage_graph import StageGraph
from tvm_cascade.passes.stage_kernels import build_kernels
from tvm_cascade.passes.stage_layouts import packed_tensors
from tvm_cascade.passes.stage_program import plan_program
from tvm_cascade.passes.stage_specs import Spec
from tvm_cascade.runtime.cuda import has_cuda, require_cuda, with_architecture
from tvm_cascade.runtime.cuda_code import CudaCode, compiled_as
from tvm_cascade.schedules.stages.cpu_float import schedule_cpu
from tvm_cascade.schedules.stages.cuda_default import architecture_of
from tvm_cascade.schedules.stages.processors import accumulators, host_target
from tvm_cascade.schedules.stages.stage_records import KernelRecords, record_target
from tvm_cascade.schedules.stages.stage_tuning import Machine, Report, tune
from tvm_cascade.schedules.tuning.in_process import local_pair, tensor_of
from tvm_cascade.schedules.tuning.metaschedule import Progress, Search
from tvm_cascade.schedules.tuning.metaschedule import host_target as one_core

_ROUNDS = 5  # in each of which finalists are measured in turn
_REPEATS = 10  # short measurements, of which the least counts: it excludes time of other programs


def tune_stages(
    net: StageGraph,
    units: UnitGraph,
    folder: str | Path,
    target: str = "llvm",
    schedule: Schedule | None = None,
    search: Search = Search(),  # noqa: B008
    progress: Progress = lambda _text: None,
) -> Report:
    """Tune kernels without a record: those of every unit, or those that `schedule` runs, merged ones included.

    Raises `UsageError` for records that cannot be read, `MissingToolError` where something has to be measured on a GPU
    that is not there.
    """
    cpu = not target.startswith("cuda")
    if not cpu and has_cuda():
        target = with_architecture(target)
    if schedule is None:
        graph = net.graph
        specs = [Spec(k) for unit in units.kernels for k in unit if not all(graph.ops[i].view for i in k)]
        kernels = build_kernels(net, specs, cpu, packed=packed_tensors(net) if cpu else frozenset())
    else:
        program = plan_program(net, units, schedule, captured=not cpu)
        kernels = build_kernels(net, program.specs, cpu, program.slices, program.packed)
    machine: Callable[[], Machine] = CpuMachine if cpu else lambda: CudaMachine(target)
    with nullcontext() if cpu else compiled_as(CudaCode((architecture_of(target),))):
        return tune([k.func for k in kernels], KernelRecords(folder), machine, record_target(target), search, progress)


class _LocalMachine:
    """A `stage_tuning.Machine` on this machine's `device`; kernels are measured as built for `built_for`."""

    def __init__(self, built_for: tvm.target.Target, device: Any) -> None:
        self._built_for, self._device = built_for, device

    def pair(self) -> tuple[Any, Any]:
        """MetaSchedule's builder and runner."""
        return local_pair(1, _REPEATS, self._built_for, self._device)

    def least_ms(self, funcs: Sequence[PrimFunc]) -> list[float]:
        """See `stage_tuning.Machine`."""
        random, target, device = np.random.default_rng(0), self._built_for, self._device
        params: Any = funcs[0].params
        args = [tensor_of(tuple(int(d) for d in p.ty.shape), str(p.ty.dtype), random, device) for p in params]
        mods = [tvm.IRModule({"main": f.with_attr("global_symbol", "main")}) for f in funcs]
        with target:
            built = [tvm.compile(mod, target).mod for mod in mods]
        clocks = [b.time_evaluator("main", device, number=1, repeat=_REPEATS, min_repeat_ms=1) for b in built]
        rounds = [[min(clock(*args).results) * 1e3 for clock in clocks] for _ in range(_ROUNDS)]
        return [min(column) for column in zip(*rounds, strict=True)]


class CpuMachine(_LocalMachine):
    """One core of this machine. Schedules are searched for a generic CPU, and measured as compiled for this one."""

    records_as = record_target("llvm")

    def __init__(self) -> None:
        super().__init__(host_target(), tvm.cpu())
        self.target = one_core()
        self.name = str(self._built_for.attrs.get("mcpu", "generic"))

    def default(self, func: PrimFunc) -> PrimFunc:
        """The hand-written schedule."""
        return schedule_cpu(func, False, accumulators("llvm"))


class CudaMachine(_LocalMachine):
    """This machine's GPU. Raises `MissingToolError` without one."""

    def __init__(self, target: str) -> None:
        require_cuda()
        self.target = cuda_target(target)
        super().__init__(self.target, tvm.cuda(0))
        self.records_as = record_target(target)
        self.name = str(self._device.device_name)

    def default(self, func: PrimFunc) -> PrimFunc:
        """The default schedule."""
        return schedule_cuda(tvm.IRModule({"main": func}), self.records_as)["main"]
