"""Flow-based recursive graph split: MetaFlow (SysML 2019), section 4.3, Algorithm 2.

Cap(o) counts the substitution sites that a cut through the output of operator o disables. Algorithm 2 cuts at a minimum
vertex cut and may return the whole graph as one side. Here the first operators of the order are tied to one side and
the last to the other, so neither side is empty. Edges of infinite capacity against the flow keep the first side closed
under predecessors, so the two sides can run one after the other.

Global rules (`Rule.whole_graph`), which join distant operators, are tried on the whole graph first, as any cut disables
them. Then every subgraph is optimized on its own; of those that are equal up to names only one is searched. The results
are joined, and the graph is searched again in a window of operators around every cut, for the substitutions that the cut
had disabled. A last sweep searches small overlapping windows, with alpha raised so that a detour may cost as much as in a
whole subgraph: there, gains at other operators lower the threshold of Algorithm 1 (metaflow.py) and hide local detours.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from itertools import pairwise
from math import isinf

from tvm_cascade.errors import InfeasibleError
from tvm_cascade.search_monitor import SearchMonitor, monitor
from tvm_cascade.substitution.costs import Cost, limit_broken
from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref, rebuild, replace
from tvm_cascade.substitution.metaflow import SearchOptions, SearchResult, Step, foresee, search
from tvm_cascade.substitution.pattern import Matcher, Rule, Site

_INFINITE = 1 << 28
_SITE = 4  # capacity that a substitution site adds to an operator, which has 1 by itself
_MARGIN = 0.25  # share of the operators tied to each side
_AROUND = 12  # least number of operators around a cut that are searched again


def capacities(dag: Dag, sites: Sequence[Site]) -> dict[Node, int]:
    """Return each operator's capacity: 1, plus `_SITE` for every site that a cut through its output may disable."""
    capacity = {node: 1 for node in dag.nodes}
    for site in sites:
        if len(site.nodes) < 2:
            continue
        inside = set(site.nodes)
        read = {r.node for n in site.nodes for r in n.inputs}
        joint = len(site.rule.roots) > 1
        for node in site.nodes:
            if node in capacity and (joint or node in read & inside):
                capacity[node] += _SITE
    return capacity


def first_side(nodes: Sequence[Node], capacity: Mapping[Node, int]) -> set[Node]:
    """Return one side of a minimum vertex cut through at least two operators; the last operators are never in it."""
    n = len(nodes)
    position = {node: i for i, node in enumerate(nodes)}
    margin = max(1, int(n * _MARGIN))
    source, sink = 2 * n, 2 * n + 1
    residual: list[dict[int, int]] = [{} for _ in range(2 * n + 2)]  # capacity that is left, by vertex and next vertex

    def edge(a: int, b: int, c: int) -> None:
        residual[a][b] = residual[a].get(b, 0) + c
        residual[b].setdefault(a, 0)

    for i, node in enumerate(nodes):
        edge(2 * i, 2 * i + 1, capacity[node])  # in -> out
        for p in dict.fromkeys(position[r.node] for r in node.inputs if r.node in position):
            edge(2 * p + 1, 2 * i, _INFINITE)  # readers of an uncut output of the first side are in the first side
            edge(2 * i, 2 * p, _INFINITE)  # so are producers of operands of the first side
        if i < margin:
            edge(source, 2 * i, _INFINITE)
        if i >= n - margin:
            edge(2 * i, sink, _INFINITE)
    reached = _source_side(residual, source, sink)
    return {node for i, node in enumerate(nodes) if 2 * i in reached}


def _source_side(residual: list[dict[int, int]], source: int, sink: int) -> set[int]:
    """Return the vertices reached by the source at maximal flow: its side of the nearest minimum cut.

    Augments along shortest paths (Edmonds and Karp 1972). Cuts are narrow, so paths are few; importing `scipy.sparse`
    takes longer than this on most networks.
    """
    while True:
        before = {source: source}
        waiting = deque([source])
        while waiting and sink not in before:
            vertex = waiting.popleft()
            for following, left in residual[vertex].items():
                if left and following not in before:
                    before[following] = vertex
                    waiting.append(following)
        if sink not in before:
            return set(before)
        path = [sink]
        while path[-1] != source:
            path.append(before[path[-1]])
        edges = [(a, b) for b, a in pairwise(path)]
        most = min(residual[a][b] for a, b in edges)
        for a, b in edges:
            residual[a][b] -= most
            residual[b][a] += most


def bisect(nodes: Sequence[Node], capacity: Mapping[Node, int]) -> tuple[list[Node], list[Node]]:
    """Split `nodes` at a minimum vertex cut; both sides are non-empty and in the order of `nodes`."""
    side = first_side(nodes, capacity)
    first = [n for n in nodes if n in side]
    second = [n for n in nodes if n not in side]
    if not first or not second:  # only where the operators tied to the two sides leave no finite cut
        half = len(nodes) // 2
        return list(nodes[:half]), list(nodes[half:])
    return first, second


def subgraphs(dag: Dag, rules: Sequence[Rule], threshold: int) -> list[list[Node]]:
    """Split the graph's operators into lists of at most `threshold`, in an order in which these can run."""
    sites = Matcher(tuple(rules)).sites(dag)
    capacity = capacities(dag, sites)
    done: list[list[Node]] = []
    waiting = [list(dag.nodes)]
    while waiting:
        part = waiting.pop()
        if len(part) <= threshold:
            done.append(part)
            continue
        first, second = bisect(part, capacity)
        waiting += [second, first]
    return done


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A subgraph as a separate graph with numbered leaves, so equal subgraphs are a single graph."""

    dag: Dag
    leaves: tuple[Ref, ...]  # references of the whole graph that the inputs and weights of `dag` represent
    outputs: tuple[Ref, ...]  # references of the whole graph that the outputs of `dag` represent

    def put_back(self, rewritten: Dag, pool: Pool, moved: dict[Ref, Ref]) -> None:
        """Copy `rewritten`, the optimized `dag`, into the whole graph's pool; record in `moved` what replaces `outputs`.

        `moved` maps references of the whole graph to their replacements so far, which are also applied to the leaves.
        """
        references = {f"#{i}": moved.get(r, r) for i, r in enumerate(self.leaves)}

        def leaf(ref: Ref) -> Ref | None:
            return references[ref.node["name"]] if ref.node.kind in ("input", "weight") else None

        moved.update(zip(self.outputs, rebuild(rewritten.outputs, pool, leaf), strict=True))


def outputs_of(dag: Dag, part: Sequence[Node]) -> tuple[Ref, ...]:
    """Return the outputs in `part` read by the rest of the graph, and graph outputs."""
    inside = set(part)
    outside = {r for n in dag.nodes if n not in inside for r in n.operands if r.node in inside} | set(dag.outputs)
    return tuple(r for n in part for r in n.outputs if r in outside)


def lift(pool: Pool, dag: Dag, part: Sequence[Node]) -> Subgraph:
    """Return `part` as a graph in `pool`: inputs and constants become numbered leaves; `full` and `eye_kernel` are
    copied.
    """
    inside = set(part)
    read = dict.fromkeys(r for n in part for r in n.inputs if r.node not in inside and not r.node.constant)
    outputs = outputs_of(dag, part)
    named: dict[Ref, Ref] = {}

    def leaf(ref: Ref) -> Ref | None:
        node = ref.node
        if node in inside:
            return None
        if ref not in named:
            if node.constant and node.kind in ("full", "eye_kernel"):
                return None
            make = pool.weight if node.constant else pool.input
            named[ref] = make(f"#{len(named)}", *ref.type)
        return named[ref]

    lifted = rebuild(outputs, pool, leaf)
    return Subgraph(Dag(pool, tuple(named[r] for r in read if r in named), lifted), tuple(named), outputs)


@dataclass(slots=True)
class _Worker:
    """Searches subgraphs, each distinct one once, and collects steps and costs for the whole graph."""

    cost: Cost
    options: SearchOptions
    running: float  # current cost of the whole graph, if the cost is additive
    matcher: Matcher
    pool: Pool = field(default_factory=Pool)
    known: dict[tuple[Ref, ...], SearchResult] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    graphs: int = 0
    complete: bool = True

    def improve(self, dag: Dag, part: Sequence[Node], moved: dict[Ref, Ref], share: float = 1.0) -> bool:
        """Search `part` and record replacements for its outputs in `moved`; return True if anything changed.

        The search takes at most `share` of the remaining graph budget.
        """
        subgraph = lift(self.pool, dag, part)
        result = self.known.get(subgraph.dag.outputs)
        if result is None:
            try:
                left = int((self.options.total_graphs - self.graphs) * share)
                options = changed(self.options, max_graphs=min(self.options.max_graphs, max(1, left)))
                result = search(subgraph.dag, self.cost, self.matcher.rules, options, self.matcher)
            except InfeasibleError:  # the subgraph alone exceeds a limit: `optimize` checks the whole graph
                result = SearchResult(subgraph.dag, 0.0, 0.0, (), 1, 0.0, False)
            self.known[subgraph.dag.outputs] = result
            self.graphs += result.graphs
            self.complete &= result.complete
        for step in result.steps:
            self.steps.append(changed(step, cost=self.running - (result.cost_before - step.cost)))
        self.running -= result.cost_before - result.cost_after
        subgraph.put_back(result.dag, dag.pool, moved)
        return bool(result.steps)

    def rewritten(self, dag: Dag, window: Sequence[Node]) -> Dag:
        """Return the graph after a search in a window, consecutive operators forming a convex subgraph."""
        moved: dict[Ref, Ref] = {}
        return replace(dag, moved) if self.improve(dag, window, moved) else dag


def optimize(dag: Dag, cost: Cost, rules: Sequence[Rule], options: SearchOptions | None = None) -> SearchResult:
    """Return the cheapest graph by MetaFlow's section 4: split, search every subgraph, join, search around every cut.

    Raises `InfeasibleError` if the result exceeds a cost limit.
    """
    options = options or SearchOptions()
    if len(dag.nodes) <= (options.window or options.threshold):
        return search(dag, cost, rules, options)
    begin = time.monotonic()
    before = cost.total(dag)
    worker = _Worker(cost, options, before, Matcher(tuple(rules)))
    with SearchMonitor() as own:
        start = _apply_global_rules(worker, dag, cost)
        parts = subgraphs(start, rules, options.threshold)
        stitched, cuts = _pass(worker, start, parts)
        stitched = _around_cuts(worker, stitched, cuts, max(options.threshold, _AROUND))
        if options.window:
            stitched = _sweep(worker, stitched, options.window)
    after, complete = cost.total(stitched), worker.complete and not own.limited
    if isinf(after):
        raise limit_broken(cost, stitched)
    seconds = time.monotonic() - begin
    if not after < before:
        return SearchResult(dag, before, before, (), worker.graphs, seconds, complete)
    return SearchResult(stitched, before, after, tuple(worker.steps), worker.graphs, seconds, complete)


def _apply_global_rules(worker: _Worker, dag: Dag, cost: Cost) -> Dag:
    """Apply every site of an eager or global rule that lowers the cost, until there is none."""
    eager = Matcher(tuple(r for r in worker.options.eager if r in worker.matcher.rules))
    matcher = Matcher(tuple(r for r in worker.matcher.rules if r.whole_graph))
    if not matcher.rules or not matcher.sites(dag):
        return dag
    refused: set[Node] = set()
    while True:
        sites = [s for s in (*eager.sites(dag), *matcher.sites(dag)) if s.nodes[0] not in refused]
        foresee(cost, dag, sites)
        for site in sites:
            if site.nodes[0] in refused:
                continue
            if monitor().over():
                return dag
            rewritten = replace(dag, site.target)
            after = cost.total(rewritten)
            if not after < worker.running:
                refused.add(site.nodes[0])
                continue
            worker.steps.append(Step(site.rule.name, tuple(n.kind for n in site.nodes), after))
            worker.graphs += 1
            worker.running, dag = after, rewritten
            break
        else:
            return dag


def _pass(worker: _Worker, dag: Dag, parts: Sequence[Sequence[Node]]) -> tuple[Dag, list[tuple[Ref, ...]]]:
    """Search every subgraph and join the results; also returns, for each cut, the references that cross it."""
    moved: dict[Ref, Ref] = {}
    crossing: list[tuple[Ref, ...]] = []
    left = sum(len(part) for part in parts)
    for part in parts:
        worker.improve(dag, part, moved, len(part) / left)
        left -= len(part)
        crossing.append(outputs_of(dag, part))
    outputs = tuple(moved.get(r, r) for r in dag.outputs)
    return Dag(dag.pool, dag.inputs, outputs), [tuple(moved[r] for r in c) for c in crossing[:-1]]


def _around_cuts(worker: _Worker, dag: Dag, cuts: Sequence[tuple[Ref, ...]], threshold: int) -> Dag:
    """Search a window of the topological order around each cut, from the last cut to the first."""
    marks = [tuple(r.node for r in cut) for cut in cuts]
    for nodes in reversed(marks):
        positions = {n: i for i, n in enumerate(dag.nodes)}
        at = [positions[n] for n in nodes if n in positions]
        if not at or monitor().over():
            continue
        middle = max(at)
        low = max(0, middle - threshold // 2)
        dag = worker.rewritten(dag, dag.nodes[low : low + threshold])
    return dag


def _sweep(worker: _Worker, dag: Dag, size: int) -> Dag:
    """Search half-overlapping windows of `size` operators until a round changes nothing; small windows raise alpha."""
    whole = worker.options
    slack = (whole.alpha - 1) * max(1.0, whole.threshold / size)
    worker.options = changed(whole, alpha=1 + slack)
    worker.known = {}
    for _ in range(3):
        before = dag
        low = 0
        while low < len(dag.nodes) and not monitor().over():
            dag = worker.rewritten(dag, dag.nodes[low : low + size])
            low += size // 2
        if dag is before:
            break
    else:
        worker.complete = False  # another round might find more
    worker.options = whole
    return dag
