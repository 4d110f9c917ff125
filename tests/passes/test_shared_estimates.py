"""Plans that share estimates of operators are estimated as each plan is alone."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytest

import tvm_cascade
from tvm_cascade.cascading import Plan
from tvm_cascade.cores import kernel_target
from tvm_cascade.cores.work import Work
from tvm_cascade.passes.shared_estimates import SharedEstimates
from tvm_cascade.schedules.forms.choose import kernels_of_plan
from tvm_cascade.schedules.forms.form import Site
from tvm_cascade.schedules.tuning.plan_cost import PlanCounter
from tvm_cascade.testing.estimate_cases import FIRMWARE

CORE = kernel_target("cortex-m4")


@pytest.mark.parametrize("case", sorted(FIRMWARE))
def test_estimates_are_those_of_the_plan_alone(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []
    count = SharedEstimates.count

    def compared(
        self: SharedEstimates, plan: Plan, sites: Sequence[Site | None], kinds: Sequence[Hashable]
    ) -> list[Work]:
        works = count(self, plan, sites, kinds)
        alone = PlanCounter(CORE).count(plan, kernels_of_plan(plan, sites))
        for found, expected in zip(works, alone, strict=True):
            assert (found.instructions, found.cycles) == pytest.approx(
                (expected.instructions, expected.cycles), rel=1e-9
            )
        plans.append(plan)
        return works

    monkeypatch.setattr(SharedEstimates, "count", compared)
    tvm_cascade.plan(FIRMWARE[case].mod(), target="cortex-m4", **FIRMWARE[case].options)
    assert plans


def test_operators_that_plans_run_alike_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, needed = 0, 0
    count, kernels_written = SharedEstimates.count, PlanCounter.kernels_written

    def counted(
        self: SharedEstimates, plan: Plan, sites: Sequence[Site | None], kinds: Sequence[Hashable]
    ) -> list[Work]:
        nonlocal asked
        asked += sum(site is not None for site in sites)
        return count(self, plan, sites, kinds)

    def written(self: PlanCounter, plan: object) -> object:
        nonlocal needed
        needed += sum(kernel is not None for kernel in plan.kernels)  # type: ignore[attr-defined]
        return kernels_written(self, plan)  # type: ignore[arg-type]

    monkeypatch.setattr(SharedEstimates, "count", counted)
    monkeypatch.setattr(PlanCounter, "kernels_written", written)
    tvm_cascade.plan(FIRMWARE["rows"].mod(), target="cortex-m4")
    assert 0 < needed < asked
