"""The planner's front door: `layerwise` and `cascade`.

Cut positions by dynamic programming (`cuts`), ring heights by simulation (`simulate`), offsets by `tvm_cascade.memory`.
The peak that a plan states is the arena that the allocator laid out, never a sum.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm_cascade.cascading.assemble import Bounds, assemble
from tvm_cascade.cascading.cuts import cuts_within, smallest_peak
from tvm_cascade.cascading.flow import Flow
from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph

_DEFAULTS = PlanOptions()


def plan_graph(graph: Graph, options: PlanOptions = _DEFAULTS) -> Plan:
    """What the options ask for: `layerwise` or `cascade`."""
    return layerwise(graph, options) if options.layerwise else cascade(graph, options)


def baseline_peak(graph: Graph) -> int:
    """Bytes live layer by layer in file order: activations alone, every tensor whole, views sharing."""
    flow = Flow(graph)
    costs = SegmentCosts(flow, range(len(graph.ops)), 1)
    whole = [
        sum(graph.tensors[t].bytes for t, born in costs.born.items() if born <= k <= costs.last[t])
        for k in range(len(graph.ops))
    ]
    return max(whole, default=sum(graph.tensors[t].bytes for t in graph.inputs))


def layerwise(graph: Graph, options: PlanOptions = _DEFAULTS) -> Plan:
    """Every operator a segment of its own, in file order.

    Raises
    ------
    InfeasibleError
        The arena exceeds `options.sram`.
    """
    costs = SegmentCosts(Flow(graph), range(len(graph.ops)), options.alignment)
    cuts = tuple(range(len(graph.ops) + 1))
    bound = max((costs.exact_cost(i, i + 1) for i in range(len(graph.ops))), default=0)
    plan = assemble(costs, cuts, Bounds(baseline_peak(graph), bound))
    return _within(plan, costs, options, "plan without --layerwise")


def cascade(graph: Graph, options: PlanOptions = _DEFAULTS) -> Plan:
    """The plan of smallest peak; under a cap the one that cascades least.

    Raises
    ------
    InfeasibleError
        No plan fits `options.sram`; it carries the bytes needed and the operators at the peak.
    """
    costs = SegmentCosts(Flow(graph), range(len(graph.ops)), options.alignment)
    n = len(costs.order)
    table = {(i, j): costs.cost(i, j) for i in range(n) for j in range(i + 1, n + 1)}
    least = smallest_peak(n, lambda i, j: table[i, j])
    figures = Bounds(baseline_peak(graph), smallest_peak(n, costs.exact_cost))
    goal = figures.bound if options.sram is None else options.sram
    best: Plan | None = None
    for cuts in _candidates(costs, table, max(goal, least)):
        plan = assemble(costs, cuts, figures)
        if best is None or plan.peak < best.peak:
            best = plan
        if best.peak <= goal:
            break
    assert best is not None
    return _within(best, costs, options, "give more memory, or change the network")


def _candidates(costs: SegmentCosts, table: dict[tuple[int, int], int], cap: int) -> Iterator[tuple[int, ...]]:
    """Cuts within the cap that differ in taste, for an arena may need more than the sum of what is live."""
    n = len(costs.order)

    def cost(i: int, j: int) -> int:
        return table[i, j]

    def cascaded(i: int, j: int) -> int:
        return max(len(costs.working(i, j)) - 1, 0)

    tastes = (cascaded, lambda i, j: 0, lambda i, j: 1)
    for limit in dict.fromkeys((cap, smallest_peak(n, cost))):
        for taste in tastes:
            cuts = cuts_within(n, cost, limit, taste)
            if cuts is not None:
                yield cuts


def _within(plan: Plan, costs: SegmentCosts, options: PlanOptions, remedy: str) -> Plan:
    if options.sram is None or plan.peak <= options.sram:
        return plan
    place = 0
    live: list[tuple[int, int]] = []
    for segment in plan.segments:
        live.append((costs.cost(place, place + len(segment.ops)), place))
        place += len(segment.ops)
    at = live.index(max(live))
    culprits = [plan.graph.ops[o].name for o in plan.segments[at].ops if not plan.graph.ops[o].view]
    raise InfeasibleError(plan.peak, options.sram, culprits, remedy)
