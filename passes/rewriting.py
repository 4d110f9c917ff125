"""Graph substitution of `main` for lower latency or memory under a cost model, and the outcome's report.

Quantized networks are rewritten only by rules that are exact on integers, so results keep every bit; float results are
equal up to reassociation. Searches are limited by the number of graphs, not by time: deterministic.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import relax

from tvm_cascade.passes.lower_quantized import holds_quantized
from tvm_cascade.passes.substitute_graph import Substituted, substitute
from tvm_cascade.schema.filled import filled
from tvm_cascade.schema.plan import Rewritten as RewrittenJson
from tvm_cascade.substitution.costs import TVM, Cost, Latency
from tvm_cascade.substitution.metaflow import SearchOptions
from tvm_cascade.substitution.pattern import Rule
from tvm_cascade.substitution.rules import ALL_RULES, integer_rules

MAIN = "main"
GAIN = 0.01  # least relative gain of predicted latency for which a network is changed
_OPTIONS = SearchOptions(max_graphs=1000, patience=150, total_graphs=1_000_000)


@dataclass(frozen=True)
class Rewritten:
    """The outcome of a substitution search: the module to use, rewritten or not, and the reason."""

    mod: tvm.IRModule
    steps: tuple[str, ...]  # names of the substitutions made; empty if the network is unchanged
    before: float  # cost in `unit`: bytes ("B") or milliseconds ("ms")
    after: float
    unit: str
    reason: str

    def to_dict(self) -> RewrittenJson:
        """Return the JSON object `rewritten` of a plan."""
        return filled(RewrittenJson, self)


def unchanged(mod: tvm.IRModule, cost: float, unit: str, reason: str) -> Rewritten:
    """Return the outcome "not rewritten": `mod` itself, the cost and the reason."""
    return Rewritten(mod, (), cost, cost, unit, reason)


def search_main(mod: tvm.IRModule, cost: Cost) -> Substituted:
    """Search `main` for an equivalent with lower `cost`, using the rules of `exact_rules`."""
    return substitute(mod, cost, exact_rules(mod), _OPTIONS, functions=lambda name: name == MAIN)


def rewrite_for_latency(mod: tvm.IRModule, arena: Callable[[tvm.IRModule], int] | None = None) -> Rewritten:
    """Search an equivalent network with lower latency, as predicted by the analytic cost model of a CPU.

    `arena`, if given, returns a module's planned arena bytes; a rewrite that enlarges the arena is then refused.
    """
    from tvm_cascade.cost import AnalyticCost, find_device  # plans of less memory price no latency

    serial = Latency("latency", TVM, model=AnalyticCost(find_device(None, "llvm")))
    if MAIN not in {gv.name_hint for gv in mod.get_global_vars()}:
        return unchanged(mod, 0.0, "ms", "the module has no function main")
    done = search_main(mod, serial)
    if MAIN not in done.results:
        return unchanged(mod, 0.0, "ms", done.skipped[MAIN])
    found = done.results[MAIN]
    if not found.cost_after < found.cost_before * (1 - GAIN):
        return unchanged(mod, found.cost_before, "ms", "no substitution promises a gain")
    if arena is not None and arena(done.mod) > arena(mod):
        return unchanged(mod, found.cost_before, "ms", "the arena of the rewritten network is larger")
    steps, before, after = tuple(s.rule for s in found.steps), found.cost_before, found.cost_after
    return Rewritten(done.mod, steps, before, after, "ms", f"{before / after:.2f} times faster by the model")


def exact_rules(mod: tvm.IRModule) -> tuple[Rule, ...]:
    """Return a network's substitution rules: all for a float network, only integer-exact rules for a quantized network."""
    return integer_rules() if is_quantized(mod) else ALL_RULES


def is_quantized(mod: tvm.IRModule) -> bool:
    """Test whether any function holds quantized operators."""
    return any(holds_quantized(f) for f in mod.functions.values() if isinstance(f, relax.Function))
