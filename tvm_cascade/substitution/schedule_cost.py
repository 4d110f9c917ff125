"""Substitution search under the latency of the inter-operator schedule: MetaFlow (SysML 2019) and IOS (MLSys 2021) jointly.

MetaFlow sums the latencies of operators, as if they ran one after the other. Here a graph costs as much as its
cheapest schedule of concurrent stages: two small convolutions that run concurrently need not be merged, and a substitution
that lengthens the critical path does not pay. Schedules contain no merge stages, since substitutions merge operators. Blocks
are cut and solved as in `parallel.scheduler`; their results are cached, so a new graph needs only the blocks that changed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from tvm_cascade.cost import CostModel
from tvm_cascade.parallel.problem import Options
from tvm_cascade.parallel.scheduler import Solved, latency_of
from tvm_cascade.search_monitor import SearchMonitor, monitor
from tvm_cascade.substitution.costs import TVM, Cost, Engine, Latency, op_features
from tvm_cascade.substitution.dag import Dag
from tvm_cascade.substitution.metaflow import SearchOptions, SearchResult
from tvm_cascade.substitution.pattern import Rule
from tvm_cascade.substitution.rules import EAGER_RULES
from tvm_cascade.substitution.split import optimize

QUICK = Options(variant="parallel", unit="op", r=2, s=4)  # small limits: thousands of graphs are scheduled
_FUSING = frozenset({*(r.name for r in EAGER_RULES), "fuse_activation", "fuse_elementwise"})


@dataclass(eq=False)
class ScheduleLatency:
    """The milliseconds of a graph's cheapest schedule; each graph operator is a scheduling unit."""

    model: CostModel
    engine: Engine = TVM
    options: Options = QUICK
    name: str = "ios"
    _solved: Solved = field(default_factory=dict, repr=False)

    def total(self, dag: Dag) -> float:
        """Return the latency of `dag` in milliseconds; views cost nothing."""
        known = dag.pool.memory(self)
        position = {node: i for i, node in enumerate(dag.nodes)}
        predecessors, features = [], []
        for node in dag.nodes:
            if node.signature not in known:
                known[node.signature] = op_features(node, self.engine)
            features.append((known[node.signature],))
            predecessors.append(tuple(sorted({position[r.node] for r in node.inputs if r.node in position})))
        with monitor().shield():  # a price that a limit cut short would be that of another schedule
            return latency_of(predecessors, features, self.model, self.options, self._solved)

    def search(self, dag: Dag, rules: Sequence[Rule], options: SearchOptions | None = None) -> SearchResult:
        """Run `optimize_schedule` for this cost."""
        return optimize_schedule(dag, self, rules, options)


def optimize_schedule(
    dag: Dag, cost: ScheduleLatency, rules: Sequence[Rule], options: SearchOptions | None = None
) -> SearchResult:
    """Return the graph with the least schedule latency, searched from two starting points.

    Scheduling is slow, above all for the many small operators in an unoptimized network. So one search starts from the
    graph with the least sequential latency, and one after only folding and fusing; the better result wins. `Step.cost`
    is sequential latency up to the starting point, then schedule latency.
    """
    begin = time.monotonic()
    options = options or SearchOptions()
    before = cost.total(dag)
    serial = Latency("latency", cost.engine, model=cost.model)
    fusing = [r for r in rules if r.name in _FUSING]
    starts = [
        _within(0.25, dag, serial, rules, options),
        _within(1 / 3, dag, serial, fusing, replace(options, alpha=1.0)),
    ]
    ends = [_within(share, s.dag, cost, rules, options) for s, share in zip(starts, (0.5, 1.0), strict=True)]
    best = min(range(len(ends)), key=lambda k: (ends[k].cost_after, k))
    graphs = sum(f.graphs for f in (*starts, *ends))
    seconds = time.monotonic() - begin
    if not ends[best].cost_after < before:
        return SearchResult(dag, before, before, (), graphs, seconds, all(f.complete for f in ends))
    steps = starts[best].steps + ends[best].steps
    complete = all(f.complete for f in (*starts, *ends))
    return SearchResult(ends[best].dag, before, ends[best].cost_after, steps, graphs, seconds, complete)


def _within(share: float, dag: Dag, cost: Cost, rules: Sequence[Rule], options: SearchOptions) -> SearchResult:
    """Run `optimize` in a share of the remaining time, if time is limited."""
    left = monitor().left()
    with SearchMonitor(None if left == inf else left * share):
        return optimize(dag, cost, rules, options)
