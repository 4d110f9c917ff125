"""How operators consume and produce, step by step: the windows of a graph turned into tables.

An operator runs in steps. One that has rows makes output row k in step k; one that is opaque makes everything in one
step. Tensors that are views are replaced by the tensor that owns the memory (their root).

Symbols: H rows of a tensor; `need[k]` rows of an input that must exist before step k; `keep[k]` the first row that
step k or a later one reads (H where none does), so that rows below it are dead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from tvm_cascade.graph import Graph, Op, Tensor, Window


@dataclass(frozen=True, slots=True)
class Read:
    """One operator's reading of one tensor that owns memory."""

    position: int  # in `Op.inputs`
    tensor: int  # root tensor
    need: tuple[int, ...]  # rows of the root, by step; never decreasing
    keep: tuple[int, ...]  # rows of the root, by step and one past the last
    reach: int  # rows a ring must hold for the kernel's address arithmetic: the padding above the first row
    ringable: bool  # False: the reader needs all of the root in place


@dataclass(frozen=True, slots=True)
class Root:
    tensor: int
    byte_offset: int


class Flow:
    """Tables of one graph, made on demand and kept."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._reads: dict[int, tuple[Read, ...]] = {}

    @cached_property
    def roots(self) -> tuple[Root, ...]:
        """For each tensor the one whose memory it lies in, itself unless it is a view."""
        found = [Root(t.index, 0) for t in self.graph.tensors]
        for op in self.graph.ops:
            if op.view:
                base = found[op.inputs[0]]
                offsets = op.view_offsets or (0,) * len(op.outputs)
                for t, at in zip(op.outputs, offsets, strict=True):
                    found[t] = Root(base.tensor, base.byte_offset + at)
        return tuple(found)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each root the operators, views left out, that read it or a view of it; ascending."""
        used: list[dict[int, None]] = [{} for _ in self.graph.tensors]
        for op in self.graph.ops:
            if not op.view:
                for t in op.inputs:
                    used[self.roots[t].tensor][op.index] = None
        return tuple(tuple(u) for u in used)

    @cached_property
    def leaves(self) -> frozenset[int]:
        """Roots that must be whole at the end: those of the graph's outputs."""
        return frozenset(self.roots[t].tensor for t in self.graph.outputs)

    def steps(self, op: int) -> int:
        """Steps of an operator: its output rows, or one."""
        return self.graph.tensors[self.graph.ops[op].outputs[0]].rows if has_rows(self.graph, op) else 1

    def made(self, op: int, tensor: int, done: int) -> int:
        """Rows of `tensor`, an output of `op`, that exist after `done` steps."""
        rows = self.graph.tensors[tensor].rows
        return min(done, rows) if has_rows(self.graph, op) else rows * min(done, 1)

    def steps_for(self, op: int, rows: int) -> int:
        """Steps after which `rows` rows of every output of `op` exist."""
        return rows if has_rows(self.graph, op) else min(rows, 1)

    def reads(self, op: int) -> tuple[Read, ...]:
        """How `op` reads each of its inputs, in their order."""
        if op not in self._reads:
            node = self.graph.ops[op]
            self._reads[op] = tuple(self._read(node, i) for i in range(len(node.inputs)))
        return self._reads[op]

    def _read(self, op: Op, i: int) -> Read:
        seen, root = self.graph.tensors[op.inputs[i]], self.roots[op.inputs[i]]
        owner = self.graph.tensors[root.tensor]
        window = op.windows[i] if i < len(op.windows) else None
        steps = self.steps(op.index)
        rows = [_rows(window, y, seen.rows, steps) for y in range(steps)]
        same = seen.index == owner.index or (
            root.byte_offset == 0 and seen.rows == owner.rows and seen.row_bytes == owner.row_bytes
        )
        if not same:
            rows = [_through_view(r, seen, owner, root.byte_offset) for r in rows]
        need = tuple(accumulate((r.stop for r in rows), max))
        first = [r.start if r else owner.rows for r in rows]
        keep = tuple(accumulate([owner.rows, *reversed(first)], min))[::-1]
        reach = max(window.padding, 0) if window is not None else 0
        return Read(i, owner.index, need, keep, reach, same)


def has_rows(graph: Graph, op: int) -> bool:
    """Whether an operator makes one output row a step."""
    node = graph.ops[op]
    rows = {graph.tensors[t].rows for t in node.outputs}
    return node.opaque is None and len(rows) == 1 and any(w is not None for w in node.windows)


def _rows(window: Window | None, y: int, height: int, steps: int) -> range:
    return range(height) if window is None or steps < 1 else window.rows(y, height)


def _outermost(t: Tensor) -> bool:
    """Whether rows are contiguous slices, one behind the other."""
    return t.row_axis is None or all(d == 1 for d in t.shape[: t.row_axis])


def _through_view(rows: range, seen: Tensor, owner: Tensor, offset: int) -> range:
    """Rows of the owner under rows of a view that starts `offset` bytes into it."""
    if not rows or not owner.row_bytes:
        return rows
    if not (_outermost(seen) and _outermost(owner)):
        return range(owner.rows)
    first, last = offset + rows.start * seen.row_bytes, offset + rows.stop * seen.row_bytes
    return range(first // owner.row_bytes, -(-last // owner.row_bytes))
