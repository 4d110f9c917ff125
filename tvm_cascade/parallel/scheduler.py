"""The inter-operator scheduler for a whole network (IOS, sections 4.2 and 5), with any `CostModel`.

Operators are grouped into `units`, the unit graph is cut into `blocks`, each distinct block is searched once
(`search`), and all blocks' stages are joined, again in terms of operators. Networks without edges between them, joined
by `passes.join_networks`, may run as the groups of a single stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from tvm_cascade.cost import records
from tvm_cascade.cost.interface import CostModel, OpBound, OpFeatures
from tvm_cascade.graph import Graph
from tvm_cascade.parallel.baselines import greedy, sequential
from tvm_cascade.parallel.blocks import block_of, split
from tvm_cascade.parallel.bounds import least_latency
from tvm_cascade.parallel.merging import merge_classes, merged_features
from tvm_cascade.parallel.problem import CONCURRENT, MERGE, Block, Options, Schedule, Stage
from tvm_cascade.parallel.stage_search import search
from tvm_cascade.parallel.units import UnitGraph, unit_graph
from tvm_cascade.search_monitor import SearchStopped

Features = Sequence[tuple[OpFeatures, ...]]  # per unit, one entry per kernel
Solved = dict[object, tuple[Schedule, Schedule, Schedule]]  # by structure: the schedule, the sequential, the greedy one


class Prices:
    """A cache of concurrent stages' costs for a cost model, by the kernels in their groups.

    Stages with equal kernels have the same cost, in any unit and block: networks with repeated cells have few kinds of
    units, and most stages are permutations of others.
    """

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self._kinds: dict[tuple[OpFeatures, ...], int] = {}
        self._known: dict[tuple[tuple[int, ...], ...], float] = {}
        self._kernels: list[tuple[OpFeatures, ...]] = []

    def kind(self, kernels: tuple[OpFeatures, ...]) -> int:
        """Return the number of a unit's kind: units with equal kernels share a number."""
        number = self._kinds.setdefault(kernels, len(self._kernels))
        if number == len(self._kernels):
            self._kernels.append(kernels)
        return number

    def stage_ms(self, groups: Iterable[tuple[int, ...]]) -> float:
        """Return the milliseconds for concurrent groups, each a sequence of kinds, in any group order."""
        key = tuple(sorted(groups))
        cost = self._known.get(key)
        if cost is None:
            stage = [[k for kind in group for k in self._kernels[kind]] for group in key]
            cost = self._known[key] = self.model.stage_ms(stage)
        return cost


class BlockCost:
    """Prices the stages of a unit block with a `CostModel`; `graph` None allows no merges."""

    def __init__(
        self,
        graph: UnitGraph | None,
        features: Features,
        nodes: Sequence[int],
        prices: Prices,
        mergeable: frozenset[int],
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
        """Return the milliseconds of the groups at the same time."""
        kinds, known = self._kinds, self._of_group
        return self._prices.stage_ms(
            known.get(group) or known.setdefault(group, tuple([kinds[v] for v in group])) for group in groups
        )

    def merged(self, members: tuple[int, ...]) -> float | None:
        """Return the milliseconds of the members merged into a single operator."""
        if self._graph is None:
            return None
        units = [self._nodes[v] for v in members]
        parts = [self._graph.features[v][0] for v in units]
        return self._model.merged_ms(merged_features(self._graph, units), parts)

    def bounds(self) -> Sequence[OpBound]:
        """Compute the lower bounds of each unit: the sums over the unit's kernels."""
        return [
            _sum([self._model.bound(k, self._nodes[v] in self._mergeable) for k in kernels])
            for v, kernels in enumerate(self._features)
        ]


def _sum(bounds: Sequence[OpBound]) -> OpBound:
    kinds = max((len(b.works) for b in bounds), default=0)
    works = tuple(sum(b.works[k] if k < len(b.works) else 0.0 for b in bounds) for k in range(kinds))
    return OpBound(works, sum(b.span for b in bounds), sum(b.alone for b in bounds))


JOINT, APART, AFTER = "joint", "apart", "after"


@dataclass(frozen=True, slots=True)
class Beside:
    """Prices in milliseconds of the schedules for networks without edges between them; the cheapest is chosen."""

    chosen: str  # JOINT, APART or AFTER; of equal prices the last in this order
    joint_ms: float  # stages that may hold units of several networks
    apart_ms: float | None  # a single stage with a group per network; None: not in the search space
    after_ms: float  # the networks in turn, each by its own best schedule

    def to_text(self) -> str:
        """Format the prices in a line."""
        prices = {JOINT: self.joint_ms, APART: self.apart_ms, AFTER: self.after_ms}
        told = ", ".join(f"{name} {price:.4f} ms" for name, price in prices.items() if price is not None)
        return f"networks beside one another: {self.chosen} is chosen ({told})"


@dataclass(frozen=True, slots=True)
class NetworkSchedule:
    """A network's schedule, and the baselines' costs."""

    schedule: Schedule  # stages hold operator indices of `units.graph`
    sequential_ms: float
    greedy_ms: float
    units: UnitGraph
    sizes: tuple[int, ...]  # number of units of each block
    beside: Beside | None = None  # of several networks
    candidates: Mapping[str, Schedule] = field(default_factory=dict)  # those priced, by JOINT, APART, AFTER


def schedule(graph: Graph, model: CostModel, options: Options = Options()) -> NetworkSchedule:  # noqa: B008
    """Search the cheapest schedule of `graph`, and price the sequential and the greedy schedule.

    `graph` has the batch size to schedule for, `model` prices stages in milliseconds, `options` limit the search space.
    `Schedule.optimal` tells that no schedule in that space is cheaper for `model`; it is False for variants without
    search, if a block was too large and had to be cut, and if a limit (`search_monitor`) struck; unsearched blocks get
    the better of their sequential and greedy schedules.

    Networks without edges between them are also scheduled one after the other, and apart: never does the result cost
    more than these.
    """
    start = perf_counter()
    units = unit_graph(graph, options.unit)
    solved: Solved = {}
    blocks = _Blocks(units.predecessors, units.features, Prices(model), options, solved, units)
    stages: list[Stage] = []
    totals = [0.0, 0.0, 0.0]
    ranges, whole = split(units.predecessors, options)
    for nodes in ranges:
        known = blocks.solve(nodes)
        totals = [t + s.cost_ms for t, s in zip(totals, known, strict=True)]
        stages += [_operators(units, nodes, stage) for stage in known[0].stages]
    everything = range(len(units.units))
    whole_network = BlockCost(units, units.features, everything, blocks.prices, blocks.mergeable)
    least, beside, candidates = totals[0], None, dict[str, Schedule]()
    networks = _networks(units.predecessors)
    if len(networks) > 1 and options.variant not in ("sequential", "greedy"):
        groups = _apart(units.predecessors, options)
        together = whole_network.concurrent(groups) if groups else None
        after, in_turn = _in_turn(units, networks, blocks)
        candidates = {AFTER: Schedule(tuple(in_turn), after)}
        if together is not None:
            candidates[APART] = Schedule((_operators(units, everything, Stage(CONCURRENT, groups)),), together)
        candidates[JOINT] = Schedule(tuple(stages), least)
        chosen = min(candidates, key=lambda name: candidates[name].cost_ms)
        least, stages = candidates[chosen].cost_ms, list(candidates[chosen].stages)
        beside = Beside(chosen, totals[0], together, after)
    transitions, priced = (sum(getattr(s[0], name) for s in solved.values()) for name in ("transitions", "priced"))
    proven = whole and all(first.optimal for first, _, _ in solved.values())
    bound = least if proven else min(least, least_latency(units.predecessors, whole_network.bounds()))
    best = Schedule(tuple(stages), least, transitions, priced, proven, perf_counter() - start, bound)
    return NetworkSchedule(best, totals[1], totals[2], units, tuple(len(r) for r in ranges), beside, candidates)


def _in_turn(units: UnitGraph, networks: Sequence[tuple[int, ...]], blocks: _Blocks) -> tuple[float, list[Stage]]:
    """Schedule networks one after the other, each by its own best schedule; return the milliseconds and the stages."""
    total, stages = 0.0, []
    for network in networks:
        for nodes in split(_own(units.predecessors, network), blocks.options)[0]:
            own = tuple(network[v] for v in nodes)
            best = blocks.solve(own)[0]
            total += best.cost_ms
            stages += [_operators(units, own, stage) for stage in best.stages]
    return total, stages


def _own(predecessors: Sequence[Sequence[int]], network: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the predecessors of a network's units, counted within the network."""
    place = {v: k for k, v in enumerate(network)}
    return [tuple(place[u] for u in predecessors[v]) for v in network]


def apart(units: UnitGraph, options: Options) -> Stage | None:
    """Return the stage that runs unconnected networks as groups; None for a single network, or more than `options.s`."""
    groups = _apart(units.predecessors, options)
    return _operators(units, range(len(units.units)), Stage(CONCURRENT, groups)) if groups else None


def _apart(predecessors: Sequence[Sequence[int]], options: Options) -> tuple[tuple[int, ...], ...]:
    """Group unconnected units into a single stage.

    Return () if all are connected, if there are more than `s` groups, or if the variant has no concurrent stages. `r`
    does not apply: it bounds the search, and this is a single stage more.
    """
    if options.variant not in ("parallel", "both"):
        return ()
    networks = _networks(predecessors)
    return networks if 1 < len(networks) <= (options.s or len(networks)) else ()


def _networks(predecessors: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return the sets of units without edges between them, by first unit, each in topological order."""
    parent = list(range(len(predecessors)))

    def lowest(v: int) -> int:
        while parent[v] != v:
            parent[v] = v = parent[parent[v]]
        return v

    for v, before in enumerate(predecessors):
        roots = {lowest(u) for u in (*before, v)}
        for root in roots:
            parent[root] = min(roots)
    groups: dict[int, list[int]] = {}
    for v in range(len(predecessors)):
        groups.setdefault(lowest(v), []).append(v)
    return tuple(map(tuple, groups.values()))


def latency_of(
    predecessors: Sequence[Sequence[int]], features: Features, model: CostModel, options: Options, solved: Solved
) -> float:
    """Return the milliseconds of the cheapest schedule without merges, for units in topological order with kernels
    `features`.

    `solved` caches blocks by structure; graphs priced by the same model and options may share it.
    """
    blocks = _Blocks(predecessors, features, Prices(model), options, solved)
    return sum(blocks.solve(nodes)[0].cost_ms for nodes in split(predecessors, options)[0])


@dataclass
class _Blocks:
    """Schedules a graph's blocks, each distinct block once; without `units` no operators are merged."""

    predecessors: Sequence[Sequence[int]]
    features: Features
    prices: Prices
    options: Options
    solved: Solved
    units: UnitGraph | None = None

    def __post_init__(self) -> None:
        self.classes = () if self.units is None else merge_classes(self.units)
        self.mergeable = frozenset(m for c in self.classes for m in c)

    def solve(self, nodes: Sequence[int]) -> tuple[Schedule, Schedule, Schedule]:
        """Search the schedule of these nodes' block, and return it with the sequential and greedy schedules."""
        kinds = [self.prices.kind(self.features[v]) for v in nodes]
        block = block_of(self.predecessors, nodes, self.classes, kinds)
        key = (block.preds, block.mergeable, tuple(self.features[v] for v in nodes))
        if key not in self.solved:
            cost = BlockCost(self.units, self.features, nodes, self.prices, self.mergeable)
            self.solved[key] = _solve(block, cost, self.options)
        return self.solved[key]


def _solve(block: Block, cost: BlockCost, options: Options) -> tuple[Schedule, Schedule, Schedule]:
    """Search the schedule of a block, and return it with the sequential and greedy schedules."""
    one, all_ready = sequential(block, cost), greedy(block, cost)
    if options.variant == "sequential":
        return one, one, all_ready
    if options.variant == "greedy":
        return all_ready, one, all_ready
    known = [one]
    wide = options.s is None or max(len(s.groups) for s in all_ready.stages) <= options.s
    if wide and options.variant != "merge":
        known.append(all_ready)
    try:
        return search(block, cost, options, known), one, all_ready
    except SearchStopped:
        return min(known, key=lambda schedule: schedule.cost_ms), one, all_ready


def _operators(units: UnitGraph, nodes: Sequence[int], stage: Stage) -> Stage:
    groups = tuple(tuple(i for v in group for i in units.units[nodes[v]].ops) for group in stage.groups)
    return Stage(stage.strategy, groups)


def priced_stages(network_schedule: NetworkSchedule) -> tuple[tuple[str, list[list[OpFeatures]]], ...]:
    """Convert the stages to the form in `cost.records`: strategy, and each group's kernels (for a merge: its parts)."""
    units, stages = network_schedule.units, []
    for stage in network_schedule.schedule.stages:
        if stage.strategy == MERGE:
            stages.append((records.MERGE, [[units.features[v][0] for v in _units_of(units, stage.members)]]))
        else:
            stages.append((records.CONCURRENT, features_of(units, stage)))
    return tuple(stages)


def stage_ms(units: UnitGraph, stage: Stage, model: CostModel) -> float:
    """Return a stage's milliseconds; groups hold operator indices."""
    if stage.strategy == MERGE:
        members = _units_of(units, stage.members)
        return model.merged_ms(merged_features(units, members), [units.features[v][0] for v in members])
    return model.stage_ms(features_of(units, stage))


def features_of(units: UnitGraph, stage: Stage) -> list[list[OpFeatures]]:
    """Return each group's kernels in a concurrent stage with groups of operator indices."""
    return [[k for v in _units_of(units, group) for k in units.features[v]] for group in stage.groups]


def _units_of(units: UnitGraph, ops: Sequence[int]) -> tuple[int, ...]:
    """Return some operators' units, in order."""
    return tuple(dict.fromkeys(units.owner[i] for i in ops))
