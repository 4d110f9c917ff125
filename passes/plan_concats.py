"""Concats that never exist, where that lowers the arena of the plan and not only a sum of live bytes.

Written into place by the makers of their parts (`join_concats`), concats cost no copy: all that can be are, unless the
plan needs more so; then those that cost it nothing. Reading parts where they lie (`rewrite_for_memory`) shortens lives
but lengthens others: a part stays until its last reader. Whether that pays depends on order, cuts, rings and addresses,
so both graphs are planned. First as graphs, which is cheap: all concats that can go, those whose removal lowers the best
order's peak, and, where there are few, each left out in turn. The best is then emitted and planned with its real kernels
and scratch, and taken only if its arena is smaller; without a cap, only where its estimated time keeps to `max_time`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from tvm_cascade.cascading import Plan, PlanOptions, baseline_peak, plan_graph
from tvm_cascade.cores.step_model import StepModel, reads_parts
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph
from tvm_cascade.ordering.rewriting import fold_concats
from tvm_cascade.passes.join_concats import joinable, joined
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.passes.rewrite_for_memory import foldable, paying_concats
from tvm_cascade.schedules.rules.select import GENERIC

Made = TypeVar("Made", bound=PreparedGraph)
_FEW = 4  # concats of which each is left out in turn
_APART = "no parts are read where they lie"


@dataclass(frozen=True)
class Choice(Generic[Made]):
    """What is compiled: the module as it was, or without some concats."""

    prepared: Made
    plan: Plan
    concats: tuple[str, ...] = ()  # read in parts
    reason: str = ""  # what was done and what it changes, or why nothing; empty where there was nothing to try
    joined: tuple[str, ...] = ()  # written into place by the makers of their parts
    groups: Mapping[str, int] = field(default_factory=dict)  # of channels, by the projection that sums them up
    plain: Graph | None = None  # with `groups`, the graph without

    @property
    def graph(self) -> Graph:
        """The graph that was planned, without groups of channels."""
        return self.prepared.graph if self.plain is None else self.plain


def plan_concats(prepared: Made, options: PlanOptions, without: Callable[[tuple[str, ...]], Made]) -> Choice[Made]:
    """The plan of `prepared`, its concats as they are, written into place, or read in parts.

    Parameters
    ----------
    without : callable
        Prepares the module with the concats of those names read in parts.

    Raises
    ------
    InfeasibleError
        None of these fits `options.sram`.
    """
    base = _in_place(prepared, options)
    if isinstance(base, InfeasibleError):
        names = () if options.layerwise else foldable(prepared.graph)
        chosen, _ = _smallest(prepared.graph, names, options)
        if not chosen:
            raise base
        made = without(chosen)
        plan = plan_graph(made.graph, options)
        return Choice(made, plan, chosen, f"reads the parts of {_list(chosen)} where they lie: else it does not fit")
    plain, names = base.plan, () if options.layerwise else foldable(base.prepared.graph)
    if not names:
        return base
    if options.sram is not None:
        return told(base, f"{_APART}: the network fits as it is")
    chosen, hoped = _smallest(base.prepared.graph, names, options)
    if hoped >= plain.peak:
        return told(base, f"{_APART}: that would take {hoped} bytes, not less than {plain.peak}")
    made = without(chosen)
    factor = _time_apart(base.prepared, made, options.steps) if options.steps is not None else 1.0
    if factor > options.max_time:
        price = f"would take about {factor:.2f} times the instructions (--max-time allows {options.max_time})"
        return told(base, f"{_APART}: {plain.peak} -> {hoped} bytes {price}")
    options = replace(options, max_time=options.max_time / factor)
    rest = joinable(made) if base.joined else ()
    made = joined(made, rest)
    plan = plan_graph(made.graph, options)
    change = f"{plain.peak} -> {plan.peak} bytes"
    if plan.peak >= plain.peak:
        return told(base, f"{_APART}: those of {_list(chosen)} would change {change}")
    found = Choice(made, plan, chosen, base.reason if rest else "", rest)
    return told(found, f"reads the parts of {_list(chosen)} where they lie: {change}")


def _time_apart(base: PreparedGraph, made: PreparedGraph, model: StepModel) -> float:
    """Estimated instructions by rows with parts read where they lie, as a factor, at least 1; MACs alone count."""
    before = sum(model.whole(op) for op in base.graph.ops)
    after = sum(
        op.macs * model.unscheduled
        if reads_parts(op) and kernel is not None and kernel.rule == GENERIC
        else model.whole(op)
        for op, kernel in zip(made.graph.ops, made.kernels, strict=True)
    )
    return max(after / before, 1.0) if before else 1.0


def _in_place(prepared: Made, options: PlanOptions) -> Choice[Made] | InfeasibleError:
    """The plan with the concats written into place that can be, and cost nothing by it; or why there is no plan."""
    plain, names = _attempt(prepared.graph, options), joinable(prepared)
    kept, best = names, _joined_plan(prepared, names, plain, options)
    if best is None and (options.layerwise or len(names) <= _FEW):
        kept = ()
        for name in names if len(names) > 1 else ():
            plan = _joined_plan(prepared, (*kept, name), plain, options)
            kept, best = ((*kept, name), plan) if plan is not None else (kept, best)
    if best is None:
        return plain if isinstance(plain, InfeasibleError) else Choice(prepared, plain)
    before = "more than the cap" if isinstance(plain, InfeasibleError) else str(plain.peak)
    bytes_ = f"{before} -> {best.peak} bytes" if before != str(best.peak) else f"no copies, {before} bytes as with them"
    reason = f"writes the parts of {_list(kept)} into place: {bytes_}"
    best = replace(best, baseline_peak=baseline_peak(prepared.graph))
    return Choice(joined(prepared, kept), best, (), reason, kept)


def _joined_plan(
    prepared: PreparedGraph, names: tuple[str, ...], plain: Plan | InfeasibleError, options: PlanOptions
) -> Plan | None:
    """The plan with those concats written into place, where there is one and it costs no more than `plain`."""
    plan = _attempt(joined(prepared, names).graph, options) if names else None
    if not isinstance(plan, Plan):
        return None
    return plan if isinstance(plain, InfeasibleError) or _no_dearer(plan, plain, options) else None


def _no_dearer(plan: Plan, plain: Plan, options: PlanOptions) -> bool:
    """Whether a plan needs no more than another: bytes, or kernel calls where both fit a cap."""
    if options.sram is None:
        return plan.peak <= plain.peak
    return sum(len(s.trace) for s in plan.segments) <= sum(len(s.trace) for s in plain.segments)


def _attempt(graph: Graph, options: PlanOptions) -> Plan | InfeasibleError:
    try:
        return plan_graph(graph, options)
    except InfeasibleError as error:
        return error


def told(choice: Choice[Made], what: str) -> Choice[Made]:
    """`choice` with one more thing to say."""
    return replace(choice, reason=f"{choice.reason}; {what}" if choice.reason else what)


def _smallest(graph: Graph, names: tuple[str, ...], options: PlanOptions) -> tuple[tuple[str, ...], int]:
    """The concats whose removal leads to the smallest arena, few where that is the same, and its bytes."""
    tried: dict[tuple[str, ...], int] = {}

    def peak(chosen: tuple[str, ...]) -> int:
        if chosen not in tried:
            try:
                tried[chosen] = plan_graph(fold_concats(graph, chosen), options).peak
            except InfeasibleError as error:
                tried[chosen] = error.needed
        return tried[chosen]

    candidates = [c for c in dict.fromkeys((paying_concats(graph) if names else (), names)) if c]
    if not candidates:
        return (), 1 << 62
    best = min(candidates, key=lambda c: (peak(c), len(c)))
    for name in best if len(best) <= _FEW else ():
        fewer = tuple(n for n in best if n != name)
        if fewer and peak(fewer) <= peak(best):
            best = fewer
    return best, peak(best)


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= _FEW else f"{len(names)} concats"
