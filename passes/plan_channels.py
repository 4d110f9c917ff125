"""Channels in groups (`cascading.channels`), where that lowers the arena of the plan and the work they cost is allowed.

Which blocks, and in how many groups, is found on the graph; the module is then rewritten (`split_channels`) and planned with
its real kernels, and taken only if its arena is smaller. Under a cap groups are tried where nothing else fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from tvm_cascade.cascading import PlanOptions
from tvm_cascade.cascading.channel_search import best_groups, plan_in_groups
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.passes.plan_concats import Choice, told
from tvm_cascade.passes.prepare_graph import PreparedGraph

Made = TypeVar("Made", bound=PreparedGraph)


def plan_channels(
    prepared: Made,
    plain: Choice[Made] | InfeasibleError,
    options: PlanOptions,
    split: Callable[[Mapping[str, int]], Made],
) -> Choice[Made]:
    """The plan of `prepared` with channels in groups, or the `plain` one where that is no larger.

    Parameters
    ----------
    split : callable
        Prepares the module with the blocks that end in projections of those names in so many groups.

    Raises
    ------
    InfeasibleError
        `plain`, where groups do not help.
    """
    if isinstance(plain, InfeasibleError) or options.sram is None:
        found = _in_groups(prepared, plain, options, split)
        if found is not None:
            return found
    if isinstance(plain, InfeasibleError):
        raise plain
    return plain


def _in_groups(
    prepared: Made,
    plain: Choice[Made] | InfeasibleError,
    options: PlanOptions,
    split: Callable[[Mapping[str, int]], Made],
) -> Choice[Made] | None:
    graph = prepared.graph
    for wanted in (options, replace(options, sram=None)):  # a set that just fits by its bytes may not by its addresses
        names = {graph.ops[b.project].name: n for b, n in best_groups(graph, wanted).items()}
        if not names:
            return None
        made = split(names)
        try:
            plan = plan_in_groups(graph, made.graph, options)
        except InfeasibleError:
            continue
        before = "more than the cap" if isinstance(plain, InfeasibleError) else plain.plan.peak
        change = f"{before} -> {plan.peak} bytes at {plan.macs / max(graph.macs, 1):.3f}x work"
        if isinstance(plain, Choice) and plan.peak >= plain.plan.peak:
            return told(plain, f"no channels were split: in groups, {change}")
        listed = ", ".join(f"{name} in {n}" for name, n in names.items())
        reason = f"makes the wide channels before {listed} groups, one group after the other: {change}"
        return Choice(made, plan, reason=reason, groups=names, plain=graph)
    return None
