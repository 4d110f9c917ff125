"""Measure stages on a GPU of this machine, with the kernels, streams and events that `ScheduleStages` would emit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm

from tvm_cascade.cost.interface import Groups
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.passes.stage_cuda import cuda_target
from tvm_cascade.passes.stage_graph import StageGraph
from tvm_cascade.passes.stage_probe import probe_module
from tvm_cascade.passes.stage_specs import Kernel
from tvm_cascade.runtime.cuda import require_cuda, with_architecture
from tvm_cascade.runtime.execute import Session, compile_stages, host_target
from tvm_cascade.runtime.measure import NetworkRunner, Timer, device_name
from tvm_cascade.schedules.stages.stage_records import TunedKernels

_COPIES = 16  # copies of a stage in one CUDA graph, which share its launch


class CudaRunner(NetworkRunner):
    """A `cost.interface.Runner` for the operators of one network.

    `device` names the runtime's device; tests pass the CPU, where streams have no effect. Raises `MissingToolError`
    without a GPU.
    """

    def __init__(
        self,
        net: StageGraph,
        units: UnitGraph,
        target: str = "cuda",
        device: str = "cuda:0",
        metaschedule: str | Path | None = None,
        streams: int | None = None,
    ) -> None:
        """`metaschedule`: folder with records of tuned kernels; None: default schedules for all.

        `streams`: groups that are priced as concurrent, at most; None: as many as there are units.
        """
        super().__init__(net, units, cpu=False)
        self.workers = streams or len(units.units)
        self._place, self._cuda = device, device.startswith("cuda")
        self._device: Any = tvm.runtime.device(device)
        if self._cuda:
            require_cuda(self._device.index)
        self.target = with_architecture(target, self._device.index) if self._cuda else target
        self._tuned = TunedKernels(metaschedule, self.target)
        self.device = device_name(f"cuda:{self._device.device_name}" if self._cuda else device, self._tuned)

    def _timer_of(self, groups: Groups) -> Timer:
        return self._timer([[self.kernel(op) for op in group] for group in groups])

    def _timer_of_kernel(self, kernel: Kernel) -> Timer:
        return self._timer([[kernel]])

    def _timer(self, groups: Sequence[Sequence[Kernel]]) -> Timer:
        groups = [[replace(k, func=self._tuned.scheduled(k.func, True)) for k in group] for group in groups]
        mod = probe_module(groups, self.target, _COPIES, self._place)
        target = cuda_target(self.target) if self._cuda else host_target()
        session = Session(compile_stages(mod, target), self._device)
        return lambda repeats: [t / _COPIES for t in session.times_ms([], repeats)]
