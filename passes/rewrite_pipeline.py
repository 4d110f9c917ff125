"""Substitutions inside of the pipelines: for the arena on boards, for latency elsewhere, kept only where they pay.

A search minimizes a model: the largest activations of an order for boards, the analytic latency for other targets. What
counts is decided by what follows. For a board, where the model promises fewer bytes at no more multiply-accumulates than
allowed, both networks are planned and the smaller arena wins. Elsewhere a network is rewritten where the model promises a
gain and the arena does not grow. Quantized networks only see rules that are exact on integers, so every promise about bits
stands; floats are equal up to reassociation. Searches for arenas end by the graphs they have seen, never by a clock: the
same network is written every time.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

import tvm
from tvm import relax

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.passes.substitute_graph import Substituted, substitute
from tvm_cascade.substitution.costs import TVM, AnyCost, Latency, PeakMemory, macs_of, peak_bytes
from tvm_cascade.substitution.dag import Dag, replace
from tvm_cascade.substitution.metaflow import SearchOptions
from tvm_cascade.substitution.pattern import Matcher, Rule
from tvm_cascade.substitution.rules import ALL_RULES, integer_rules, rules

OPTIONS = SearchOptions(max_graphs=1000, max_seconds=inf, patience=150)
SECONDS = 20.0  # of a search for latency
GAIN = 0.01  # of the latency promised, relative: less is no reason to change a network
_MAIN = "main"


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


def exact_rules(mod: tvm.IRModule) -> tuple[Rule, ...]:
    """All rules for a float network, those exact on integers for one that holds quantized operators."""
    return integer_rules() if _quantized(mod) else ALL_RULES


def rewrite_for_arena(
    mod: tvm.IRModule, arena: Callable[[tvm.IRModule], int], max_macs: float = 1.0, floats: bool = True
) -> Rewritten:
    """The equivalent network with the smaller arena; `arena` plans a module and gives its bytes.

    A network of more than `max_macs` times the multiply-accumulates is refused, and without `floats` so is any change to a
    network that is not quantized. Where nothing is promised, nothing is planned, and `before` and `after` are what the
    model counts: the activations alive at once.
    """
    if not floats and not _quantized(mod):
        return _stays(mod, 0, "B", "the network is not quantized: substitutions would reassociate its sums")
    done = _searched(mod, PeakMemory(), inf)
    if _MAIN not in done.found:
        return _stays(mod, 0, "B", done.skipped.get(_MAIN, "the module has no function main"))
    found, plain = done.found[_MAIN], _without_clips(done.read[_MAIN].dag)
    before, after = peak_bytes(plain), peak_bytes(found.dag)
    if after >= before:
        return _stays(mod, before, "B", "no substitution lowers the activations alive at once")
    macs = [sum(macs_of(n) for n in dag.nodes) for dag in (plain, found.dag)]
    if macs[1] > max_macs * macs[0]:
        return _stays(mod, before, "B", f"the rewritten network has {macs[1]} multiply-accumulates, not {macs[0]}")
    try:
        before = arena(mod)
    except InfeasibleError as error:
        before = error.needed
    try:
        after = arena(done.mod)
    except InfeasibleError:
        return _stays(mod, before, "B", "the rewritten network does not fit the cap")
    if after >= before:
        return _stays(mod, before, "B", f"the rewritten network needs {after} bytes")
    steps = tuple(s.rule for s in found.steps)
    return Rewritten(done.mod, steps, before, after, "B", f"{before - after} bytes of arena less")


def _without_clips(dag: Dag) -> Dag:
    """The network as `LowerQuantized` will make it anyhow: activations on stored values inside of their operators."""
    matcher = Matcher(rules("fuse_quantized_clip"))
    while sites := matcher.sites(dag):
        dag = replace(dag, sites[0].target)
    return dag


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
    if _MAIN not in {gv.name_hint for gv in mod.get_global_vars()}:
        return _stays(mod, 0.0, "ms", "the module has no function main")
    done = _searched(mod, serial, SECONDS)
    if _MAIN not in done.found:
        return _stays(mod, 0.0, "ms", done.skipped[_MAIN])
    found = done.found[_MAIN]
    if not found.cost_after < found.cost_before * (1 - GAIN):
        return _stays(mod, found.cost_before, "ms", "no substitution promises a gain")
    if arena is not None and arena(done.mod) > arena(mod):
        return _stays(mod, found.cost_before, "ms", "the arena of the rewritten network is larger")
    steps = tuple(s.rule for s in found.steps)
    gain = found.cost_before / found.cost_after
    return Rewritten(
        done.mod, steps, found.cost_before, found.cost_after, "ms", f"{gain:.2f} times faster by the model"
    )


def _searched(mod: tvm.IRModule, cost: AnyCost, seconds: float) -> Substituted:
    return substitute(mod, cost, exact_rules(mod), OPTIONS, seconds, functions=lambda name: name == _MAIN)


def _stays(mod: tvm.IRModule, cost: float, unit: str, reason: str) -> Rewritten:
    return Rewritten(mod, (), cost, cost, unit, reason)


def _quantized(mod: tvm.IRModule) -> bool:
    found = False

    def visit(expr: object) -> None:
        nonlocal found
        if isinstance(expr, relax.Call):
            found |= str(getattr(expr.op, "name", "")) in ("relax.quantize", "relax.dequantize")

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func.body, visit)
    return found
