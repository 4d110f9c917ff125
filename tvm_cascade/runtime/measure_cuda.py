"""Measure stages on a bench's GPU, with the kernels, streams and events that `ScheduleStages` would emit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tvm_cascade.cost.interface import Groups
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.passes.library_kernels import with_library
from tvm_cascade.passes.stage_graph import StageGraph
from tvm_cascade.passes.stage_probe import probe_module
from tvm_cascade.passes.stage_specs import Kernel, Spec
from tvm_cascade.runtime.bench import Bench, LocalBench, Program
from tvm_cascade.runtime.clock import Timer
from tvm_cascade.runtime.execute import compile_stages
from tvm_cascade.runtime.measure import NetworkRunner
from tvm_cascade.schedules.stages.stage_records import TunedKernels

COPIES = 16  # copies of a stage in one CUDA graph, which share its launch


class CudaRunner(NetworkRunner):
    """A `cost.interface.Runner` for the operators of one network."""

    def __init__(
        self,
        net: StageGraph,
        units: UnitGraph,
        bench: Bench | None = None,
        metaschedule: str | Path | None = None,
        streams: int | None = None,
    ) -> None:
        """`bench`: default: this machine's first GPU; raises `MissingToolError` without one. `metaschedule`: folder with records
        of tuned kernels; None: default schedules for all. `streams`: groups that are priced as concurrent, at most; None: as many
        as there are units."""
        bench = bench or LocalBench(target="cuda")
        super().__init__(net, units, bench, TunedKernels(metaschedule, bench.target), cpu=False)
        self.workers = streams or len(units.units)

    def _built(self, spec: Spec) -> Kernel:
        kernel = super()._built(spec)
        return with_library(self.net, [spec], [kernel], {}, self._tuned.by_library)[0]

    def _timer_of(self, groups: Groups) -> Timer:
        return self._timer([[self.kernel(op) for op in group] for group in groups])

    def _timer_of_kernel(self, kernel: Kernel) -> Timer:
        return self._timer([[kernel]])

    def _timer(self, groups: Sequence[Sequence[Kernel]]) -> Timer:
        groups = [[replace(k, func=self._tuned.scheduled(k.func, True)) for k in group] for group in groups]
        timer = self.bench.timer(probe(groups, self.bench))
        return lambda repeats: [t / COPIES for t in timer(repeats)]


def probe(groups: Sequence[Sequence[Kernel]], bench: Bench) -> Program:
    """`COPIES` copies of a stage of scheduled kernels, in one CUDA graph."""
    mod = probe_module(groups, bench.target, COPIES, bench.device)
    return Program(compile_stages(mod, bench.built_for), ())
