"""Regions: sets of operators that may run in a single cascade.

An operator may cascade if the input rows read for an output row are known: `passes.extract_graph` derives these windows
from the operator's code, whatever the name. An output with one row needs no window, and a view moves no data. All other
operators are left out, each with a reason.

Regions are merged as in BYOC's MergeCompilerRegions: a tensor's producer and reader join a region unless another path
between leaves the region, which would make two regions wait for each other. Largest tensors go first, so of two
conflicting merges the larger tensor's is made and may give a ring; then operators that read the same tensor. The
planner (`search`) never puts operators from different regions into a single segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from tvm_cascade.graph import Graph, Op


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An operator that cannot run in a cascade, and why."""

    op: int
    reason: str
    remedy: str  # how to change the operator so that it can


@dataclass(frozen=True)
class Partition:
    """A graph's regions, ordered by the first operator, each a tuple of ascending operators, views included."""

    regions: tuple[tuple[int, ...], ...]
    left_out: tuple[LeftOut, ...]
    region_of: tuple[int | None, ...]  # by operator; None also for views between operators that are left out

    @cached_property
    def whole(self) -> bool:
        """Test whether all operators lie in a single region."""
        return len(self.regions) <= 1 and None not in self.region_of


_REMEDIES = (
    ("ascending", "read rows in ascending order: flip or permute where the rows are consumed last"),
    ("divided by a variable", "divide indices by constants"),
    ("modulo a variable", "take indices modulo constants"),
    ("may be negative", "shift the index so that it is never negative"),
    ("read from a tensor", "make the indices constants: rows that data choose cannot be planned"),
    ("no axis of the operator", "index by the operator's own axes alone"),
    ("different numbers of rows", "give all outputs the same number of rows, or write one operator for each"),
    ("outside of its", "compute every stage per output row, in blocks that the output's axes reach"),
    ("by its own iteration", "write each output row in its own iteration of the outermost spatial axes"),
    ("loops are not its axes", "write the output in loops over its own axes"),
    ("nothing reads", "remove the stage that nothing reads"),
)
_REMEDY = "write it so that an output row reads a fixed window of input rows"


def windowed(graph: Graph, op: Op) -> bool:
    """Test whether the input rows read for each output row of an operator are known."""
    if op.target is not None:
        return False  # it runs alone
    if op.view or op.opaque is None or op.kernels.accumulator_bytes:
        return True
    return all(graph.tensors[t].rows == 1 for t in op.outputs)


@lru_cache(maxsize=8)
def partition(graph: Graph) -> Partition:
    """Find the largest regions of operators with known windows, and the operators left out."""
    group = _Groups(graph)
    edges, siblings = _edges(graph), list(_siblings(graph))
    while any([group.merge(*e) for e in edges]) or any([group.merge(*s) for s in siblings]):
        pass  # a merge may open the way for one that was refused
    working = {group.of[o.index] for o in graph.ops if not o.view and windowed(graph, o)}
    regions = sorted(tuple(o for o, g in enumerate(group.of) if g == name) for name in working)
    region_of: list[int | None] = [None] * len(graph.ops)
    for k, ops in enumerate(regions):
        for o in ops:
            region_of[o] = k
    reasons = {
        o.index: o.opaque or "its windows are not known"
        for o in graph.ops
        if not windowed(graph, o) and o.target is None
    }
    left = tuple(
        LeftOut(o, why, next((remedy for part, remedy in _REMEDIES if part in why), _REMEDY))
        for o, why in reasons.items()
    )
    return Partition(tuple(regions), left, tuple(region_of))


def region_order(graph: Graph, regions: Partition) -> tuple[int, ...]:
    """Return a topological order in which each region's operators follow one another; ties by index."""
    unit = [len(graph.ops) + o if r is None else r for o, r in enumerate(regions.region_of)]
    waits: dict[int, set[int]] = {u: set() for u in unit}
    for o, preds in enumerate(graph.predecessors):
        waits[unit[o]] |= {unit[p] for p in preds if unit[p] != unit[o]}
    first = {u: unit.index(u) for u in waits}
    order: list[int] = []
    done: set[int] = set()
    while len(done) < len(waits):
        ready = min((u for u, w in waits.items() if u not in done and w <= done), key=first.__getitem__)
        done.add(ready)
        order += [o for o, u in enumerate(unit) if u == ready]
    return tuple(order)


def _edges(graph: Graph) -> list[tuple[int, int]]:
    """List (producer, reader) for every tensor between two operators that may cascade, largest tensors first."""
    edges: list[tuple[int, int, int]] = []
    for t in graph.tensors:
        maker = graph.producer[t.index]
        if maker is not None and windowed(graph, graph.ops[maker]):
            edges += [(-t.bytes, maker, c) for c in graph.consumers[t.index] if windowed(graph, graph.ops[c])]
    return [(a, b) for _, a, b in sorted(edges)]


def _siblings(graph: Graph) -> Iterator[tuple[int, int]]:
    """Yield pairs of successive readers for each tensor, largest tensors first."""
    for t in sorted(graph.tensors, key=lambda t: (-t.bytes, t.index)):
        readers = [c for c in graph.consumers[t.index] if windowed(graph, graph.ops[c])]
        yield from pairwise(readers)


class _Groups:
    """A partition of the operators into groups, named by the smallest member; no two groups wait for each other."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.of = list(range(len(graph.ops)))
        self._members = {o: [o] for o in self.of}
        self._free = all(windowed(graph, op) for op in graph.ops)

    def merge(self, a: int, b: int) -> bool:
        """Merge the groups of two operators unless another group must run between; returns True if merged."""
        one, other = sorted((self.of[a], self.of[b]))
        if one == other or (not self._free and (self._around(one, other) or self._around(other, one))):
            return False
        for o in self._members[other]:
            self.of[o] = one
        self._members[one] += self._members.pop(other)
        return True

    def _around(self, start: int, goal: int) -> bool:
        """Test whether a path leads from one group to another through a third."""
        last = max(max(self._members[start]), max(self._members[goal]))
        pending = [g for g in self._after((start,)) if g != goal]
        seen = {start, *pending}
        while pending:
            for g in self._after((pending.pop(),)):
                if g == goal:
                    return True
                if g not in seen and min(self._members[g]) <= last:
                    seen.add(g)
                    pending.append(g)
        return False

    def _after(self, groups: Sequence[int]) -> list[int]:
        """Return the groups that read tensors written by `groups`."""
        readers = {self.of[s] for g in groups for o in self._members[g] for s in self.graph.successors[o]}
        return sorted(readers - set(groups))
