"""Lower bounds for branch and bound: costs of a stage and the rest of a schedule, as arrays over states and endings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_cascade.cost.interface import OpBound
from tvm_cascade.parallel.lattice import Pairs, admitted, mergeable
from tvm_cascade.parallel.problem import Block, members


@dataclass(frozen=True, slots=True)
class Bounds:
    """The cost model's lower bounds (`OpBound`) summed over the states and endings of a block, in milliseconds."""

    works: np.ndarray  # (resources, states): work of the nodes in the state
    alone: np.ndarray  # (states,): cost of the nodes in the state, one after the other
    rest: np.ndarray  # (states,): lower bound on the cost of all stages after the state
    spans: np.ndarray  # (endings,): sum of spans along the longest path inside the ending
    forks: np.ndarray  # (endings,): overhead of running several groups, 0 where it has one or may be merged
    single: np.ndarray  # (endings,): whether it has one group

    @classmethod
    def of(cls, block: Block, space: Pairs, bounds: Sequence[OpBound] | None, fork_ms: float) -> Bounds:
        by_node = bounds if bounds is not None else [OpBound()] * block.size
        works = np.zeros((max([len(b.works) for b in by_node] + [1]), len(space.states)))
        alone, rest = np.zeros(len(space.states)), np.zeros(len(space.states))
        tails = _tails([members(mask) for mask in block.preds], by_node)
        for v, bound in enumerate(by_node):
            inside = (space.states >> v & 1).astype(np.float64)
            for k, work in enumerate(bound.works):
                works[k] += inside * work
            alone += inside * bound.alone
            np.maximum(rest, (1.0 - inside) * tails[v], out=rest)
        np.maximum(rest, (works[:, -1:] - works).max(axis=0), out=rest)
        single = admitted(block, space.endings, None, 1)
        forks = np.where(single | mergeable(block, space.endings), 0.0, fork_ms)
        return cls(works, alone, rest, _spans(block, space.endings, by_node), forks, single)

    def stage(self, state: np.ndarray, before: np.ndarray, ending: np.ndarray) -> np.ndarray:
        """Compute lower bounds of stages from the states `before` to the states `state`, with the nodes `ending` (all
        indices).
        """
        least = (self.works[:, state] - self.works[:, before]).max(axis=0)
        np.maximum(least, self.spans[ending], out=least)
        least += self.forks[ending]
        return np.where(self.single[ending], np.maximum(least, self.alone[state] - self.alone[before]), least)


def least_latency(predecessors: Sequence[Sequence[int]], bounds: Sequence[OpBound]) -> float:
    """Bound from below the milliseconds of any schedule of nodes in topological order: the longest path, the busiest
    resource.
    """
    kinds = max((len(b.works) for b in bounds), default=0)
    works = [sum(b.works[k] for b in bounds if k < len(b.works)) for k in range(kinds)]
    return max((*_tails(predecessors, bounds), *works), default=0.0)


def _tails(predecessors: Sequence[Sequence[int]], bounds: Sequence[OpBound]) -> list[float]:
    """Compute for each node the longest path of spans to the end."""
    tails = [b.span for b in bounds]
    for v in range(len(bounds) - 1, -1, -1):
        for u in predecessors[v]:
            tails[u] = max(tails[u], bounds[u].span + tails[v])
    return tails


def _spans(block: Block, endings: np.ndarray, bounds: Sequence[OpBound]) -> np.ndarray:
    """Compute for each node set the largest sum of spans along a path inside."""
    longest = np.zeros(len(endings))
    depth: list[np.ndarray] = []
    for v, bound in enumerate(bounds):
        here = np.full(len(endings), bound.span)
        before = [depth[u] for u in members(block.preds[v])]
        if before:
            here += before[0] if len(before) == 1 else np.maximum.reduce(before)
        here *= endings >> v & 1
        depth.append(here)
        np.maximum(longest, here, out=longest)
    return longest
