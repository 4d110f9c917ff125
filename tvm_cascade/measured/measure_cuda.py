"""Measure stages on a bench's GPU, with the kernels, streams and events that `ScheduleStages` would emit.

If a network has more weights than the GPU's cache holds, a kernel finds the weights in memory. Measurements do too
then: the timed graph empties the cache first, every copy of the stage has separate weights, and the emptying time is
subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from tvm_cascade.cost.interface import Groups
from tvm_cascade.measured.measure import NetworkRunner
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.runtime.bench import Bench, LocalBench, Program
from tvm_cascade.runtime.clock import Timer
from tvm_cascade.runtime.execute import compile_stages
from tvm_cascade.staging.kernels.records import TunedKernels
from tvm_cascade.staging.program.graph import StageGraph
from tvm_cascade.staging.program.library_kernels import with_library
from tvm_cascade.staging.program.probe import evict_module, probe_module
from tvm_cascade.staging.program.specs import Kernel, Spec

COPIES = 16  # copies of a stage in one CUDA graph, which share its launch
_LEAST_MS = 1e-4  # of a copy, after subtraction


class CudaRunner(NetworkRunner):
    """A `cost.interface.Runner` for the operators of a network."""

    def __init__(
        self,
        net: StageGraph,
        units: UnitGraph,
        bench: Bench | None = None,
        metaschedule: str | Path | None = None,
        streams: int | None = None,
    ) -> None:
        """Make a runner. `bench`: default: this machine's first GPU; raises `MissingToolError` without a GPU.

        `metaschedule`: folder with records of tuned kernels; None: default schedules for all. `streams`: most groups
        priced as concurrent; None: as many as units.
        """
        bench = bench or LocalBench(target="cuda")
        super().__init__(net, units, bench, TunedKernels(metaschedule, bench.target), cpu=False)
        self.workers = streams or len(units.units)
        self._evicted = evicted_bytes(net, bench)
        self.device += ":cold" if self._evicted else ""
        self._empty: Timer | None = None

    def _built(self, spec: Spec) -> Kernel:
        kernel = super()._built(spec)
        return with_library(self.net, [spec], [kernel], {}, self._tuned.by_library)[0]

    def _timer_of(self, groups: Groups) -> Timer:
        return self._timer([[self.kernel(op) for op in group] for group in groups])

    def _timer_of_kernel(self, kernel: Kernel) -> Timer:
        return self._timer([[kernel]])

    def _timer(self, groups: Sequence[Sequence[Kernel]]) -> Timer:
        groups = [[replace(k, func=self._tuned.scheduled(k.func, True)) for k in group] for group in groups]
        timer = self.bench.timer(probe(groups, self.bench, self._evicted))
        if not self._evicted:
            return lambda repeats: [t / COPIES for t in timer(repeats)]
        if self._empty is None:
            self._empty = self.bench.timer(evicting(self._evicted, self.bench))
        return without(timer, self._empty)


def without(timer: Timer, empty: Timer) -> Timer:
    """Make a timer for a single copy of the stage, less the time to empty the cache, which is timed beside."""

    def time(repeats: int) -> list[float]:
        samples, spent = timer(repeats), median(empty(repeats))
        return [max((t - spent) / COPIES, _LEAST_MS) for t in samples]

    return time


def evicted_bytes(net: StageGraph, bench: Bench) -> int:
    """Return the bytes to read for emptying the bench's cache (twice the size); 0 for a network with fitting weights."""
    return 2 * bench.cache_bytes if sum(op.weight_bytes for op in net.graph.ops) > bench.cache_bytes > 0 else 0


def probe(groups: Sequence[Sequence[Kernel]], bench: Bench, evicted: int = 0) -> Program:
    """Build `COPIES` copies of a stage with scheduled kernels, in one CUDA graph; `evicted` as in `probe_module`."""
    mod = probe_module(groups, bench.target, COPIES, bench.device, evicted=evicted)
    return Program(compile_stages(mod, bench.built_for), (), kept=not evicted)  # each is as large as the cache


def evicting(size: int, bench: Bench) -> Program:
    """Make the program a probe runs before the copies, which reads `size` bytes."""
    return Program(compile_stages(evict_module(size, bench.target, bench.device), bench.built_for), (), kept=False)
