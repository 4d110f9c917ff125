"""Problem and solution of the inter-operator scheduler: `Block` and `Options`, `Stage` and `Schedule`.

IOS (MLSys 2021), section 3. A *schedule* is a list of *stages* that run in turn. A stage's operators either run in
concurrent *groups* (connected components, each run in sequence) or are all *merged* into a single operator.

A `Block` is the unit of search: at most 62 nodes, sets of nodes are bit masks (bit i is node i, nodes in topological
order). Costs are milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from tvm_cascade.cost.interface import OpBound
from tvm_cascade.errors import UsageError

CONCURRENT = "concurrent"
MERGE = "merge"
VARIANTS = ("sequential", "greedy", "merge", "parallel", "both")
UNITS = ("op", "fused", "sepconv", "cell")
MAX_NODES = 62  # of a block: masks are 64-bit signed integers


@dataclass(frozen=True, slots=True)
class Stage:
    """Operators (or nodes of a block) that run together; groups are sorted by first member, members ascending."""

    strategy: str  # CONCURRENT or MERGE
    groups: tuple[tuple[int, ...], ...]

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(i for g in self.groups for i in g))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Stages in execution order, the cost, and figures of the search."""

    stages: tuple[Stage, ...]
    cost_ms: float
    transitions: int = 0  # pairs (state, ending) of the search space; identical blocks counted once
    priced: int = 0  # stages whose cost the search computed
    optimal: bool = False  # no schedule of the search space costs less
    seconds: float = 0.0  # of the search
    bound_ms: float = 0.0  # no schedule of the search space costs less


@dataclass(frozen=True, slots=True)
class Options:
    """How to search. `r` and `s` are the pruning limits of IOS, section 4.3; None is no limit.

    Raises `UsageError` for an impossible option value.
    """

    variant: str = "both"  # one of VARIANTS: a baseline, or which strategies the stages of the search may have
    unit: str = "fused"  # one of UNITS: which operators are scheduled as one node (`parallel.units`)
    r: int | None = 3  # operators per group
    s: int | None = 8  # groups per stage
    max_states: int = 6_000  # of one block; a block with more is cut where fewest tensors are live
    max_nodes: int = MAX_NODES  # of one block; likewise

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise UsageError(f"unknown variant {self.variant}: choose one of {', '.join(VARIANTS)}")
        if self.unit not in UNITS:
            raise UsageError(f"unknown unit {self.unit}: choose one of {', '.join(UNITS)}")
        for name, value in (("r", self.r), ("s", self.s)):
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")


class StageCost(Protocol):
    """Prices the stages of a block."""

    @property
    def fork_ms(self) -> float:
        """Lower bound in milliseconds on the overhead of several groups, to be added to `bounds`; 0 if unknown."""
        ...

    def concurrent(self, groups: tuple[tuple[int, ...], ...]) -> float:
        """Return the milliseconds of groups (node indices) run concurrently."""
        ...

    def merged(self, members: tuple[int, ...]) -> float | None:
        """Return the milliseconds of the members merged into a single operator; None if no exact merge exists."""
        ...

    def bounds(self) -> Sequence[OpBound] | None:
        """Lower bounds for each node (see `OpBound`), or None if the cost model has none."""
        ...


@dataclass(frozen=True)
class Block:
    """A directed acyclic graph over nodes 0..n-1 in topological order.

    A merge stage is a subset of a set in `mergeable`. Nodes of the same kind are interchangeable in a stage's cost.

    Raises `UsageError` if an edge points backwards or there are more than `MAX_NODES` nodes.
    """

    preds: tuple[int, ...]  # per node, the mask of its direct predecessors
    mergeable: tuple[int, ...] = ()  # masks of nodes that can be merged with one another
    kinds: tuple[int, ...] = ()  # per node a number, equal for nodes of equal kernels; empty: all nodes differ

    def __post_init__(self) -> None:
        if len(self.preds) > MAX_NODES:
            raise UsageError(f"a block has {len(self.preds)} nodes, the search takes {MAX_NODES}")
        for v, mask in enumerate(self.preds):
            if mask >> v:
                raise UsageError(f"node {v} has a predecessor that is not before it")

    @property
    def size(self) -> int:
        return len(self.preds)

    @property
    def full(self) -> int:
        return (1 << len(self.preds)) - 1

    @cached_property
    def neighbours(self) -> tuple[int, ...]:
        """Return for each node the mask of adjacent nodes."""
        near = list(self.preds)
        for v, mask in enumerate(self.preds):
            for u in members(mask):
                near[u] |= 1 << v
        return tuple(near)

    def _first(self, mask: int) -> int:
        """Return the mask of the connected component with the lowest node in `mask`."""
        near = self.neighbours
        group = frontier = mask & -mask
        while frontier:
            low = frontier & -frontier
            new = near[low.bit_length() - 1] & mask & ~group
            group |= new
            frontier = (frontier ^ low) | new
        return group

    @cached_property
    def _groups(self) -> dict[int, tuple[tuple[int, ...], ...]]:
        return {0: ()}

    def groups(self, mask: int) -> tuple[tuple[int, ...], ...]:
        """Return the connected components of the nodes in `mask`, each ascending, by lowest node; results are cached."""
        components = self._groups.get(mask)
        if components is None:
            first = self._first(mask)
            components = self._groups[mask] = (members(first), *self.groups(mask & ~first))
        return components


def members(mask: int) -> tuple[int, ...]:
    """List the indices of set bits, ascending."""
    indices = []
    while mask:
        low = mask & -mask
        indices.append(low.bit_length() - 1)
        mask ^= low
    return tuple(indices)
