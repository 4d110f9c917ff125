"""The schedule of a whole network: units, blocks, one search per distinct block, stages in terms of operators.

IOS, sections 4.2 and 5. Costs come from any `CostModel`; the batch size is the graph's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter

from tvm_cascade.cost import records
from tvm_cascade.cost.interface import CostModel, OpBound, OpFeatures
from tvm_cascade.graph import Graph
from tvm_cascade.parallel.baselines import greedy, sequential
from tvm_cascade.parallel.blocks import block_of, split
from tvm_cascade.parallel.merging import merge_classes, merged_features
from tvm_cascade.parallel.problem import MERGE, Block, Options, Schedule, Stage
from tvm_cascade.parallel.search import search
from tvm_cascade.parallel.units import UnitGraph, unit_graph

Features = Sequence[tuple[OpFeatures, ...]]  # per unit, one entry per kernel
Solved = dict[object, tuple[Schedule, Schedule, Schedule]]  # by structure: the schedule, the sequential, the greedy one


class Prices:
    """Prices of concurrent stages by what their groups run, for one cost model.

    Which of several equal units a stage holds does not matter, nor which block it is of: a cell has few kinds of units, and
    most of its stages are permutations of others.
    """

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self._kinds: dict[tuple[OpFeatures, ...], int] = {}
        self._known: dict[tuple[tuple[int, ...], ...], float] = {}
        self._kernels: list[tuple[OpFeatures, ...]] = []

    def kind(self, kernels: tuple[OpFeatures, ...]) -> int:
        """The number of a unit's kernels; equal ones have the same."""
        found = self._kinds.setdefault(kernels, len(self._kernels))
        if found == len(self._kernels):
            self._kernels.append(kernels)
        return found

    def stage_ms(self, groups: Iterable[tuple[int, ...]]) -> float:
        """Milliseconds of groups of kinds at the same time; equal groups may change places."""
        key = tuple(sorted(groups))
        found = self._known.get(key)
        if found is None:
            made = [[k for kind in group for k in self._kernels[kind]] for group in key]
            found = self._known[key] = self.model.stage_ms(made)
        return found


class BlockCost:
    """Prices the stages of one block of units with a `CostModel`; without a graph nothing is merged."""

    def __init__(
        self, graph: UnitGraph | None, features: Features, nodes: range, prices: Prices, mergeable: frozenset[int]
    ) -> None:
        self._features = [features[v] for v in nodes]
        self._prices = prices
        self._kinds = [prices.kind(f) for f in self._features]
        self._of_group: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._graph = graph
        self._nodes = nodes
        self._model = prices.model
        self._mergeable = mergeable
        self.fork_ms = prices.model.fork_ms

    def concurrent(self, groups: tuple[tuple[int, ...], ...]) -> float:
        """Milliseconds of the groups at the same time."""
        kinds, known = self._kinds, self._of_group
        return self._prices.stage_ms(
            known.get(group) or known.setdefault(group, tuple([kinds[v] for v in group])) for group in groups
        )

    def merged(self, members: tuple[int, ...]) -> float | None:
        """Milliseconds of the members merged into one operator."""
        if self._graph is None:
            return None
        units = [self._nodes[v] for v in members]
        parts = [self._graph.features[v][0] for v in units]
        return self._model.merged_ms(merged_features(self._graph, units), parts)

    def bounds(self) -> Sequence[OpBound] | None:
        """Bounds of each unit: the sum of its kernels'."""
        return [
            _sum([self._model.bound(k, self._nodes[v] in self._mergeable) for k in kernels])
            for v, kernels in enumerate(self._features)
        ]


def _sum(bounds: Sequence[OpBound]) -> OpBound:
    kinds = max((len(b.works) for b in bounds), default=0)
    works = tuple(sum(b.works[k] if k < len(b.works) else 0.0 for b in bounds) for k in range(kinds))
    return OpBound(works, sum(b.span for b in bounds), sum(b.alone for b in bounds))


@dataclass(frozen=True, slots=True)
class NetworkSchedule:
    """What was decided for a network. Stages hold operator indices of `units.graph`; `sizes` are its blocks' units."""

    schedule: Schedule
    sequential_ms: float
    greedy_ms: float
    units: UnitGraph
    sizes: tuple[int, ...]


def schedule(graph: Graph, model: CostModel, options: Options = Options()) -> NetworkSchedule:  # noqa: B008
    """The cheapest schedule of `graph` for `model` within `options`, and what the baselines cost.

    `Schedule.optimal` says that no schedule of the search space is cheaper for that model; it is False for the
    variants that do not search, and where a block had to be cut to be searched.
    """
    start = perf_counter()
    units = unit_graph(graph, options.unit)
    classes = merge_classes(units)
    may_merge = frozenset(m for c in classes for m in c)
    ranges, whole = split(units.predecessors, options)
    solved: Solved = {}
    prices = Prices(model)
    stages: list[Stage] = []
    totals = [0.0, 0.0, 0.0]
    transitions = priced = 0
    for nodes in ranges:
        block = block_of(units.predecessors, nodes, classes, [prices.kind(units.features[v]) for v in nodes])
        key = (block, tuple(units.features[v] for v in nodes))
        known = solved.get(key)
        if known is None:
            cost = BlockCost(units, units.features, nodes, prices, may_merge)
            known = solved[key] = _solve(block, cost, options)
            transitions += known[0].transitions
            priced += known[0].priced
        totals = [t + s.cost_ms for t, s in zip(totals, known, strict=True)]
        stages += [_operators(units, nodes, stage) for stage in known[0].stages]
    searched = options.variant not in ("sequential", "greedy")
    found = Schedule(tuple(stages), totals[0], transitions, priced, searched and whole, perf_counter() - start)
    return NetworkSchedule(found, totals[1], totals[2], units, tuple(len(r) for r in ranges))


def latency_of(
    predecessors: Sequence[Sequence[int]], features: Features, model: CostModel, options: Options, solved: Solved
) -> float:
    """Milliseconds of the cheapest schedule without merges of units in topological order, `features` each.

    `solved` remembers blocks by structure and may be shared between graphs, for one model and options.
    """
    total = 0.0
    prices = Prices(model)
    for nodes in split(predecessors, options)[0]:
        block = block_of(predecessors, nodes, kinds=[prices.kind(features[v]) for v in nodes])
        key = (block.preds, tuple(features[v] for v in nodes))
        known = solved.get(key)
        if known is None:
            cost = BlockCost(None, features, nodes, prices, frozenset())
            known = solved[key] = _solve(block, cost, options)
        total += known[0].cost_ms
    return total


def _solve(block: Block, cost: BlockCost, options: Options) -> tuple[Schedule, Schedule, Schedule]:
    """The schedule of one block, and its sequential and greedy ones."""
    one, all_ready = sequential(block, cost), greedy(block, cost)
    if options.variant == "sequential":
        return one, one, all_ready
    if options.variant == "greedy":
        return all_ready, one, all_ready
    known = [one]
    wide = options.s is None or max(len(s.groups) for s in all_ready.stages) <= options.s
    if wide and options.variant != "merge":
        known.append(all_ready)
    return search(block, cost, options, known), one, all_ready


def _operators(units: UnitGraph, nodes: range, stage: Stage) -> Stage:
    groups = tuple(tuple(i for v in group for i in units.units[nodes[v]].ops) for group in stage.groups)
    return Stage(stage.strategy, groups)


def priced_stages(found: NetworkSchedule) -> tuple[tuple[str, list[list[OpFeatures]]], ...]:
    """Stages as cost models know them: strategy, and the kernels of each group (of a merge: its parts)."""
    units = found.units
    owner = {i: unit.index for unit in units.units for i in unit.ops}
    stages = []
    for stage in found.schedule.stages:
        if stage.strategy == MERGE:
            parts = [units.features[v][0] for v in dict.fromkeys(owner[i] for i in stage.members)]
            stages.append((records.MERGE, [parts]))
        else:
            stages.append((records.CONCURRENT, features_of(units, stage)))
    return tuple(stages)


def features_of(units: UnitGraph, stage: Stage) -> list[list[OpFeatures]]:
    """Kernels of each group of a stage given in operators."""
    owner = {i: unit.index for unit in units.units for i in unit.ops}
    if stage.strategy == MERGE:
        merged = tuple(dict.fromkeys(owner[i] for i in stage.members))
        return [[merged_features(units, merged)]]
    return [[k for v in dict.fromkeys(owner[i] for i in group) for k in units.features[v]] for group in stage.groups]
