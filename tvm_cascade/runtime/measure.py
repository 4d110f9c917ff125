"""Measuring stages on this machine's CPU, with the kernels that `ScheduleStages` would emit.

A concurrent stage is timed as the one parallel region it becomes, a group alone as its kernels one by one. Inputs are
random and stay in cache where they fit, as a producer's output would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm

from tvm_cascade.cost.interface import Groups, OpFeatures
from tvm_cascade.cost.packing import pack
from tvm_cascade.errors import UsageError
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.passes.schedule_stages import PARALLEL_WORK, work_of
from tvm_cascade.passes.stage_cpu import Use, parallel_lanes
from tvm_cascade.passes.stage_graph import StageGraph
from tvm_cascade.passes.stage_kernels import Kernel, Spec, build_kernels
from tvm_cascade.passes.stage_merge import merge_units
from tvm_cascade.runtime.execute import host_target, threads
from tvm_cascade.schedules.stages.stage_records import TunedKernels

_MIN_MS = 2  # of one timed repetition


class KernelBook:
    """The kernels of one network's operators, found by what cost models know of these; unscheduled."""

    def __init__(self, net: StageGraph, units: UnitGraph, cpu: bool) -> None:
        self.net, self._cpu = net, cpu
        self._specs: dict[OpFeatures, Spec] = {}
        for unit in units.units:
            for spec, found in zip(units.kernels[unit.index], units.features[unit.index], strict=True):
                self._specs.setdefault(found, Spec(spec))
        self._kernels: dict[OpFeatures, Kernel] = {}

    def spec(self, op: OpFeatures) -> Spec:
        """What the operator's kernel computes; raises `UsageError` for an operator of another network."""
        found = self._specs.get(op)
        if found is None:
            raise UsageError(f"the runner does not know this {op.kind}: make one for the network that is measured")
        return found

    def kernel(self, op: OpFeatures) -> Kernel:
        """The operator's kernel."""
        if op not in self._kernels:
            (self._kernels[op],) = build_kernels(self.net, [self.spec(op)], self._cpu)
        return self._kernels[op]

    def merged(self, parts: Sequence[OpFeatures]) -> Kernel | None:
        """The kernel of several operators merged; None where they do not merge."""
        specs = [self.spec(op) for op in parts]
        merge = merge_units(self.net, [s.ops for s in specs])
        if merge is None:
            return None
        (kernel,) = build_kernels(self.net, [Spec(tuple(i for s in specs for i in s.ops), merge)], self._cpu)
        return kernel


class CpuRunner:
    """A `cost.interface.Runner` for the operators of one network."""

    def __init__(
        self, net: StageGraph, units: UnitGraph, workers: int | None = None, tuned: TunedKernels | None = None
    ) -> None:
        """`tuned`: kernels that are measured as recorded; default: all by the default schedules."""
        self.net = net
        self._tuned = tuned or TunedKernels(None)
        self.workers = workers or threads()
        self.target: Any = host_target()
        self.device = device_name(f"cpu:{self.target.attrs.get('mcpu', 'generic')}:{self.workers}", self._tuned)
        self._book = KernelBook(net, units, cpu=True)
        self._timers: dict[Any, Any] = {}

    def run(self, groups: Groups, repeats: int) -> list[float]:
        """Milliseconds of a stage; see the module's text."""
        if len(groups) == 1:
            columns = [self._time(("alone", op), [[op]], repeats) for op in groups[0]]
            return [sum(row) for row in zip(*columns, strict=True)]
        return self._time(tuple(tuple(g) for g in groups), groups, repeats)

    def run_merged(self, parts: Sequence[OpFeatures], repeats: int) -> list[float]:
        """Milliseconds of the merged kernel, on all threads."""
        key = ("merged", *parts)
        if key not in self._timers:
            kernel = self._book.merged(parts)
            if kernel is None:
                return [float("inf")] * repeats
            self._timers[key] = self._timer(self._tuned.scheduled(kernel.func, True))
        return self._timers[key](repeats)

    def _time(self, key: Any, groups: Groups, repeats: int) -> list[float]:
        if key not in self._timers:
            if len(groups) == 1:
                op = groups[0][0]
                many = work_of(self.net.graph, self._book.spec(op)) >= PARALLEL_WORK
                func = self._tuned.scheduled(self._book.kernel(op).func, many)
            else:
                func = self._stage(groups)
            self._timers[key] = self._timer(func)
        return self._timers[key](repeats)

    def _stage(self, groups: Groups) -> Any:
        work = [float(sum(work_of(self.net.graph, self._book.spec(op)) for op in group)) for group in groups]
        uses = []
        for lane in pack(work, self.workers):
            kernels = [(g, k, self._book.kernel(op)) for g in sorted(lane) for k, op in enumerate(groups[g])]
            uses.append(
                [
                    Use(self._tuned.scheduled(kernel.func, False), tuple((g, k, p) for p in range(_parameters(kernel))))
                    for g, k, kernel in kernels
                ]
            )
        return parallel_lanes(uses)[0]

    def _timer(self, func: Any) -> Any:
        mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        built = tvm.compile(mod, self.target)
        rng = np.random.default_rng(0)
        args = [
            tvm.runtime.tensor(rng.random([int(d) for d in p.ty.shape], dtype="float32").astype(str(p.ty.dtype)))
            for p in func.params
        ]

        def time(repeats: int) -> list[float]:
            clock = built.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=repeats, min_repeat_ms=_MIN_MS)
            return [t * 1e3 for t in clock(*args).results]

        return time


def device_name(name: str, tuned: TunedKernels) -> str:
    """What measurements are kept under: the device, and the schedules of kernels where these are not the defaults."""
    return f"{name}:tuned-{tuned.digest}" if tuned.digest else name


def _parameters(kernel: Kernel) -> int:
    func: Any = kernel.func
    return len(func.params)
