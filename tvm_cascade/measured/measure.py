"""Measure stages on a bench's CPU, with the kernels `ScheduleStages` would emit.

A concurrent stage is timed as the parallel region to emit, a group alone kernel by kernel. Inputs are random and, if
small enough, stay in cache like a producer's output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm_cascade.cost.interface import Groups, OpFeatures
from tvm_cascade.cost.packing import pack
from tvm_cascade.errors import UsageError
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.runtime.bench import Bench, LocalBench, kernel_program
from tvm_cascade.runtime.clock import Timer
from tvm_cascade.staging.kernels.dots import PLAIN
from tvm_cascade.staging.kernels.processors import accumulators, integer_dot
from tvm_cascade.staging.kernels.records import TunedKernels
from tvm_cascade.staging.program.cpu import Use, parallel_lanes
from tvm_cascade.staging.program.graph import StageGraph
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.lanes import work_of
from tvm_cascade.staging.program.layouts import may_merge, packed_tensors
from tvm_cascade.staging.program.merge import merge_units
from tvm_cascade.staging.program.schedule_stages import PARALLEL_WORK
from tvm_cascade.staging.program.specs import Kernel, Spec


class NetworkRunner(ABC):
    """Base class for a network's runners: the operators' kernels, and a cached timer for every stage measured."""

    def __init__(self, net: StageGraph, units: UnitGraph, bench: Bench, tuned: TunedKernels, cpu: bool) -> None:
        self.net, self.bench, self._tuned, self._cpu = net, bench, tuned, cpu
        self.workers = bench.workers
        self.device = device_name(bench.name, tuned)
        self._packed = packed_tensors(net) if cpu else frozenset[int]()
        self._specs: dict[OpFeatures, Spec] = {}
        for unit in units.units:
            for spec, features in zip(units.kernels[unit.index], units.features[unit.index], strict=True):
                self._specs.setdefault(features, Spec(spec))
        self._kernels: dict[OpFeatures, Kernel] = {}
        self._timers: dict[Any, Timer | None] = {}

    def run(self, groups: Groups, repeats: int) -> list[float]:
        """Measure a stage `repeats` times, in milliseconds."""
        return self._time(tuple(tuple(g) for g in groups), lambda: self._timer_of(groups), repeats)

    def run_merged(self, parts: Sequence[OpFeatures], repeats: int) -> list[float]:
        """Measure the merged kernel alone on the device, in milliseconds; infinite if the operators do not merge."""

        def make() -> Timer | None:
            specs = [self._spec(op) for op in parts]
            outs = [self.net.graph.ops[s.ops[-1]].outputs[0] for s in specs]
            allowed = may_merge(self.net.graph, self._packed, outs)
            merge = merge_units(self.net, [s.ops for s in specs]) if allowed else None
            if merge is None:
                return None
            return self._timer_of_kernel(self._built(Spec(tuple(i for s in specs for i in s.ops), merge)))

        return self._time(("merged", *parts), make, repeats)

    @abstractmethod
    def _timer_of(self, groups: Groups) -> Timer:
        """Make the timer of a stage."""

    @abstractmethod
    def _timer_of_kernel(self, kernel: Kernel) -> Timer:
        """Make the timer of a kernel with the device to itself."""

    def _time(self, key: Any, make: Callable[[], Timer | None], repeats: int) -> list[float]:
        if key not in self._timers:
            self._timers[key] = make()
        timer = self._timers[key]
        return [float("inf")] * repeats if timer is None else timer(repeats)

    def _spec(self, op: OpFeatures) -> Spec:
        """Return the specification of an operator's kernel; raises `UsageError` for another network's operator."""
        spec = self._specs.get(op)
        if spec is None:
            raise UsageError(f"the runner does not know this {op.kind}: make one for the network that is measured")
        return spec

    def kernel(self, op: OpFeatures) -> Kernel:
        """Return the operator's kernel, unscheduled."""
        if op not in self._kernels:
            self._kernels[op] = self._built(self._spec(op))
        return self._kernels[op]

    def _built(self, spec: Spec) -> Kernel:
        target = self.bench.target
        tiles, dot = (accumulators(target), integer_dot(target)) if self._cpu else (None, PLAIN)
        (kernel,) = build_kernels(self.net, [spec], self._cpu, packed=self._packed, accumulators=tiles, dot=dot)
        return kernel


class CpuRunner(NetworkRunner):
    """A `cost.interface.Runner` for the operators of a network."""

    def __init__(
        self,
        net: StageGraph,
        units: UnitGraph,
        workers: int | None = None,
        tuned: TunedKernels | None = None,
        bench: Bench | None = None,
    ) -> None:
        """Make a runner. `workers`: threads, default TVM's pool. `tuned`: records of tuned kernels, default none.

        `bench`: times the kernels; default: this machine.
        """
        bench = bench or LocalBench(workers)
        super().__init__(net, units, bench, tuned or TunedKernels(None, bench.target), cpu=True)

    def run(self, groups: Groups, repeats: int) -> list[float]:
        """Measure a stage `repeats` times, in milliseconds; see the module's docstring."""
        if len(groups) > 1:
            return super().run(groups, repeats)
        columns = [self._time(("alone", op), partial(self._timer_alone, op), repeats) for op in groups[0]]
        return [sum(row) for row in zip(*columns, strict=True)]

    def _timer_alone(self, op: OpFeatures) -> Timer:
        many = work_of(self.net.graph, self._spec(op)) >= PARALLEL_WORK
        return self._timed(self._tuned.scheduled(self.kernel(op).func, many))

    def _timer_of_kernel(self, kernel: Kernel) -> Timer:
        return self._timed(self._tuned.scheduled(kernel.func, True))

    def _timed(self, func: Any) -> Timer:
        return self.bench.timer(kernel_program(func, self.bench))

    def _timer_of(self, groups: Groups) -> Timer:
        work = [float(sum(work_of(self.net.graph, self._spec(op)) for op in group)) for group in groups]
        uses = []
        for lane in pack(work, self.workers):
            kernels: list[tuple[int, int, Any]] = [
                (g, k, self.kernel(op).func) for g in sorted(lane) for k, op in enumerate(groups[g])
            ]
            uses.append(
                [
                    Use(self._tuned.scheduled(func, False), tuple((g, k, p) for p in range(len(func.params))))
                    for g, k, func in kernels
                ]
            )
        return self._timed(parallel_lanes(uses)[0])


def device_name(name: str, tuned: TunedKernels) -> str:
    """Return the key for stored measurements: the device, with a digest of the kernels' schedules if tuned."""
    return f"{name}:tuned-{tuned.digest}" if tuned.digest else name
