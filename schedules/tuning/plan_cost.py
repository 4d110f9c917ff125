"""Instructions and cycles of a whole plan, estimated from the very code that it is lowered to: kernels, helpers, calls.

Every operator's step is written as the driver has it (`schedules.driver.lower_plan`), whatever form of kernel it calls, and
counted for a sample of the steps of the plan; each kernel's count is multiplied by the rate of its family. An operator's
cycles are its instructions times the cycles that one takes in kernels of its family.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cores import Core, KernelTarget
from tvm_cascade.cores.cortex_m4 import STEPS as CORTEX_M4
from tvm_cascade.cores.work import Work
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.driver.lower_plan import Driver
from tvm_cascade.schedules.kernels.kernel import Param, Role
from tvm_cascade.schedules.tir import Var, tirx
from tvm_cascade.schedules.tuning.counting import Task
from tvm_cascade.schedules.tuning.instructions import Counter, Function, Library, read, sampled, taken
from tvm_cascade.schedules.tuning.known_values import Env
from tvm_cascade.schedules.tuning.rates import Family, Rates, shipped, shipped_cycles

_STEPS = 96  # most steps of an operator that are looked at
_STRIPES = 6  # most stripes
_FETCH, _COMPARE = 9.0, 2.0  # instructions per step of a table of steps: to fetch it, to compare it with one operator


class PlanCounter:
    """Estimates instructions of plans for a core. What several operators or plans call is written and read once."""

    def __init__(self, target: KernelTarget, rates: Rates | None = None) -> None:
        self.target, self.rates = target, rates or shipped()
        self._otherwise = (target.core.steps or CORTEX_M4).cycle
        self._library = Library(target.core)
        self._kept: list[BuiltKernel | None] = []  # for what is used is not written anew

    def count(self, plan: Plan, kernels: Sequence[BuiltKernel | None]) -> list[Work]:
        """Estimated work of one inference, by operator; `kernels` are those that the plan calls (None for views)."""
        self._kept += kernels
        cycles = [self._otherwise] * len(kernels)  # of an instruction, by operator
        functions: dict[str, Function] = {}
        factors: dict[str, float] = {}
        names: list[list[str]] = []
        for op, kernel in zip(plan.graph.ops, kernels, strict=True):
            names.append([])
            for k, (_, func) in enumerate(kernel.functions(op.kind) if kernel else ()):
                names[-1].append(f"{op.index}.{k}")
                functions[names[-1][-1]] = self._library.read(func)
                if kernel is not None and k < len(kernel.variants):
                    dtype = plan.graph.tensors[op.outputs[0]].dtype
                    family = Family.of(op.kind + kernel.suffix, dtype, kernel.variants[k].rule)
                    factors[names[-1][-1]] = self.rates.rate(self.target, family)
                    cycles[op.index] = shipped_cycles().rate(self.target, family, self._otherwise)
        driver = Driver(plan, kernels, names, False, "fetch", None)
        counter = Counter(self.target.core, functions, factors, _flash(driver))
        total = [0.0] * len(plan.graph.ops)
        for index, segment in enumerate(plan.segments):
            trace = Tally(segment.trace)
            steps, actors = [o for o in trace if o >= 0], len(trace)
            for position, o in enumerate(steps):
                fetched = _FETCH + _COMPARE * position if actors > 1 else 0.0
                total[o] += _operator(driver, counter, index, o, trace[o], fetched)
        return [Work(n, n * cycle) for n, cycle in zip(total, cycles, strict=True)]


def task_instructions(task: Task, core: Core) -> float:
    """Instructions of a kernel's calls in one inference, without a rate: what `micro.count` counts for the task."""
    function = Function(Counter(core), task.kernel.func)

    def value(p: Param, y: int) -> int | None:
        if p.role is Role.Y:
            return y
        if p.role is Role.SLOTS:
            return task.inputs[p.index].rows
        feed = task.inputs[p.index] if p.role is Role.SLOT else None
        return None if feed is None else (y * feed.stride - feed.padding) % max(feed.rows, 1)

    params = task.kernel.params
    each = 6.0 + len(params)  # of the loop around the call
    return sum(function.count([value(p, y) for p in params]) + each for y in range(task.calls))


def _operator(driver: Driver, counter: Counter, segment: int, o: int, steps: int, fetched: float) -> float:
    """Instructions of all steps of operator `o` in a segment."""
    step, table = tirx.Var("step", "int32"), driver.bounds[segment]
    stripe: Var | None = None if table is None else driver.stripe(segment, table)
    part = read(counter, driver.step(o, step, segment), [step] if stripe is None else [step, stripe])
    env: Env = {}
    total = 0.0
    stripes = len(driver.plan.segments[segment].stripes) if stripe is not None else 1
    for number, weight in sampled(stripes, _STRIPES):
        env[hash(stripe)] = number
        for k, share in sampled(steps, _STEPS):
            env[hash(step)] = k
            total += weight * share * (taken(part, env) + fetched)
    return total


def _flash(driver: Driver) -> Callable[[Any, int], int | None]:
    """A function that gives the elements of the driver's tables in flash."""

    def element(buffer: Any, index: int) -> int | None:
        views = driver.memory.views.items()
        dtype = next((np.dtype(d) for (where, d), view in views if where == "flash" and view.same_as(buffer)), None)
        if dtype is None or not 0 <= index * dtype.itemsize < driver.table_bytes:
            return None
        return int(np.frombuffer(driver.flash.data, dtype, 1, index * dtype.itemsize)[0])

    return element
