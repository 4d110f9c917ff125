"""Searches for an equivalent `main` that cost less by some model, and what a caller is told of them.

Quantized networks only see rules that are exact on integers, so that every bit stays; floats are equal up to reassociation.
Searches for arenas end by the graphs they have seen, never by a clock: the same network is written every time.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

import tvm
from tvm import relax

from tvm_cascade.passes.substitute_graph import Substituted, substitute
from tvm_cascade.substitution.costs import Cost
from tvm_cascade.substitution.metaflow import SearchOptions
from tvm_cascade.substitution.pattern import Rule
from tvm_cascade.substitution.rules import ALL_RULES, integer_rules

MAIN = "main"
_OPTIONS = SearchOptions(max_graphs=1000, max_seconds=inf, patience=150)


@dataclass(frozen=True)
class Rewritten:
    """The module to go on with, and why it is that one."""

    mod: tvm.IRModule
    steps: tuple[str, ...]  # names of the substitutions made; none where the network stays as it was
    before: float  # bytes of arena, or milliseconds
    after: float
    unit: str
    reason: str

    def to_dict(self) -> Mapping[str, object]:
        """The JSON object `rewritten` of a plan."""
        return {
            "steps": list(self.steps),
            "before": self.before,
            "after": self.after,
            "unit": self.unit,
            "reason": self.reason,
        }


def unchanged(mod: tvm.IRModule, cost: float, unit: str, reason: str) -> Rewritten:
    """The module as it is."""
    return Rewritten(mod, (), cost, cost, unit, reason)


def search_main(mod: tvm.IRModule, cost: Cost, seconds: float) -> Substituted:
    """The search of `substitute` in `main`, with the rules that the network allows."""
    options = replace(_OPTIONS, total_seconds=seconds)
    return substitute(mod, cost, exact_rules(mod), options, functions=lambda name: name == MAIN)


def exact_rules(mod: tvm.IRModule) -> tuple[Rule, ...]:
    """All rules for a float network, those exact on integers for one that holds quantized operators."""
    return integer_rules() if is_quantized(mod) else ALL_RULES


def is_quantized(mod: tvm.IRModule) -> bool:
    """Whether any function holds a quantize or a dequantize."""
    found = False

    def visit(expr: object) -> None:
        nonlocal found
        if isinstance(expr, relax.Call):
            found |= str(getattr(expr.op, "name", "")) in ("relax.quantize", "relax.dequantize")

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func.body, visit)
    return found
