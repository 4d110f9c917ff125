"""Instructions and cycles of a whole plan, estimated from the very code it is lowered to: kernels, helpers, calls.

Every operator's step is written as in the driver (`schedules.driver.lower_plan`), for every kernel form, and counted
for a sample of the plan's steps; each kernel's count is multiplied by the family's rate. An operator's cycles are the
instructions times the cycles per instruction in kernels of the family.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cores import KernelTarget
from tvm_cascade.cores.cortex_m4 import STEPS as CORTEX_M4
from tvm_cascade.cores.work import Work
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.driver.lower_plan import Driver
from tvm_cascade.schedules.tuning.instructions import Counter, Function, Library, read, taken
from tvm_cascade.schedules.tuning.rates import Family, Rates, shipped, shipped_cycles
from tvm_cascade.schedules.tuning.written_plan import WrittenPlan
from tvm_cascade.search_monitor import counted

_FETCH, _COMPARE = 9.0, 2.0  # instructions per step of a table of steps: to fetch it, to compare it with one operator


class PlanCounter:
    """Estimates instructions of plans for a core. Code called by several operators or plans is written and read once."""

    def __init__(self, target: KernelTarget, rates: Rates | None = None) -> None:
        self.target, self.rates = target, rates or shipped()
        self._otherwise = (target.core.steps or CORTEX_M4).cycle
        self._library = Library(Counter.of(target), Function)
        self._kept: list[BuiltKernel | None] = []  # for what is used is not written anew

    def count(self, plan: Plan, kernels: Sequence[BuiltKernel | None]) -> list[Work]:
        """Estimate an inference's work, by operator; `kernels` are the plan's (None for views)."""
        return self.count_written(WrittenPlan(plan, kernels))

    def count_written(self, written: WrittenPlan) -> list[Work]:
        """Estimate the work of a plan with written steps; it does not depend on block addresses."""
        return with_fetches(written.plan, self.kernels_written(written))

    def kernels_written(self, written: WrittenPlan) -> list[tuple[Work, float]]:
        """Return the work by operator without fetching steps from tables, and the cycles of an instruction."""
        plan, kernels = written.plan, written.kernels
        self._kept += kernels
        read_once = counted("kernels read", written.functions.items())
        functions = {name: self._library.read(func) for name, func in read_once}
        factors, cycles = self._rates(plan, kernels)
        counter = replace(Counter.of(self.target), functions=functions, factors=factors, memory=_flash(written.driver))
        total = [0.0] * len(plan.graph.ops)
        for o, weight, part, env in written.sampled(partial(read, counter)):
            total[o] += weight * taken(part, env)
        return [(Work(n, n * cycle), cycle) for n, cycle in zip(total, cycles, strict=True)]

    def _rates(self, plan: Plan, kernels: Sequence[BuiltKernel | None]) -> tuple[dict[str, float], list[float]]:
        """Return the kernels' rates by their function names in `WrittenPlan`; cycles of an instruction by operator."""
        factors: dict[str, float] = {}
        cycles = [self._otherwise] * len(kernels)
        for op, kernel in zip(plan.graph.ops, kernels, strict=True):
            for k, variant in enumerate(kernel.variants if kernel else ()):
                assert kernel is not None
                family = Family.of(kernel.kind_of(k, op.kind), plan.graph.tensors[op.outputs[0]].dtype, variant.rule)
                factors[f"{op.index}.{k}"] = self.rates.rate(self.target, family)
                cycles[op.index] = shipped_cycles().rate(self.target, family, self._otherwise)
        return factors, cycles


def with_fetches(plan: Plan, kernels: Sequence[tuple[Work, float]]) -> list[Work]:
    """Return the work by operator with fetching steps from its segment's table; as `kernels_written`."""
    found = [work for work, _ in kernels]
    for segment in plan.segments:
        steps = Tally(segment.trace)
        for position, o in enumerate(o for o in steps if o >= 0 and len(steps) > 1):
            (work, cycle), fetched = kernels[o], fetching(position) * steps[o] * max(len(segment.stripes), 1)
            found[o] = Work(work.instructions + fetched, work.cycles + fetched * cycle)
    return found


def fetching(position: int) -> float:
    """Return the instructions that fetch a step for the operator running at `position` in the segment."""
    return _FETCH + _COMPARE * position


def _flash(driver: Driver) -> Callable[[Any, int], int | None]:
    """Return a function for reading elements of the driver's tables in flash."""

    def element(buffer: Any, index: int) -> int | None:
        views = driver.memory.views.items()
        dtype = next((np.dtype(d) for (where, d), view in views if where == "flash" and view.same_as(buffer)), None)
        if dtype is None or not 0 <= index * dtype.itemsize < driver.table_bytes:
            return None
        return int(np.frombuffer(driver.flash.data, dtype, 1, index * dtype.itemsize)[0])

    return element
