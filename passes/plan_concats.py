"""Concats that never exist, where that lowers the arena of the plan and not only a sum of live bytes.

Reading parts where they lie (`rewrite_for_memory`) shortens lives but lengthens others: a part stays until its last
reader. Whether that pays depends on order, cuts, rings and addresses, so both graphs are planned. First as graphs, which
is cheap: all concats that can go, those whose removal lowers the best order's peak, and, where there are few, each left
out in turn. The best is then emitted and planned with its real kernels and scratch, and taken only if its arena is smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tvm_cascade.cascading import Plan, PlanOptions, plan_graph
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph
from tvm_cascade.ordering.rewriting import fold_concats
from tvm_cascade.passes.cascade import PreparedGraph
from tvm_cascade.passes.rewrite_for_memory import foldable, paying_concats

Made = TypeVar("Made", bound=PreparedGraph)
_FEW = 4  # concats of which each is left out in turn


@dataclass(frozen=True)
class Choice(Generic[Made]):
    """What is compiled: the module as it was, or without some concats."""

    prepared: Made
    plan: Plan
    concats: tuple[str, ...] = ()  # read in parts
    reason: str = ""  # what that changes, or why nothing was rewritten; empty where there was nothing to try


def plan_without_concats(
    prepared: Made, options: PlanOptions, without: Callable[[tuple[str, ...]], Made]
) -> Choice[Made]:
    """The plan of `prepared`, or of the same module without the concats that cost it memory.

    Parameters
    ----------
    without : callable
        Prepares the module with the concats of those names read in parts.

    Raises
    ------
    InfeasibleError
        Neither fits `options.sram`.
    """
    names = () if options.layerwise else foldable(prepared.graph)
    try:
        plain = plan_graph(prepared.graph, options)
    except InfeasibleError:
        chosen, _ = _smallest(prepared.graph, names, options)
        if not chosen:
            raise
        made = without(chosen)
        plan = plan_graph(made.graph, options)
        return Choice(made, plan, chosen, f"reads the parts of {_list(chosen)} where they lie: else it does not fit")
    if not names:
        return Choice(prepared, plain)
    if options.sram is not None:
        return Choice(prepared, plain, (), "no concat was rewritten: the network fits as it is")
    chosen, hoped = _smallest(prepared.graph, names, options)
    if hoped >= plain.peak:
        return Choice(prepared, plain, (), f"no concat was rewritten: {hoped} bytes without, {plain.peak} with them")
    made = without(chosen)
    plan = plan_graph(made.graph, options)
    change = f"{plain.peak} -> {plan.peak} bytes"
    if plan.peak >= plain.peak:
        return Choice(prepared, plain, (), f"no concat was rewritten: reading the parts of {_list(chosen)}, {change}")
    return Choice(made, plan, chosen, f"reads the parts of {_list(chosen)} where they lie: {change}")


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
