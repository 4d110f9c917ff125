"""`Counters`: counters of plans, for every target once, so kernels called by several plans are read once."""

from __future__ import annotations

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.tuning.plan_cost import PlanCounter
from tvm_cascade.schedules.tuning.traffic import TrafficCounter


class Counters:
    """Counters for instructions and traffic, by target."""

    def __init__(self) -> None:
        self._made: list[tuple[KernelTarget, PlanCounter, TrafficCounter]] = []

    def of(self, target: KernelTarget) -> tuple[PlanCounter, TrafficCounter]:
        """Return the counter for instructions and cycles, and the counter for accesses to memories and flash."""
        for known, work, traffic in self._made:
            if known == target:
                return work, traffic
        self._made.append((target, PlanCounter(target), TrafficCounter(target)))
        return self._made[-1][1:]
