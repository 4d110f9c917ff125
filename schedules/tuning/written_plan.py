"""`WrittenPlan`: a plan's driver and the code of every operator's step, for the counters in `schedules.tuning`."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.driver.lower_plan import Driver
from tvm_cascade.schedules.tir import PrimFunc, Stmt, Var, i32, scalar
from tvm_cascade.schedules.tuning.instructions import Part, sampled
from tvm_cascade.schedules.tuning.known_values import Env
from tvm_cascade.search_monitor import counted

_STEPS = 96  # most steps of an operator that are looked at
_STRIPES = 6  # most stripes


@dataclass(frozen=True, slots=True)
class _Step:
    """The code of an operator's step in a segment."""

    operator: int
    code: Stmt
    step: Var  # the number of the step, which the code sees
    steps: int  # of an inference, or of a stripe
    stripe: Var | None  # the number of the stripe, which the code sees; None without stripes
    stripes: int


class WrittenPlan:
    """A plan as written by the driver: several counters may read the text, which is written once."""

    def __init__(self, plan: Plan, kernels: Sequence[BuiltKernel | None], traced: bool = True) -> None:
        """Write the plan.

        Parameters
        ----------
        kernels : BuiltKernel, optional
            Those that the plan calls, by operator; None for views, and for operators that are left out.
        traced : bool
            Whether flash holds the segments' traces, as the image's flash does; no step reads them.
        """
        self.plan, self.kernels = plan, kernels
        self.functions: dict[str, PrimFunc] = {}  # that steps call, by name: "operator.variant"
        names: list[list[str]] = []
        for op, kernel in counted("kernels written", list(zip(plan.graph.ops, kernels, strict=True))):
            functions = kernel.functions(op.kind) if kernel else ()
            names.append([f"{op.index}.{k}" for k in range(len(functions))])
            self.functions |= dict(zip(names[-1], (func for _, func in functions), strict=True))
        self.driver = Driver(plan, kernels, names, False, "fetch", None, traced=traced)

    @cached_property
    def _steps(self) -> list[_Step]:
        """Return the steps of all operators with a kernel."""
        found, driver = list[_Step](), self.driver
        for index, segment in enumerate(counted("segments estimated", self.plan.segments)):
            trace, table = Tally(segment.trace), driver.bounds[index]
            for o in (o for o in trace if o >= 0 and self.kernels[o] is not None):
                step, stripe = scalar("step", "int32"), None if table is None else driver.stripe(index, table)
                stripes = 1 if stripe is None else len(segment.stripes)
                which: Any = i32(0) if len(segment.trace) == 1 else step  # as the driver has it
                found.append(_Step(o, driver.step(o, which, index), step, trace[o], stripe, stripes))
        return found

    def sampled(self, read: Callable[[Any, Sequence[Any]], Part]) -> Iterator[tuple[int, float, Part, Env]]:
        """Yield a sample of all steps: operator, weight, its code as read by `read`, and the step seen by the code.

        An operator's weights sum up to the operator's steps.
        """
        for own in self._steps:
            part = read(own.code, [own.step] if own.stripe is None else [own.step, own.stripe])
            env: Env = {}
            for number, weight in sampled(own.stripes, _STRIPES):
                env[hash(own.stripe)] = number
                for k, share in sampled(own.steps, _STEPS):
                    env[hash(own.step)] = k
                    yield own.operator, weight * share, part, env
