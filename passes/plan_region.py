"""Planning a static region, and diagnosis of operators that prevent planning."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm_cascade.cascading import Plan, validate
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import CascadeError, InfeasibleError, ValidationError
from tvm_cascade.messages import last_line
from tvm_cascade.passes.candidates.candidate import PlannedCandidate
from tvm_cascade.passes.executed_plan import NotExecutedError, check_executed
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.outline_region import outlined
from tvm_cascade.passes.plan_network import plan_network
from tvm_cascade.passes.relax_functions import ByStructure
from tvm_cascade.passes.static_regions import Binding, Region, outputs_of, why_not_alone
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.driver.lower_plan import Lowered, lower_plan
from tvm_cascade.schedules.tir import relax

LOG = logging.getLogger("tvm_cascade")


@dataclass(frozen=True)
class Planned:
    """A region with its plan, and the plan lowered to functions."""

    region: Region
    candidate: PlannedCandidate
    lowered: Lowered

    @property
    def plan(self) -> Plan:
        """Return the plan of the chosen candidate."""
        return self.candidate.plan

    @property
    def substitutions(self) -> tuple[str, ...]:
        """Names of the substitutions made in the region."""
        return () if self.candidate.rewritten is None else self.candidate.rewritten.steps


def plan_region(mod: Any, func: Any, region: Region, request: PlanRequest, core: KernelTarget) -> Planned | str:
    """Plan a region of `func`, a function in `mod`, or return why there is no plan.

    Raises `InfeasibleError` if no plan fits `request.sram`.
    """

    def plan() -> Planned:
        candidate = plan_network(outlined(mod, region, func.attrs), request, core)
        _check(candidate)
        return Planned(region, candidate, lower_plan(candidate.plan, candidate.prepared.kernels_of(candidate.plan)))

    return _or_reason(plan)


def _check(candidate: PlannedCandidate) -> None:
    """Run a plan on random data beside the network, or replay the plan if random data is not allowed. Raises
    `ValidationError`.
    """
    try:
        try:
            check_executed(candidate.prepared, candidate.plan)
        except NotExecutedError:
            validate(candidate.plan, candidate.prepared.core.core.align)
    except ValidationError as why:
        LOG.warning(
            "a plan is wrong (%s) and what it is of is left to TVM: please report this fault of tvm-cascade", why
        )
        raise


class Probe:
    """Finder of bindings that cannot be planned, by extracting each alone; structurally equal bindings are tried once."""

    def __init__(self, mod: Any) -> None:
        self.mod = mod
        self._known = ByStructure[str | None]()

    def refused(self, region: Region) -> dict[Any, str]:
        """Find a region's bindings that cannot be planned even alone, by variable, with the reasons."""
        reasons = ((b.var, self._why(b)) for b in region.bindings if isinstance(b.value, relax.Call))
        return {var: reason for var, reason in reasons if reason is not None}

    def _why(self, binding: Binding) -> str | None:
        inputs = tuple(dict.fromkeys(relax.analysis.free_vars(binding.value)))
        alone = outlined(self.mod, Region((binding,), inputs, tuple(outputs_of(binding.var))))
        return self._known.get(alone, lambda: _why_not_extracted(alone))


def _why_not_extracted(mod: Any) -> str | None:
    result = _or_reason(lambda: extract_graph(mod))
    if isinstance(result, str):
        return result
    return next((why for o in result.operators if o is not None and (why := why_not_alone(o.func))), None)


def _or_reason(attempt: Callable[[], Any]) -> Any:
    """Return `attempt()`, or its error as text: TVM's default pipeline may handle cases this project cannot."""
    try:
        return attempt()
    except InfeasibleError:
        raise
    except CascadeError as error:
        return str(error)
    except Exception as error:  # TVM's passes and analyses have no common class of errors
        return f"{type(error).__name__}: {last_line(error)}"
