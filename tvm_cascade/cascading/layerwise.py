"""The plan without cascades, operator by operator: every search improves on this plan, and falls back on it if a limit
ends the search at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.assemble import Figures, Layout, assemble
from tvm_cascade.cascading.interleaving import BY_ROWS, Interleaving
from tvm_cascade.cascading.options import PlanOptions, Settings
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.segments import SegmentCosts, aligned
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph, Op

_DEFAULTS = PlanOptions()


def baseline_peak(graph: Graph, alignment: int) -> int:
    """Compute the bytes live when operators run in turn in file order: whole tensors and scratch, views sharing memory.

    Every block begins at a multiple of `alignment` bytes, as in the arenas compared with this peak. An element-wise
    operator overwrites a dying input of equal size, as if bias and activation were part of the operator before.
    Interpreters that place whole tensors (`testing.tflm_arena`) need at least as many bytes.
    """
    costs = SegmentCosts(AccessTables(graph), range(len(graph.ops)), Settings(alignment))
    live = (
        _packed(costs.blocks(k, k + 1, BY_ROWS), _overwritten(costs, op), alignment) for k, op in enumerate(graph.ops)
    )
    return max(live, default=sum(graph.tensors[t].bytes for t in graph.inputs))


def _packed(blocks: Sequence[int], overwritten: int, alignment: int) -> int:
    """Compute the bytes of blocks side by side, without the overwritten block; behind the last nothing is rounded up."""
    left = [size for size in blocks if size]
    if overwritten:
        left.remove(overwritten)
    return sum(aligned(size, alignment) for size in left) - max((-size % alignment for size in left), default=0)


def _overwritten(costs: SegmentCosts, op: Op) -> int:
    """Return the bytes of the input an operator may overwrite, element for element; 0 for none."""
    tensors, roots = costs.tables.graph.tensors, costs.tables.roots
    able = (tensors[op.inputs[i]] for i in op.in_place)
    dying = [t.bytes for t in able if roots[t.index].tensor == t.index and costs.last[t.index] == costs.place[op.index]]
    return max((size for size in dying if size == tensors[op.outputs[0]].bytes), default=0)


def layerwise(graph: Graph, options: PlanOptions = _DEFAULTS) -> Plan:
    """Make the plan with every operator as a separate segment, in file order.

    Live tensors share memory only if an element-wise operator overwrites an input.

    Raises
    ------
    InfeasibleError
        The arena exceeds `options.sram`.
    """
    n = len(graph.ops)
    costs = SegmentCosts(AccessTables(graph), range(n), replace(options.settings, overlap=False))
    bound = max((costs.exact_cost(k, k + 1) for k in range(n)), default=0)
    alone, figures = Layout.one_by_one(n), Figures(baseline_peak(graph, options.alignment), bound)
    plan = assemble(costs, alone, figures)
    if plan.peak > bound:
        plan = smaller(plan, assemble(costs, alone, figures, optimise=True))
    return within_cap(plan, costs, options, "plan without --layerwise")


def without_search(graph: Graph, costs: SegmentCosts, options: PlanOptions) -> Plan:
    """Plan operator by operator: on whole tensors, or with `costs` if inputs arrive row by row."""
    if not options.stream_input:
        return layerwise(graph, replace(options, sram=None))
    figures = Figures(baseline_peak(graph, options.alignment), 0)
    return replace(assemble(costs, Layout.one_by_one(len(graph.ops)), figures, optimise=True), graph=graph)


def smaller(*plans: Plan) -> Plan:
    """Return the plan with the smallest arena, the first among equals."""
    return min(plans, key=lambda plan: plan.peak)


def bounded(plan: Plan, *bounds: int) -> Plan:
    """Return `plan` with the least of its own bound and others: plans of another search may need fewer bytes."""
    return replace(plan, bound=min(plan.bound, *bounds))


def within_cap(plan: Plan, costs: SegmentCosts, options: PlanOptions, advice: str) -> Plan:
    """Return `plan` if it fits the cap; else raise `InfeasibleError` with the operators at the peak."""
    graph = plan.graph
    if options.sram is None or plan.peak <= options.sram:
        return plan
    costs = SegmentCosts(costs.tables, [o for s in plan.segments for o in s.ops], costs.settings, costs)
    cuts = accumulate((len(s.ops) for s in plan.segments), initial=0)
    live = [costs.cost(i, j, Interleaving(s.tile)) for (i, j), s in zip(pairwise(cuts), plan.segments, strict=True)]
    culprits = [graph.ops[o].name for o in plan.segments[live.index(max(live))].ops if not graph.ops[o].view]
    raise InfeasibleError(plan.peak, options.sram, culprits, advice)


def remedy(options: PlanOptions) -> str:
    """Return the advice for the error on caps without a fitting plan."""
    if not options.overlap:
        return "plan without --no-overlap"
    if not options.stream_input:
        return "stream the input with --stream-input, or give more memory"
    return "give more memory, or change the network"
