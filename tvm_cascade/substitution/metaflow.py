"""Cost-based backtracking over relaxed substitutions: MetaFlow (SysML 2019), section 4.2, Algorithm 1.

Symbols: G0 the graph given, Gopt the best so far, alpha the relaxation: a graph is worth expanding while its cost is
below alpha * Cost(Gopt). Algorithm 1 as printed has no visited set, no budget and no initial best, and never prunes its
queue again. Here: graphs are visited once (structural equality, not hashes alone), G0 is the first best, a queued graph
is dropped when a later best has put it out of reach, and the search ends after so many graphs or seconds. Equal costs
come out in the order of discovery.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isinf

from tvm_cascade.errors import InfeasibleError
from tvm_cascade.substitution.costs import AnyCost, peak_bytes
from tvm_cascade.substitution.dag import Dag, Ref, replaced
from tvm_cascade.substitution.pattern import Matcher, Rule, Site

_GAIN = 1e-12  # relative: a smaller difference of costs is rounding


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Every knob of the search."""

    alpha: float = 1.05  # relaxation; 1 is greedy, infinity visits everything reachable
    max_graphs: int = 2000  # graphs whose cost is taken, per subgraph
    max_seconds: float = 30.0  # per subgraph; the result then depends on the machine's speed
    threshold: int = 30  # operators above which a graph is split (section 4.3)
    max_steps_up: int = 0  # 0: no limit; else longest run of steps that do not lower the cost


@dataclass(frozen=True, slots=True)
class Step:
    """One substitution of the winning sequence."""

    rule: str
    operators: tuple[str, ...]  # kinds of the operators matched
    cost: float  # after the step


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a search. `complete`: nothing within reach of alpha was left out by a budget."""

    dag: Dag = field(repr=False)
    cost_before: float
    cost_after: float
    steps: tuple[Step, ...]
    graphs: int  # distinct graphs whose cost was taken
    seconds: float
    complete: bool


Progress = Callable[[int, float], None]  # graphs so far, best cost so far


@dataclass(slots=True)
class _State:
    """A graph of the queue and how it was reached."""

    dag: Dag
    cost: float
    parent: _State | None
    site: Site | None
    climb: int = 0  # steps since the cost last went down


def search(
    dag: Dag,
    cost: AnyCost,
    rules: Sequence[Rule],
    options: SearchOptions | None = None,
    progress: Progress | None = None,
    matcher: Matcher | None = None,
) -> Found:
    """The cheapest graph found by Algorithm 1, without splitting.

    Raises `InfeasibleError` where a limit is broken by the given graph and by every graph found.
    """
    options = options or SearchOptions()
    matcher = matcher or Matcher(tuple(rules))
    begin = time.monotonic()
    first = _State(dag, cost.total(dag), None, None)
    best = first
    visited = {dag.outputs}
    queue: list[tuple[float, int, _State]] = [(first.cost, 0, first)]
    graphs, complete = 1, True
    while queue:
        value, _, state = heapq.heappop(queue)
        if value > options.alpha * best.cost and state is not first:
            break  # re-pruning: all that is left costs as much or more
        for site in matcher.sites(state.dag):
            outputs = replaced(state.dag, site.target)
            if outputs in visited:
                continue
            if graphs >= options.max_graphs or time.monotonic() - begin > options.max_seconds:
                complete = False
                break
            visited.add(outputs)
            child = _child(state, site, outputs, cost)
            graphs += 1
            if progress and graphs % 256 == 0:
                progress(graphs, best.cost)
            if child.cost < best.cost * (1 - _GAIN) or (isinf(best.cost) and child.cost < inf):
                best = child
            if _worth(child, best, options):
                heapq.heappush(queue, (child.cost, graphs, child))
        if not complete:
            break
    if isinf(best.cost):
        raise InfeasibleError(peak_bytes(dag), getattr(cost, "limit", 0), (), "raise the limit of the cost")
    seconds = time.monotonic() - begin
    return Found(best.dag, first.cost, best.cost, _sequence(best), graphs, seconds, complete)


def exhaustive(dag: Dag, cost: AnyCost, rules: Sequence[Rule], max_graphs: int = 10**9) -> Found:
    """The cheapest of all graphs that the rules reach: breadth first, no pruning."""
    begin = time.monotonic()
    matcher = Matcher(tuple(rules))
    first = _State(dag, cost.total(dag), None, None)
    best, visited, layer, complete = first, {dag.outputs}, [first], True
    while layer and complete:
        following: list[_State] = []
        for state in layer:
            for site in matcher.sites(state.dag):
                outputs = replaced(state.dag, site.target)
                if outputs in visited:
                    continue
                visited.add(outputs)
                child = _child(state, site, outputs, cost)
                following.append(child)
                if child.cost < best.cost * (1 - _GAIN):
                    best = child
            if len(visited) > max_graphs:
                complete = False
                break
        layer = following
    seconds = time.monotonic() - begin
    return Found(best.dag, first.cost, best.cost, _sequence(best), len(visited), seconds, complete)


def _child(state: _State, site: Site, outputs: tuple[Ref, ...], cost: AnyCost) -> _State:
    dag = Dag(state.dag.pool, state.dag.inputs, outputs)
    value = cost.total(dag)
    climb = 0 if value < state.cost * (1 - _GAIN) else state.climb + 1
    return _State(dag, value, state, site, climb)


def _worth(child: _State, best: _State, options: SearchOptions) -> bool:
    if options.max_steps_up and child.climb > options.max_steps_up:
        return False
    if options.alpha <= 1:  # greedy: only graphs that are better than anything before
        return child is best
    return child.cost < options.alpha * best.cost or isinf(best.cost)


def _sequence(state: _State) -> tuple[Step, ...]:
    steps: list[Step] = []
    at: _State | None = state
    while at is not None and at.site is not None:
        steps.append(Step(at.site.rule.name, tuple(n.kind for n in at.site.nodes), at.cost))
        at = at.parent
    return tuple(reversed(steps))
