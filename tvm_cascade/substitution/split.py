"""Flow-based recursive graph split: MetaFlow (SysML 2019), section 4.3, Algorithm 2.

Cap(o) counts the substitution sites that need operator o on both sides of a cut through its output. Algorithm 2 cuts at
a minimum vertex cut and may return the whole graph as one side. Here the first and the last operators of the order are
tied to the two sides, so neither is empty, and edges of infinite capacity against the flow keep the first side closed
under predecessors, so the two sides can run one after the other.

Rules that join operators from anywhere (`Rule.whole_graph`) are tried on the whole graph first, as any cut disables them.
Pieces are optimized on their own. Pieces that are equal up to names are optimized once. After stitching, the graph is
searched again in a window of operators around every cut, for the substitutions that the cut had disabled. A last sweep
searches small overlapping windows with the relaxation that a whole piece would have had: gains elsewhere in a piece
hide a local detour from Algorithm 1 (metaflow.py), in a window there is little elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from tvm_cascade.errors import InfeasibleError
from tvm_cascade.substitution.costs import AnyCost, peak_at
from tvm_cascade.substitution.dag import Dag, Node, Pool, Ref, rebuild, replaced
from tvm_cascade.substitution.metaflow import Found, Progress, SearchOptions, Step, search
from tvm_cascade.substitution.pattern import Matcher, Rule, Site

_INFINITE = 1 << 28
_MARGIN = 0.25  # share of the operators tied to each side
_AROUND = 12  # operators around a cut that are searched again, at least


def capacities(dag: Dag, sites: Sequence[Site]) -> dict[Node, int]:
    """Sites that a cut through the output of each operator may disable, plus one so that small cuts win ties."""
    found = {node: 1 for node in dag.nodes}
    scale = 4
    for site in sites:
        if len(site.nodes) < 2:
            continue
        inside = set(site.nodes)
        read = {r.node for n in site.nodes for r in n.inputs}
        joint = len(site.rule.roots) > 1
        for node in site.nodes:
            if node in found and (joint or node in read & inside):
                found[node] += scale
    return found


def first_side(dag: Dag, capacity: Mapping[Node, int]) -> set[Node]:
    """One side of a minimum vertex cut of at least two operators; the graph's last operators are never in it."""
    nodes = dag.nodes
    n = len(nodes)
    place = {node: i for i, node in enumerate(nodes)}
    margin = max(1, int(n * _MARGIN))
    source, sink = 2 * n, 2 * n + 1
    rows, columns, values = [], [], []

    def edge(a: int, b: int, c: int) -> None:
        rows.append(a)
        columns.append(b)
        values.append(c)

    for i, node in enumerate(nodes):
        edge(2 * i, 2 * i + 1, capacity[node])  # in -> out
        for p in dict.fromkeys(place[r.node] for r in node.inputs if r.node in place):
            edge(2 * p + 1, 2 * i, _INFINITE)  # what reads the uncut output of the first side is in the first side
            edge(2 * i, 2 * p, _INFINITE)  # what the first side reads is in the first side
        if i < margin:
            edge(source, 2 * i, _INFINITE)
        if i >= n - margin:
            edge(2 * i, sink, _INFINITE)
    graph = csr_matrix((np.array(values, np.int32), (rows, columns)), shape=(2 * n + 2, 2 * n + 2))
    flow = maximum_flow(graph, source, sink).flow
    residual = graph - flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    reached = set(breadth_first_order(residual, source, return_predecessors=False).tolist())
    return {node for i, node in enumerate(nodes) if 2 * i in reached}


def bisect(dag: Dag, capacity: Mapping[Node, int]) -> tuple[list[Node], list[Node]]:
    """The two sides in the graph's order, both non-empty."""
    side = first_side(dag, capacity)
    first = [n for n in dag.nodes if n in side]
    second = [n for n in dag.nodes if n not in side]
    if not first or not second:  # only where the ties leave no finite cut
        half = len(dag.nodes) // 2
        return list(dag.nodes[:half]), list(dag.nodes[half:])
    return first, second


def pieces(dag: Dag, rules: Sequence[Rule], threshold: int) -> list[list[Node]]:
    """The graph's operators in pieces of at most `threshold`, in an order in which the pieces can run."""
    sites = Matcher(tuple(rules)).sites(dag)
    capacity = capacities(dag, sites)
    done: list[list[Node]] = []
    waiting = [list(dag.nodes)]
    while waiting:
        part = waiting.pop()
        if len(part) <= threshold:
            done.append(part)
            continue
        first, second = bisect(subgraph(dag, part)[0], capacity)
        waiting += [second, first]
    return done


def subgraph(dag: Dag, part: Sequence[Node]) -> tuple[Dag, tuple[Ref, ...]]:
    """The graph of `part` over the same operators, whose inputs and outputs are references of `dag`."""
    inside = set(part)
    read = dict.fromkeys(r for n in part for r in n.inputs if r.node not in inside and not r.node.constant)
    outside = {r for n in dag.nodes if n not in inside for r in n.inputs} | set(dag.outputs)
    outputs = tuple(Ref(n, p) for n in part for p in range(len(n.types)) if Ref(n, p) in outside)
    return _Cut(dag.pool, tuple(read), outputs, tuple(part)), outputs  # type: ignore[return-value]


class _Cut(Dag):
    """A view on some operators of a graph: what `bisect` needs, without copying."""

    def __init__(self, pool: Pool, inputs: tuple[Ref, ...], outputs: tuple[Ref, ...], nodes: tuple[Node, ...]) -> None:
        for name, value in (("pool", pool), ("inputs", inputs), ("outputs", outputs), ("nodes", nodes)):
            object.__setattr__(self, name, value)

    def __post_init__(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece with names of its own, so that equal pieces are one graph."""

    dag: Dag
    leaves: tuple[Ref, ...]  # of the whole graph: what each input and weight of the piece stands for


def lift(pool: Pool, part: Sequence[Node], inputs: Sequence[Ref], outputs: Sequence[Ref]) -> Piece:
    """`part` as a graph in `pool`: inputs and constants become numbered leaves, constants that compute stay whole."""
    inside = set(part)
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

    made = rebuild(outputs, pool, leaf)
    places = tuple(named[r] for r in inputs if r in named)
    return Piece(Dag(pool, places, made), tuple(named))


def lower(piece: Piece, outputs: Sequence[Ref], pool: Pool, moved: Mapping[Ref, Ref]) -> tuple[Ref, ...]:
    """`outputs` of a rewritten piece rebuilt in the whole graph's pool, its leaves read through `moved`."""
    places = {f"#{i}": moved.get(r, r) for i, r in enumerate(piece.leaves)}

    def leaf(ref: Ref) -> Ref | None:
        return places[str(ref.node["name"])] if ref.node.kind in ("input", "weight") else None

    return rebuild(outputs, pool, leaf)


@dataclass(slots=True)
class _Worker:
    """Searches pieces, each distinct one once."""

    cost: AnyCost
    rules: tuple[Rule, ...]
    options: SearchOptions
    progress: Progress | None
    pool: Pool
    matcher: Matcher
    deadline: float
    known: dict[tuple[Ref, ...], Found]
    steps: list[Step]
    running: float  # cost of the whole graph by now, where costs add up
    graphs: int = 0
    complete: bool = True

    def improve(self, dag: Dag, part: Sequence[Node], moved: dict[Ref, Ref], target: Pool) -> bool:
        """Searches `part` and records in `moved` what its outputs became; whether anything changed."""
        cut, outputs = subgraph(dag, part)
        piece = lift(self.pool, part, cut.inputs, outputs)
        found = self.known.get(piece.dag.outputs)
        if found is None:
            left = max(0.0, self.deadline - time.monotonic())
            options = replace(self.options, max_seconds=min(self.options.max_seconds, left))
            try:
                found = search(piece.dag, self.cost, self.rules, options, self.progress, self.matcher)
            except InfeasibleError:  # of a piece alone; the whole graph has the last word
                found = Found(piece.dag, 0.0, 0.0, (), 1, 0.0, False)
            self.known[piece.dag.outputs] = found
            self.graphs += found.graphs
            self.complete &= found.complete
        for step in found.steps:
            self.steps.append(replace(step, cost=self.running - (found.cost_before - step.cost)))
        self.running -= found.cost_before - found.cost_after
        for old, new in zip(outputs, lower(piece, found.dag.outputs, target, moved), strict=True):
            moved[old] = new
        return bool(found.steps)


def optimize(
    dag: Dag,
    cost: AnyCost,
    rules: Sequence[Rule],
    options: SearchOptions | None = None,
    progress: Progress | None = None,
    total_seconds: float = 60.0,
) -> Found:
    """The whole of section 4: split, search every piece, stitch, search around every cut.

    Raises `InfeasibleError` where a limit is broken by the given graph and by the result.
    """
    options = options or SearchOptions()
    begin = time.monotonic()
    before = cost.total(dag)
    if len(dag.nodes) <= (options.window or options.threshold):
        budget = replace(options, max_seconds=min(options.max_seconds, total_seconds))
        return search(dag, cost, rules, budget, progress)
    pool = Pool()
    worker = _Worker(cost.fresh(), tuple(rules), options, progress, pool, Matcher(tuple(rules)),
                     begin + total_seconds, {}, [], before)  # fmt: skip
    start = _apply_global_rules(worker, dag, cost)
    parts = pieces(start, rules, options.threshold)
    stitched, cuts = _pass(worker, start, parts)
    stitched = _around_cuts(worker, stitched, cuts, max(options.threshold, _AROUND))
    if options.window:
        stitched = _sweep(worker, stitched, options.window)
    after = cost.total(stitched)
    if isinf(after):
        needed, where = peak_at(stitched)
        raise InfeasibleError(needed, getattr(cost, "limit", 0), (where,), "raise the limit of the cost")
    seconds = time.monotonic() - begin
    if not after < before:
        return Found(dag, before, before, (), worker.graphs, seconds, worker.complete)
    return Found(stitched, before, after, tuple(worker.steps), worker.graphs, seconds, worker.complete)


def _apply_global_rules(worker: _Worker, dag: Dag, cost: AnyCost) -> Dag:
    """The graph after every site of a global rule, or of an eager one before it, that lowers the cost."""
    eager = Matcher(tuple(r for r in worker.options.eager if r in worker.rules))
    matcher = Matcher(tuple(r for r in worker.rules if r.whole_graph))
    if not matcher.rules or not matcher.sites(dag):
        return dag
    refused: set[Node] = set()
    while True:
        for site in (*eager.sites(dag), *matcher.sites(dag)):
            if site.nodes[0] in refused:
                continue
            made = Dag(dag.pool, dag.inputs, replaced(dag, site.target))
            after = cost.total(made)
            if not after < worker.running:
                refused.add(site.nodes[0])
                continue
            worker.steps.append(Step(site.rule.name, tuple(n.kind for n in site.nodes), after))
            worker.graphs += 1
            worker.running, dag = after, made
            break
        else:
            return dag


def _pass(worker: _Worker, dag: Dag, parts: Sequence[Sequence[Node]]) -> tuple[Dag, list[tuple[Ref, ...]]]:
    """Every piece searched and put back; for each cut, what crosses it in the new graph."""
    moved: dict[Ref, Ref] = {}
    crossing: list[tuple[Ref, ...]] = []
    for part in parts:
        worker.improve(dag, part, moved, dag.pool)
        crossing.append(subgraph(dag, part)[1])
    outputs = tuple(moved.get(r, r) for r in dag.outputs)
    return Dag(dag.pool, dag.inputs, outputs), [tuple(moved[r] for r in c) for c in crossing[:-1]]


def _around_cuts(worker: _Worker, dag: Dag, cuts: Sequence[tuple[Ref, ...]], threshold: int) -> Dag:
    """A search in a window of the topological order around each cut, from the last to the first."""
    marks = [tuple(r.node for r in cut) for cut in cuts]
    for nodes in reversed(marks):
        places = {n: i for i, n in enumerate(dag.nodes)}
        at = [places[n] for n in nodes if n in places]
        if not at or time.monotonic() > worker.deadline:
            continue
        middle = max(at)
        low = max(0, middle - threshold // 2)
        window = dag.nodes[low : low + threshold]
        moved: dict[Ref, Ref] = {}
        if worker.improve(dag, window, moved, dag.pool):
            dag = _replaced(dag, window, moved)
    return dag


def _sweep(worker: _Worker, dag: Dag, size: int, rounds: int = 3) -> Dag:
    """Windows of `size` operators, half overlapping, until a round changes nothing; alpha grows as they shrink."""
    whole = worker.options
    slack = (whole.alpha - 1) * max(1.0, whole.threshold / size)
    worker.options = replace(whole, alpha=1 + slack)
    worker.known = {}
    for _ in range(rounds):
        changed = False
        low = 0
        while low < len(dag.nodes) and time.monotonic() < worker.deadline:
            window = dag.nodes[low : low + size]
            moved: dict[Ref, Ref] = {}
            if worker.improve(dag, window, moved, dag.pool):
                dag, changed = _replaced(dag, window, moved), True
            low += size // 2
        if not changed:
            break
    worker.options = whole
    return dag


def _replaced(dag: Dag, window: Sequence[Node], moved: dict[Ref, Ref]) -> Dag:
    """The graph with the window's outputs read from `moved`; a window is convex, as it is a run of the order."""
    inside = set(window)
    for node in dag.nodes:
        if node in inside or not any(r in moved for r in node.inputs):
            continue
        copy = dag.pool.node(node.kind, tuple(moved.get(r, r) for r in node.inputs), node.attrs, node.types)
        for port in range(len(node.types)):
            moved.setdefault(Ref(node, port), Ref(copy, port))
    return Dag(dag.pool, dag.inputs, tuple(moved.get(r, r) for r in dag.outputs))
