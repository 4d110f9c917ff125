"""Candidate: transposed convolutions over inputs spread apart by zeros, not in phases (`passes.phases`).

Phases take the kernels of convolutions and lie beside their whole. An input spread apart streams through a single operator,
which may take fewer bytes, and several times the products. Without a cap it is planned if such products alone keep to the
limit on time; under a cap, if no phases fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm.ir import IRModule

from tvm_cascade.cascading.timing import allowed_factor
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.passes.candidates.candidate import Best, Candidate, PlannedCandidate, Proposals, best_candidate
from tvm_cascade.passes.lower_quantized import products_of_inputs_spread, with_inputs_spread
from tvm_cascade.passes.prices import TimeRule

PlanOf = Callable[[IRModule], PlannedCandidate]  # plans a module with all other candidates, returns the best


@dataclass(frozen=True)
class InputsSpread(Candidate):
    """The network with every transposed convolution as a single operator."""

    name = "inputs spread apart"
    mod: IRModule  # marked, before it is lowered
    plan: PlanOf

    def apply(self) -> PlannedCandidate:
        return self.plan(self.mod)

    def explained(self, found: PlannedCandidate, best: Best) -> PlannedCandidate:
        return found.told(f"transposed convolutions over inputs spread apart: {self.change(found.plan, best)}")


def with_spread_inputs(
    mod: IRModule, source: IRModule | None, is_source: Callable[[], bool], plan: PlanOf, rule: TimeRule
) -> PlannedCandidate:
    """Return the best plan of `mod`, and of `source` with inputs spread apart: `mod` before it was lowered.

    `is_source` returns False if `mod` was changed since; it is called only if the candidate is worth planning.
    """
    try:
        start: Best = plan(mod)
    except InfeasibleError as error:
        start = error

    def spread(best: Best) -> Proposals:
        products = 0 if source is None else products_of_inputs_spread(source)
        if products and source is not None and _is_worth_it(products, best, rule) and is_source():
            marked = with_inputs_spread(source)
            assert marked is not None
            if isinstance(best, PlannedCandidate):
                rule.factor(best.plan)  # the fastest plan in phases is known from here on
            yield InputsSpread(marked, plan)
        return ""

    return best_candidate(start, [spread], rule)


def _is_worth_it(products: int, best: Best, rule: TimeRule) -> bool:
    """Return True if nothing fits the cap, or, without a cap, if `products` alone keep to the limit on time."""
    if isinstance(best, InfeasibleError):
        return True
    return rule.options.sram is None and products <= allowed_factor(rule.options) * best.plan.macs
