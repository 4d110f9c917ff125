"""Cost-based backtracking over relaxed substitutions: MetaFlow (SysML 2019), section 4.2, Algorithm 1.

Symbols: G0 is the input graph, Gopt the best so far, alpha the relaxation: a graph is expanded while its cost is below
alpha * Cost(Gopt). Algorithm 1 as printed has no visited set, no budget and no initial best, and never prunes its queue
again. Here graphs are visited once (compared by structure, not by hash alone), G0 is the first best, a queued graph is
dropped when a later best has lowered the threshold below its cost, and the search ends after a number of graphs, so that
results do not depend on the machine (or where a `search_monitor` says so). Of graphs of equal cost the one discovered
first is expanded first. There is no lower bound: nothing is known of graphs that were not reached.

Independent gains hide alternatives: after several substitutions elsewhere have lowered Cost(Gopt), an early alternative costs
more than alpha * Cost(Gopt) and is dropped. So rules that leave no alternative (constants folded, views that cancel) can be
`eager`: they are applied after every step instead of being searched, where nobody else reads what they replace. And a site
that lowers the cost and shares no operator with another site is applied at once (`isolated`): k of them would otherwise give
2^k graphs. Both are heuristics, since another substitution might need those operators; `testing.exhaustive_rewrites` uses
neither, and tests compare with it.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from math import inf, isinf

from tvm_cascade.search_monitor import SearchMonitor, monitor
from tvm_cascade.substitution.costs import Cost, Foreseeing, limit_broken
from tvm_cascade.substitution.dag import Dag, Node, Ref, postorder, replace, replaced
from tvm_cascade.substitution.pattern import Matcher, Rule, Site
from tvm_cascade.substitution.rules import EAGER_RULES

_GAIN = 1e-12  # relative: smaller differences of costs are rounding errors


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Heuristics and budgets for a graph's search."""

    alpha: float = 1.05  # relaxation; 1 is greedy, infinity visits everything reachable
    max_graphs: int = 2000  # graphs whose cost is computed, per subgraph
    patience: int = 400  # graphs without a better one after which a search gives up; 0: never
    total_graphs: int = 30_000  # for the whole graph: what is left is shared among its parts by their operators
    threshold: int = 30  # operators above which a graph is split (section 4.3)
    eager: tuple[Rule, ...] = EAGER_RULES  # applied wherever they fit after every step, not searched
    isolated: bool = True  # apply a gain at a site that shares no operator with another at once, without search
    window: int = 12  # operators in a window of the last sweep (split.py); 0: no sweep


@dataclass(frozen=True, slots=True)
class Step:
    """One substitution in the winning sequence."""

    rule: str
    operators: tuple[str, ...]  # kinds of the operators matched
    cost: float  # after the step


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A search's result. `complete`: no budget or limit ended the search, so every graph within alpha was expanded."""

    dag: Dag = field(repr=False)
    cost_before: float
    cost_after: float
    steps: tuple[Step, ...]
    graphs: int  # distinct graphs whose cost was taken
    seconds: float
    complete: bool


@dataclass(slots=True)
class _State:
    """A queued graph, and the sites applied to its parent: one, followed by the simplifier's."""

    dag: Dag
    cost: float
    parent: _State | None = None
    sites: tuple[Site, ...] = ()
    open: list[Site] | None = None  # sites in `dag`; None: not yet computed


def search(
    dag: Dag,
    cost: Cost,
    rules: Sequence[Rule],
    options: SearchOptions | None = None,
    matcher: Matcher | None = None,
) -> SearchResult:
    """Return the cheapest graph found by Algorithm 1, without splitting.

    Searches with one pool and rules may share `matcher`. Raises `InfeasibleError` if the input graph and every graph
    found exceed a limit.
    """
    with SearchMonitor() as own:
        result = _search(dag, cost, options or SearchOptions(), matcher or Matcher(tuple(rules)))
    return changed(result, complete=result.complete and not own.limited)


def _search(dag: Dag, cost: Cost, options: SearchOptions, matcher: Matcher) -> SearchResult:
    """Run `search`; `complete` ignores limits hit during simplification."""
    eager = Matcher(tuple(r for r in options.eager if r in matcher.rules))
    begin = time.monotonic()
    given = _State(dag, cost.total(dag))
    simplifier = _GreedySimplifier(cost, eager, matcher if options.isolated else None)
    best = first = simplifier.state(given, None, dag.outputs)
    visited = {dag.outputs, first.dag.outputs}
    queue: list[tuple[float, int, _State]] = [(first.cost, 0, first)]
    graphs, complete = len(visited), True
    best_at = graphs
    while queue and complete:
        value, _, state = heapq.heappop(queue)
        if state is not first and value >= options.alpha * best.cost:
            break  # re-pruning: all other graphs in the queue cost as much or more
        sites = matcher.sites(state.dag) if state.open is None else state.open
        if not _spent(options, graphs, best_at):
            foresee(cost, state.dag, sites)
        for site in sites:
            outputs = replaced(state.dag, site.target)
            if outputs in visited:
                continue
            if _spent(options, graphs, best_at):
                complete = False
                break
            visited.add(outputs)
            child = simplifier.state(state, site, outputs)
            if child.dag.outputs is not outputs:
                if child.dag.outputs in visited:
                    continue
                visited.add(child.dag.outputs)
            graphs += 1
            better = child.cost < best.cost * (1 - _GAIN) or (isinf(best.cost) and child.cost < inf)
            if better:
                best, best_at = child, graphs
            monitor().report("substitutions", graphs, options.max_graphs, best.cost, None, "")
            if better or child.cost < options.alpha * best.cost > best.cost or isinf(best.cost):
                heapq.heappush(queue, (child.cost, graphs, child))
    if isinf(best.cost):
        raise limit_broken(cost, dag)
    if best is first and not first.cost < given.cost:
        best = given
    seconds = time.monotonic() - begin
    return SearchResult(best.dag, given.cost, best.cost, _sequence(best, cost), graphs, seconds, complete)


def foresee(cost: Cost, dag: Dag, sites: Sequence[Site]) -> None:
    """Announce to a cost that measures operators together that `dag` will be priced after each of `sites`."""
    if isinstance(cost, Foreseeing):
        cost.foresee(_new_operators(dag, sites))


def _new_operators(dag: Dag, sites: Sequence[Site]) -> Iterator[Node]:
    """Yield the operators added by `sites`, each once."""
    known = set(dag.nodes)
    for site in sites:
        for node in postorder(site.target.values(), lambda n: n in known or n.constant):
            if node not in known and not node.constant and node.kind != "input":
                known.add(node)
                yield node


def _spent(options: SearchOptions, graphs: int, best_at: int) -> bool:
    """Return True if the search ends: its graph count or patience is used up, or a time limit strikes."""
    if graphs >= options.max_graphs or (options.patience and graphs - best_at >= options.patience):
        return True
    return monitor().over()


@dataclass(frozen=True, slots=True)
class _GreedySimplifier:
    """Simplifies a new graph greedily: eager rules first, then sites that lower the cost alone, until neither is left."""

    cost: Cost
    eager: Matcher
    matcher: Matcher | None  # None: isolated gains are left to the search
    useless: dict[Site, None] = field(default_factory=dict)  # isolated sites that once gained nothing

    def state(self, parent: _State, site: Site | None, outputs: tuple[Ref, ...]) -> _State:
        """Return the state for the graph `outputs`, made from `parent` by `site`, simplified."""
        old = parent.dag
        dag = Dag(old.pool, old.inputs, outputs)
        sites = () if site is None else (site,)
        value: float | None = None
        while True:
            fitting = next(_removing(dag, self.eager.sites(dag)), None) if self.eager.rules else None
            if fitting is not None:
                sites, value = (*sites, fitting), None
                dag = replace(dag, fitting.target)
                continue
            value = self.cost.total(dag) if value is None else value
            if self.matcher is None or (site is not None and value >= parent.cost):
                return _State(dag, value, parent, sites)  # the cost rose on purpose: simplifying would only undo that
            following = self.matcher.sites(dag)
            gain = self._isolated(dag, value, following)
            if gain is None:
                return _State(dag, value, parent, sites, following)
            chosen, dag, value = gain
            sites = (*sites, chosen)

    def _isolated(self, dag: Dag, value: float, sites: list[Site]) -> tuple[Site, Dag, float] | None:
        touched: dict[Node, int] = {}
        for site in sites:
            for node in site.nodes:
                touched[node] = touched.get(node, 0) + 1
        alone = [s for s in sites if s not in self.useless and all(touched[n] == 1 for n in s.nodes)]
        foresee(self.cost, dag, alone)
        for site in alone:
            if monitor().over():
                return None
            rewritten = replace(dag, site.target)
            cost = self.cost.total(rewritten)
            if cost < value * (1 - _GAIN):
                return site, rewritten, cost
            self.useless[site] = None
        return None


def _removing(dag: Dag, sites: Sequence[Site]) -> Iterator[Site]:
    """Yield the sites whose operators have no other reader: with another reader the operators stay, and work is done
    twice.
    """
    readers = dag.users() if sites else {}
    for site in sites:
        inside = [n for n in site.nodes if not n.constant]
        replaced_refs = set(site.target)
        between = (r for n in inside for r in n.outputs if r not in replaced_refs)
        if all(r not in dag.outputs and all(u in inside for u in readers.get(r, ())) for r in between):
            yield site


def _sequence(state: _State, cost: Cost) -> tuple[Step, ...]:
    """Return the winning steps, oldest first, each with the cost after it."""
    steps: list[Step] = []
    at: _State | None = state
    while at is not None and at.parent is not None:
        dag = at.parent.dag
        taken: list[Step] = []
        for site in at.sites:
            dag = replace(dag, site.target)
            taken.append(Step(site.rule.name, tuple(n.kind for n in site.nodes), cost.total(dag)))
        steps = taken + steps
        at = at.parent
    return tuple(steps)
