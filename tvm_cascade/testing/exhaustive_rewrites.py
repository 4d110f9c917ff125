"""All graphs that rules reach, also where their number is a product: what Table 3 of MetaFlow (SysML 2019) compares with.

ResNet-18 has 2 * 8^5 * 35^3 graphs under the paper's rules (2.8e9; the paper's exhaustive search took 3.1 hours, under
its own rules), as substitutions in one residual block leave the others alone. `exhaustive_by_parts` uses that and proves
it on the way. The graph is cut wherever a single tensor passes. A rule's operators hang together by edges or by a common
operand, over at most `REACH` operators in a row; so it cannot span more than `REACH` neighbouring parts. Two neighbours
whose joint exhaustive search finds anything but the product of their own graphs are one part. In the end every run of
`REACH` parts is searched jointly: as many graphs as the product, and the multiset of costs that of all sums. Then the
graphs of the whole are the product as well, and the cheapest is the cheapest of every part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from tvm_cascade.errors import GraphError
from tvm_cascade.substitution.costs import Additive, Cost
from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref, rebuild, replace
from tvm_cascade.substitution.metaflow import SearchResult
from tvm_cascade.substitution.pattern import Matcher, Rule
from tvm_cascade.substitution.split import lift

REACH = 3  # operators in a row that a rule's pattern looks at, at most
_GAIN = 1e-12  # relative: a smaller difference of costs is rounding
_TOLERANCE = 1e-9  # relative, of costs that add up in another order

_Costs = tuple[float, ...]


def exhaustive(
    dag: Dag,
    cost: Cost,
    rules: Sequence[Rule],
    max_graphs: int = 10**9,
    visit: Callable[[float], None] = lambda cost: None,
) -> SearchResult:
    """The cheapest of all graphs that the rules reach: breadth first, no pruning. `visit` is told every cost.

    No order of the steps is reported. `SearchResult.complete` is False where `max_graphs` ended the search.
    """
    begin = time.monotonic()
    matcher = Matcher(tuple(rules))
    best, before = dag, cost.total(dag)
    least, visited, layer, complete = before, {dag.outputs}, [dag], True
    visit(before)
    while layer and complete:
        following: list[Dag] = []
        for state in layer:
            for site in matcher.sites(state):
                child = replace(state, site.target)
                if child.outputs in visited:
                    continue
                visited.add(child.outputs)
                following.append(child)
                value = cost.total(child)
                visit(value)
                if value < least * (1 - _GAIN):
                    best, least = child, value
            if len(visited) > max_graphs:
                complete = False
                break
        layer = following
    return SearchResult(best, before, least, (), len(visited), time.monotonic() - begin, complete)


def exhaustive_by_parts(
    dag: Dag, cost: Additive, rules: Sequence[Rule], max_graphs: int = 100_000, reach: int = REACH
) -> SearchResult:
    """The cheapest of all graphs that the rules reach, and their number; no order of the steps is reported.

    `cost` must be a sum over operators. `max_graphs` limits each joint search; raises `GraphError` where one is larger.
    With a smaller `reach` less is verified.
    """
    begin = time.monotonic()
    search = _Parts(dag, cost, tuple(rules), max_graphs)
    parts = search.independent(_finest(dag))
    search.verify(parts, reach)
    moved: dict[Ref, Ref] = {}
    graphs = 1
    for part in parts:
        graphs *= len(search.costs(part))
        search.replace(part, moved)
    best = Dag(dag.pool, dag.inputs, tuple(moved.get(r, r) for r in dag.outputs))
    seconds = time.monotonic() - begin
    return SearchResult(best, cost.total(dag), cost.total(best), (), graphs, seconds, True)


def _finest(dag: Dag) -> list[tuple[Node, ...]]:
    """The operators in order, cut wherever exactly one tensor passes."""
    last: dict[Ref, int] = {}
    for i, node in enumerate(dag.nodes):
        for r in node.inputs:
            if not r.node.constant:
                last[r] = i
    for r in dag.outputs:
        last[r] = len(dag.nodes)
    position = {r: -1 for r in dag.inputs} | {
        Ref(n, p): i for i, n in enumerate(dag.nodes) for p in range(len(n.types))
    }
    parts: list[tuple[Node, ...]] = []
    low = 0
    for high in range(1, len(dag.nodes) + 1):
        passing = sum(born < high <= last[r] for r, born in position.items() if r in last)
        if passing == 1 or high == len(dag.nodes):
            parts.append(dag.nodes[low:high])
            low = high
    return parts


class _Parts:
    """Exhaustive searches of runs of operators, each distinct one once."""

    def __init__(self, dag: Dag, cost: Additive, rules: tuple[Rule, ...], max_graphs: int) -> None:
        self.dag, self.cost, self.rules, self.max_graphs = dag, cost, rules, max_graphs
        self._pool = Pool()
        self._known: dict[tuple[Ref, ...], tuple[SearchResult, _Costs]] = {}

    def independent(self, parts: list[tuple[Node, ...]]) -> list[tuple[Node, ...]]:
        """Neighbours joined until every two of them are independent."""
        at = 0
        while at + 1 < len(parts):
            if self._product(parts[at : at + 2]):
                at += 1
            else:
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
                at = max(0, at - 1)
        return parts

    def verify(self, parts: Sequence[tuple[Node, ...]], reach: int) -> None:
        """Every run of `reach` parts is a product too."""
        for at in range(max(1, len(parts) - reach + 1)):
            if not self._product(parts[at : at + reach]):
                raise GraphError(f"substitutions join parts {at} to {at + reach - 1}: search the graph as a whole")

    def costs(self, part: Sequence[Node]) -> _Costs:
        """Costs of all graphs that replace the part, ascending."""
        return self._searched(part)[1]

    def replace(self, part: Sequence[Node], moved: dict[Ref, Ref]) -> None:
        """Record in `moved` what the part's outputs become in its cheapest graph."""
        subgraph = lift(self._pool, self.dag, part)
        subgraph.put_back(self._searched(part)[0].dag, self.dag.pool, moved)

    def _product(self, parts: Sequence[tuple[Node, ...]]) -> bool:
        single = [np.array(self.costs(p)) for p in parts]
        together = tuple(n for p in parts for n in p)
        if prod(len(s) for s in single) > self.max_graphs:
            raise GraphError(f"parts of {[len(s) for s in single]} graphs are more than {self.max_graphs} together")
        joint = self.costs(together)
        sums = single[0]
        for costs in single[1:]:
            sums = np.add.outer(sums, costs).ravel()
        return len(sums) == len(joint) and bool(np.allclose(np.sort(sums), joint, rtol=_TOLERANCE, atol=0))

    def _searched(self, part: Sequence[Node]) -> tuple[SearchResult, _Costs]:
        subgraph = lift(self._pool, self.dag, part)
        known = self._known.get(subgraph.dag.outputs)
        if known is None:
            costs: list[float] = []
            result = exhaustive(subgraph.dag, self.cost, self.rules, self.max_graphs, costs.append)
            if not result.complete:
                raise GraphError(f"a part of {len(part)} operators has more than {self.max_graphs} graphs")
            known = self._known[subgraph.dag.outputs] = result, tuple(sorted(costs))
        return known


def same_structure(a: Dag, b: Dag) -> bool:
    """Whether two graphs, of whatever pools, are equal operator for operator; inputs correspond by position."""
    if len(a.inputs) != len(b.inputs) or len(a.outputs) != len(b.outputs):
        return False
    pool = Pool()
    outputs = []
    for dag in (a, b):
        positions = {ref: i for i, ref in enumerate(dag.inputs)}

        def leaf(ref: Ref, positions: dict[Ref, int] = positions) -> Ref | None:
            return pool.input(f"#{positions[ref]}", *ref.type) if ref in positions else None

        outputs.append(rebuild(dag.outputs, pool, leaf))
    return outputs[0] == outputs[1]
