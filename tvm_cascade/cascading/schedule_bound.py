"""A lower bound on the arena of every schedule that makes each pixel once, in any order, cuts, rings and addresses.

The bound is a pebble game's. A schedule makes every tensor's pixels in turn; a pixel can be made when the pixels in the
windows exist, takes memory until the last reader is made, and is never made again. An operator with unknown windows
makes the output at once. An operator that moves its input in place may free it all with the first pixel. Kernels that sum their
input on arrival leave no pixels behind, and cost nothing here; nor do counters, scratch and alignment. A plan's arena holds
all live pixels at any time, so no plan at 1.00x is smaller than the bound, by rows, by pixels or in stripes, and no better
search can change that.

A schedule passes through every count m = 0, 1, ... of pixels of each tensor. Let n[t] be the number of made pixels of
tensor t at such a time. With the reader r of t, the last in the file's order, `boundaries` says for every set of
pixels: n[t] >= needed(n[r]), and at least max(n[t] - completed(n[r]), between(n[r])) pixels of t are alive. These
relations form a tree, from inputs to outputs, so the least sum of live bytes with n[t] = m is found exactly, for all t
and m together, by passing the least sums of subtrees up and down. The bound is the largest sum; every further relation
only makes the bound larger. Before pixel m of t is made, the pixels to read are alive too.

If a tensor has several readers, r needs at least as much of the tensor as the earlier readers, which r itself needs: a
residual must be held until the branch has caught up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.boundaries import Boundary, Counts, boundary, overwritten, read_whole
from tvm_cascade.cascading.geometry import has_rows
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.graph import IDENTITY, Graph, Op, Tensor, Window

_Bytes = NDArray[np.float64]  # by count of pixels; inf where a schedule never has that count


def bound_of(plan: Plan) -> int:
    """Return the `schedule_bound` of a plan's graph; for a plan with double work the least bytes of the forms searched."""
    if plan.macs > plan.baseline_macs:
        return plan.bound
    return schedule_bound(plan.graph, frozenset(t for segment in plan.segments for t in segment.streamed))


@lru_cache(maxsize=64)
def schedule_bound(graph: Graph, streamed: frozenset[int] = frozenset()) -> int:
    """Compute the bytes every schedule at 1.00x of `graph` needs as arena; `streamed` inputs arrive row by row."""
    return _Pebbles(graph, streamed).bound()


@dataclass(slots=True)
class _Edge:
    """A tensor, and the reader by which the live pixels are counted."""

    reader: int  # operator
    counts: Boundary
    needed: Counts  # pixels of the tensor, also through its other readers


@dataclass(slots=True)
class _Node:
    """A tensor with memory, or a join part."""

    pixels: int
    pixel_bytes: float
    resting: _Bytes  # by count: bytes that it holds by itself; inf where no schedule has that count
    edge: _Edge | None = None
    children: list[int] = field(default_factory=list)  # tensors whose reader makes this one
    beside: dict[int, _Bytes] = field(default_factory=dict)  # by child: least bytes of the other children
    # least bytes of the tensors that lead to it, and of itself
    below: _Bytes = field(default_factory=lambda: np.zeros(0))
    above: _Bytes = field(default_factory=lambda: np.zeros(0))  # least bytes of all others, and of its live pixels


class _Pebbles:
    """The tree of a graph."""

    def __init__(self, graph: Graph, streamed: frozenset[int]) -> None:
        self.graph, self.streamed = graph, streamed
        self.tables = AccessTables(graph, streamed)
        size = self.tables.tensor_bytes
        joins = [op for op in graph.ops if op.part_offsets]  # parts that are added up share bytes
        self.apart = {op.index for op in joins if sum(size[t] for t in op.inputs) <= size[op.outputs[0]]}
        self.joins = {t: op.index for op in joins for t in op.inputs}
        self.maps = {t: self._map(t) for t in self._own()}
        self.nodes = {t: self._node(graph.tensors[t]) for t in self._own() if graph.tensors[t].bytes}
        self.order = sorted(self.nodes, key=self._made_by)
        for t in self.order:
            edge = self._edge(t)
            if edge is not None:
                self.nodes[t].edge = edge
                self.nodes[self._writes(edge.reader)].children.append(t)

    def bound(self) -> int:
        """Compute the largest of the least live bytes, over all tensors and counts."""
        for t in self.order:
            self._gather(t)
        roots = [t for t in self.order if self.nodes[t].edge is None]
        least = {t: float(self.nodes[t].below.min()) for t in roots}
        most = 0.0
        for t in reversed(self.order):
            node = self.nodes[t]
            if node.edge is None:
                node.above = np.full(node.pixels + 1, sum(least.values()) - least[t])
            else:
                node.above = self._seen_from(t, node.edge)
            most = max(most, _largest(node.below + node.above), self._while_making(t))
        return int(np.ceil(most - 1e-6))

    def _own(self) -> list[int]:
        """Return the tensors that own memory, and parts of joins; views have none."""
        graph, parts = self.graph, self.tables.parts
        views = {t for op in graph.ops if op.view and not op.part_offsets for t in op.outputs}
        return [t for t, root in enumerate(self.tables.roots) if t not in views and (root.tensor == t or t in parts)]

    def _made_by(self, tensor: int) -> int:
        """Return the operator that makes a node; -1 for graph inputs. A join is made by the join, which follows the
        parts.
        """
        maker = self.graph.producer[tensor]
        return -1 if maker is None else maker

    def _writes(self, op: int) -> int:
        """Return the node an operator makes."""
        return self.graph.ops[op].outputs[0]

    def _map(self, tensor: int) -> tuple[int, int]:
        """Return the rows and columns for counting a node: a node made at once is counted as the readers see the map."""
        maker = self.graph.producer[tensor]
        if maker is not None and self._by_pixels(self.graph.ops[maker]):
            return _grid(self.graph.tensors[tensor])
        size = self.graph.tensors[tensor].bytes
        for op in self.graph.ops:
            for t in op.inputs:
                read = self.graph.tensors[t]
                if (
                    not op.view
                    and self.tables.roots[t].tensor == tensor
                    and read.bytes == size
                    and has_rows(self.graph, op.index)
                ):
                    return _grid(read)
        return _grid(self.graph.tensors[tensor])

    def _node(self, tensor: Tensor) -> _Node:
        rows, columns = self.maps[tensor.index]
        pixels = rows * columns
        resting = np.zeros(pixels + 1)
        maker = self.graph.producer[tensor.index]
        if maker is None and tensor.index not in self.streamed:
            resting[:-1] = np.inf  # in memory from the start
        elif maker is not None and not self._by_pixels(self.graph.ops[maker]):
            resting[1:-1] = np.inf  # made at once
        if tensor.index in self.tables.leaves and tensor.index not in self.tables.parts:
            resting += np.arange(pixels + 1) * (tensor.bytes / pixels)
        return _Node(pixels, tensor.bytes / pixels, resting)

    def _by_pixels(self, op: Op) -> bool:
        return bool(op.part_offsets) or has_rows(self.graph, op.index)

    # -- the relations

    def _edge(self, tensor: int) -> _Edge | None:
        """Return the reader with a known window that frees a tensor last, its boundary, and the pixels that readers
        need at least; None if no reader's window is known.
        """
        readers, known = self._readers(tensor), dict[int, Boundary]()
        for reader in readers:
            counts = self._counts(tensor, reader)
            if counts is not None and self._writes(reader) in self.nodes:
                known[reader] = counts
        if not known:
            return None
        last = max(known, key=lambda o: (known[o].pixels, o))
        needed = known[last].needed
        if known[last].pixels == self.nodes[tensor].pixels:
            needed = self._needed_by_others(tensor, last, known, needed)
        return _Edge(last, known[last], needed)

    def _readers(self, tensor: int) -> list[int]:
        """Return the operators that read a node, ascending; a part of a join is read by the join."""
        if tensor in self.joins:
            return [self.joins[tensor]]
        return [o for o in self.tables.readers[tensor] if not self.graph.ops[o].view]

    def _counts(self, tensor: int, reader: int) -> Boundary | None:
        """Return the counts a reader needs and completes of a node; None if unknown."""
        op, found = self.graph.ops[reader], None
        if op.kernels.accumulator_bytes or (len(op.outputs) > 1 and self._by_pixels(op)):
            return None
        for i, t in enumerate(op.inputs):
            if t == tensor or (self.tables.roots[t].tensor == tensor and tensor not in self.tables.parts):
                found = self._of_input(tensor, op, i) if found is None else found  # of an input read twice, once
                if found is None:
                    return None
        return overwritten(found) if found is not None and op.kernels.in_place_workspace_bytes else found

    def _of_input(self, tensor: int, op: Op, i: int) -> Boundary | None:
        """Return `_counts` for a single input, which is the node, a view, or a part."""
        read, node, out = (
            self.graph.tensors[op.inputs[i]],
            self.graph.tensors[tensor],
            self.graph.tensors[op.outputs[0]],
        )
        if op.part_offsets:
            same = op.index in self.apart and _grid(read) == _grid(out)
            return boundary(IDENTITY, IDENTITY, _grid(read), _grid(out)) if same else None
        rows = op.windows[i] if i < len(op.windows) else None
        columns = op.columns[i] if i < len(op.columns) else None
        pixels = self.nodes[out.index].pixels if out.index in self.nodes else 0
        if rows is None or not self._by_pixels(op):
            return read_whole(self.nodes[tensor].pixels, pixels) if read.bytes == node.bytes else None
        if _grid(read) != self.maps[tensor] or _grid(out) != self.maps.get(out.index):
            return None
        columns = Window.whole(_grid(read)[1]) if columns is None else columns
        return boundary(rows, columns, _grid(read), _grid(out))

    def _needed_by_others(self, tensor: int, last: int, known: dict[int, Boundary], needed: Counts) -> Counts:
        """Compute the pixels `last` needs of a tensor, also through reading operators between."""
        reach: dict[int, Counts] = {last: np.arange(self.nodes[self._writes(last)].pixels + 1)}
        for o in range(last - 1, min(known) - 1, -1):
            made = self._writes(o) if self.graph.ops[o].outputs else -1
            for reader in self._readers(made) if made in self.nodes else ():
                counts = self._counts(made, reader) if reader in reach else None
                if counts is not None:
                    through = counts.needed[reach[reader]]
                    reach[o] = np.maximum(reach[o], through) if o in reach else through
        for reader in known.keys() & reach.keys():
            needed = np.maximum(needed, known[reader].needed[reach[reader]])
        return needed

    # -- the least sums

    def _gather(self, tensor: int) -> None:
        """Compute `below` of a node from the children."""
        node = self.nodes[tensor]
        node.below = node.resting + sum((self._least(t) for t in node.children), start=np.zeros(node.pixels + 1))

    def _least(self, tensor: int, before: bool = False) -> _Bytes:
        """Compute the least bytes of a node's live pixels and all pixels leading there, by count of the reader's
        output.

        With `before`, entry m - 1 is for the time before the reader makes pixel m, when the pixels to read are alive
        too.
        """
        node = self.nodes[tensor]
        assert node.edge is not None
        counts, size = node.edge.counts, node.pixel_bytes
        held = np.maximum(np.arange(node.pixels + 1) - (node.pixels - counts.pixels), 0) * size
        if self._kept(tensor):
            held = np.zeros(node.pixels + 1)
        alone, together = _least_from(node.below), _least_from(node.below + held)
        needed, completed, between = node.edge.needed, counts.completed, counts.between
        if before:
            needed, completed, between = needed[1:], completed[:-1], np.zeros(len(needed) - 1, np.int64)
        if self._kept(tensor):
            return alone[needed]
        alive = np.maximum(between, np.minimum(needed, counts.pixels) - completed)
        return np.maximum(together[needed] - size * completed, alone[needed] + size * alive)

    def _kept(self, tensor: int) -> bool:
        """Test whether a node is an output of the graph: all pixels stay, counted in `resting`."""
        return tensor in self.tables.leaves and tensor not in self.tables.parts

    def _seen_from(self, tensor: int, edge: _Edge) -> _Bytes:
        """Compute a read node's `above` from the `above` of the reader's output."""
        node, maker = self.nodes[tensor], self.nodes[self._writes(edge.reader)]
        if tensor not in maker.beside:
            maker.beside = self._beside(maker)
        others = maker.above + maker.resting + maker.beside.pop(tensor)
        counts, size = edge.counts, node.pixel_bytes
        # most that the reader has made
        allowed = np.searchsorted(edge.needed, np.arange(node.pixels + 1), side="right") - 1
        if self._kept(tensor):
            return np.minimum.accumulate(others)[allowed]
        alive = np.maximum(counts.between, np.minimum(edge.needed, counts.pixels) - counts.completed)
        held = np.maximum(np.arange(node.pixels + 1) - (node.pixels - counts.pixels), 0) * size
        together = np.minimum.accumulate(others - size * counts.completed)[allowed] + held
        return np.maximum(together, np.minimum.accumulate(others + size * alive)[allowed])

    def _beside(self, maker: _Node) -> dict[int, _Bytes]:
        """Compute, for each child of a node, the other children's least bytes, by the node's count."""
        own = [self._least(t) for t in maker.children]
        none = np.zeros(maker.pixels + 1)
        before, after = [none, *accumulate(own)], [none, *accumulate(reversed(own))][::-1]
        return {t: before[k] + after[k + 1] for k, t in enumerate(maker.children)}

    def _while_making(self, tensor: int) -> float:
        """Compute the largest bytes just before a pixel of a node is made, with all pixels to read alive."""
        node = self.nodes[tensor]
        maker = self.graph.producer[tensor]
        if maker is None or not node.children:
            return 0.0
        rest = node.above[:-1] + node.resting[:-1]
        return _largest(rest + sum(self._least(t, before=True) for t in node.children))


def _grid(tensor: Tensor) -> tuple[int, int]:
    """Return the rows and columns of a tensor."""
    return max(tensor.rows, 1), max(tensor.columns, 1)


def _least_from(numbers: _Bytes) -> _Bytes:
    """Compute the minimum of each entry and all entries after."""
    return np.minimum.accumulate(numbers[::-1])[::-1]


def _largest(numbers: _Bytes) -> float:
    """Return the largest finite entry, since schedules have no others; 0 without any."""
    finite = numbers[np.isfinite(numbers)]
    return float(finite.max()) if len(finite) else 0.0
