"""Searches for an equivalent `main` that cost less by some model, and what a caller is told of them.

Quantized networks only see rules that are exact on integers, so that every bit stays; floats are equal up to reassociation.
Searches for arenas end by the graphs they have seen, never by a clock: the same network is written every time.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import inf

import tvm
from tvm import relax

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.passes.lower_quantized import holds_quantized
from tvm_cascade.passes.substitute_graph import Substituted, substitute
from tvm_cascade.substitution.costs import TVM, Cost, Latency
from tvm_cascade.substitution.metaflow import SearchOptions
from tvm_cascade.substitution.pattern import Rule
from tvm_cascade.substitution.rules import ALL_RULES, integer_rules

MAIN = "main"
SECONDS = 20.0  # of a search
GAIN = 0.01  # of the latency promised, relative: less is no reason to change a network
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
        told = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "mod"}
        return told | {"steps": list(self.steps)}


def unchanged(mod: tvm.IRModule, cost: float, unit: str, reason: str) -> Rewritten:
    """The module as it is."""
    return Rewritten(mod, (), cost, cost, unit, reason)


def search_main(mod: tvm.IRModule, cost: Cost, seconds: float) -> Substituted:
    """The search of `substitute` in `main`, with the rules that the network allows."""
    options = replace(_OPTIONS, total_seconds=seconds)
    return substitute(mod, cost, exact_rules(mod), options, functions=lambda name: name == MAIN)


def rewrite_for_latency(
    mod: tvm.IRModule,
    target: str = "llvm",
    device: str | None = None,
    arena: Callable[[tvm.IRModule], int] | None = None,
) -> Rewritten:
    """The equivalent network of less latency, by the analytic model of a device.

    With `arena`, which plans a module and gives its bytes, one whose arena is larger is refused.
    """
    serial = Latency("latency", TVM, model=AnalyticCost(find_device(device, target)))
    if MAIN not in {gv.name_hint for gv in mod.get_global_vars()}:
        return unchanged(mod, 0.0, "ms", "the module has no function main")
    done = search_main(mod, serial, SECONDS)
    if MAIN not in done.found:
        return unchanged(mod, 0.0, "ms", done.skipped[MAIN])
    found = done.found[MAIN]
    if not found.cost_after < found.cost_before * (1 - GAIN):
        return unchanged(mod, found.cost_before, "ms", "no substitution promises a gain")
    if arena is not None and arena(done.mod) > arena(mod):
        return unchanged(mod, found.cost_before, "ms", "the arena of the rewritten network is larger")
    steps, before, after = tuple(s.rule for s in found.steps), found.cost_before, found.cost_after
    return Rewritten(done.mod, steps, before, after, "ms", f"{before / after:.2f} times faster by the model")


def exact_rules(mod: tvm.IRModule) -> tuple[Rule, ...]:
    """All rules for a float network, those exact on integers for one that holds quantized operators."""
    return integer_rules() if is_quantized(mod) else ALL_RULES


def is_quantized(mod: tvm.IRModule) -> bool:
    """Whether any function holds a quantize or a dequantize."""
    return any(holds_quantized(f) for f in mod.functions.values() if isinstance(f, relax.Function))
