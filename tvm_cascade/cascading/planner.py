"""The planner's front door: `layerwise` and `cascade`.

Cut positions and interleavings by dynamic programming (`cuts`), ring sizes by closed form and simulation (`heights`),
offsets by `tvm_cascade.memory`. The peak that a plan states is the arena that the allocator laid out, never a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

from tvm_cascade.cascading.assemble import Figures, Layout, assemble
from tvm_cascade.cascading.cuts import cuts_within, smallest_peak
from tvm_cascade.cascading.flow import Flow
from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.cascading.segments import SegmentCosts, Settings
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph

_DEFAULTS = PlanOptions()


def plan_graph(graph: Graph, options: PlanOptions = _DEFAULTS) -> Plan:
    """What the options ask for: `layerwise` or `cascade`."""
    return layerwise(graph, options) if options.layerwise else cascade(graph, options)


def baseline_peak(graph: Graph) -> int:
    """Bytes live layer by layer in file order: activations alone, every tensor whole, views sharing."""
    costs = SegmentCosts(Flow(graph), range(len(graph.ops)), Settings(alignment=1))
    whole = [
        sum(graph.tensors[t].bytes for t, born in costs.born.items() if born <= k <= costs.last[t])
        for k in range(len(graph.ops))
    ]
    return max(whole, default=sum(graph.tensors[t].bytes for t in graph.inputs))


def layerwise(graph: Graph, options: PlanOptions = _DEFAULTS) -> Plan:
    """Every operator a segment of its own, in file order, nothing shared.

    Raises
    ------
    InfeasibleError
        The arena exceeds `options.sram`.
    """
    n = len(graph.ops)
    costs = SegmentCosts(Flow(graph), range(n), Settings(options.alignment))
    bound = max((costs.exact_cost(k, k + 1) for k in range(n)), default=0)
    plan = assemble(costs, Layout(tuple(range(n + 1)), (0,) * n), Figures(baseline_peak(graph), bound))
    return _within(plan, costs, options, "plan without --layerwise")


def cascade(graph: Graph, options: PlanOptions = _DEFAULTS) -> Plan:
    """The plan of smallest peak; under a cap the one of least overhead.

    Raises
    ------
    InfeasibleError
        No plan fits `options.sram`; it carries the bytes needed and the operators at the peak.
    """
    flow = Flow(graph, graph.inputs if options.stream_input else (), options.accumulators)
    costs = SegmentCosts(flow, range(len(graph.ops)), Settings(options.alignment, options.overlap, options.in_place))
    search = _Search(costs, options)
    n = len(costs.order)
    figures = Figures(baseline_peak(graph), smallest_peak(n, search.least_exact))
    goal = figures.bound if options.sram is None else options.sram
    best: Plan | None = None
    for layout in search.layouts(max(goal, smallest_peak(n, search.least))):
        plan = assemble(costs, layout, figures)
        if best is None or plan.peak < best.peak:
            best = plan
        if best.peak <= goal:
            break
    assert best is not None
    return _within(best, costs, options, _remedy(options))


_PRICES = (0, 10, 30, 100, 300, 1_000, 3_000, 10_000, 10**9)  # of a segment, in kernel calls


class _Search:
    """Costs of every segment in every interleaving, and the layouts worth an arena."""

    def __init__(self, costs: SegmentCosts, options: PlanOptions) -> None:
        self.costs, self.options = costs, options
        self._least: dict[tuple[int, int], tuple[int, int]] = {}

    def chunks(self, i: int, j: int) -> tuple[int, ...]:
        """Interleavings of `[i, j)`, coarse first."""
        return self.options.chunks if len(self.costs.members(i, j)) > 1 else (0,)

    def _bytes(self, i: int, j: int) -> tuple[int, int]:
        """Bytes of the best interleaving, rounded and exact.

        A segment that cannot come below the best plan by rows, whatever it shares, is not looked at further: the bytes
        that it needs at least stand for it.
        """
        if (i, j) not in self._least:
            costs, chunks = self.costs, self.chunks(i, j)
            floor = min(sum(costs.blocks(i, j, c)) for c in chunks) - costs.most_shared(i, j)
            if len(chunks) > 1 and floor > self.by_rows:
                self._least[i, j] = floor, floor
            else:
                found = [(costs.cost(i, j, c), costs.exact_cost(i, j, c)) for c in chunks]
                self._least[i, j] = min(f[0] for f in found), min(f[1] for f in found)
        return self._least[i, j]

    @cached_property
    def by_rows(self) -> int:
        """Bytes of the best cuts when every segment goes by its coarsest interleaving."""
        return smallest_peak(len(self.costs.order), lambda i, j: self.costs.cost(i, j, self.chunks(i, j)[0]))

    def least(self, i: int, j: int) -> int:
        """Bytes of `[i, j)`, rounded, in its best interleaving."""
        return self._bytes(i, j)[0]

    def least_exact(self, i: int, j: int) -> int:
        return self._bytes(i, j)[1]

    def coarsest(self, i: int, j: int, cap: int) -> int | None:
        """The coarsest interleaving of `[i, j)` within the cap."""
        if self.least(i, j) > cap:
            return None
        return next((c for c in self.chunks(i, j) if self.costs.cost(i, j, c) <= cap), None)

    def layouts(self, cap: int) -> Iterator[Layout]:
        """Layouts within the cap, that of least overhead first.

        An arena may need more than the sum of what is live, most of all where outputs trail their inputs downwards one
        segment after the other: later layouts pay ever more for the number of segments. Each is given once.
        """
        n = len(self.costs.order)
        seen: set[Layout] = set()
        for limit in dict.fromkeys((cap, smallest_peak(n, self.least))):
            for price in _PRICES:

                def weight(i: int, j: int, limit: int = limit, price: int = price) -> int | None:
                    chunk = self.coarsest(i, j, limit)
                    return None if chunk is None else self._overhead(i, j, chunk) + price

                cuts = cuts_within(n, weight)
                if cuts is not None:
                    layout = Layout(cuts, tuple(self.coarsest(i, j, limit) or 0 for i, j in pairwise(cuts)))
                    if layout not in seen:
                        seen.add(layout)
                        yield layout

    def _overhead(self, i: int, j: int, chunk: int) -> int:
        """Kernel calls that a cascade makes dearer; none where an operator runs alone."""
        return self.costs.calls(i, j, chunk) if len(self.costs.members(i, j)) > 1 else 0


def _remedy(options: PlanOptions) -> str:
    if not options.overlap:
        return "plan without --no-overlap"
    if not options.stream_input:
        return "stream the input with --stream-input, or give more memory"
    return "give more memory, or change the network"


def _within(plan: Plan, costs: SegmentCosts, options: PlanOptions, remedy: str) -> Plan:
    if options.sram is None or plan.peak <= options.sram:
        return plan
    place = 0
    live: list[tuple[int, int]] = []
    for s, segment in enumerate(plan.segments):
        end = place + len(segment.ops)
        live.append((costs.cost(place, end, segment.chunk), -s))
        place = end
    at = -max(live)[1]
    culprits = [plan.graph.ops[o].name for o in plan.segments[at].ops if not plan.graph.ops[o].view]
    raise InfeasibleError(plan.peak, options.sram, culprits, remedy)
