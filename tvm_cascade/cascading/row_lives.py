"""When the rows of every tensor are live: the memory needed by a plan with separate row addresses.

A ring has the tensor's largest size for the whole segment. Few cascaded operators hold their most rows at once: a row
is there from the step that makes the row until the last step that reads it, and if each row may lie anywhere, a dead
row's memory serves any other row. `RowLives` counts the bytes live while a segment runs by whole rows, and finds the
order's cuts with the fewest.

An element-wise step writes over the input row, if that row dies in the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_cascade.cascading.cached_method import cached_method
from tvm_cascade.cascading.geometry import Units, outermost
from tvm_cascade.cascading.interleaving import BY_ROWS
from tvm_cascade.cascading.row_bounds import RowBounds
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.cascading.simulate import Cascade
from tvm_cascade.graph import ROW
from tvm_cascade.search_monitor import monitor

_UNREACHED = 1 << 60  # bytes


@dataclass(frozen=True, slots=True)
class Lives:
    """The steps, within the segment, in which parts of a tensor are live: rows, or the tensor's single block.

    Part p lives in steps `[lower[p], upper[p])`. Parts from before begin at 0, parts needed later end behind the last
    step.
    """

    tensor: int
    part_bytes: int
    lower: Units
    upper: Units
    by_rows: bool  # the parts are rows
    over: int | None = None  # the tensor whose rows its rows are written over, row for row


class RowLives:
    """Lives of rows in all segments [i, j) of an order; `costs` must not let blocks overlap by offset constraints.

    `overlap`: tensors read by a segment die row by row, and tensors left behind appear row by row; without, both are
    whole while needed, and only tensors made and read inside are there by rows.
    """

    def __init__(self, costs: SegmentCosts, overlap: bool = True) -> None:
        self.costs, self.tables, self.overlap = costs, costs.tables, overlap
        self._bounds = RowBounds(costs)
        self._cuts: tuple[int, tuple[int, tuple[int, ...]] | None] = (0, None)  # up to which bytes, and `smallest_cuts`
        self._last: tuple[tuple[int, int], Cascade] | None = None
        graph = self.tables.graph
        # the caller's: rows one behind the other, which die and come to be one by one all the same
        self.contiguous = frozenset((*graph.inputs, *graph.outputs)) - self.tables.streamed
        self.by_rows = frozenset(t for t in range(len(graph.tensors)) if self._by_rows(t))
        self.separate = self.by_rows - self.contiguous  # whose rows may have addresses of their own

    def _by_rows(self, t: int) -> bool:
        """Test whether the rows of a tensor are live one by one: all writers and readers can follow rows anywhere."""
        tables, graph = self.tables, self.tables.graph
        tensor = graph.tensors[t]
        seen = [v for v, root in enumerate(tables.roots) if root.tensor == t]
        if seen != [t] or tensor.rows < 2 or not outermost(tensor):
            return False
        if any(x in tables.parts for o in self._around(t) for x in (*graph.ops[o].inputs, *graph.ops[o].outputs)):
            return False  # pixels of parts of a join lie apart
        if t in self.contiguous:
            return True
        for o in tables.writers(t):
            if o >= 0 and not graph.ops[o].kernels.row_addresses:
                return False
        for o in tables.readers[t]:
            op = graph.ops[o]
            if op.kernels.accumulator_bytes and tables.accumulators:
                continue  # it is asked again by segment: one without the producer reads the tensor whole
            if not (op.kernels.row_addresses and self._slides(o, t)):
                return False
        return True

    def _around(self, t: int) -> list[int]:
        """Return the operators that write or read a tensor."""
        return [o for o in (*self.tables.writers(t), *self.tables.readers[t]) if o >= 0]

    def _slides(self, o: int, t: int) -> bool:
        """Test whether operator `o` reads rows of tensor `t` only through windows."""
        op = self.tables.graph.ops[o]
        windows = [w for x, w in zip(op.inputs, op.windows, strict=False) if x == t]
        return bool(windows) and all(w is not None and w.stride > 0 for w in windows)

    def lives(self, i: int, j: int) -> tuple[Lives, ...]:
        """Return the lives of all tensors that are live while [i, j) runs."""
        costs, cascade = self.costs, self.cascade(i, j)
        trace = np.asarray(cascade.trace, np.int64)
        members = np.sort(np.array(cascade.members))
        by_member = np.argsort(trace, kind="stable")
        ends = np.searchsorted(trace[by_member], members, side="right")[:-1]
        at = dict(zip(members.tolist(), np.split(by_member, ends), strict=True)) if len(members) else {}
        produced = costs.held(i, j, BY_ROWS)
        before = [t for t in costs.across[i] if t not in produced]
        found = [self._of_tensor(cascade, at, t, j, None) for t in before]
        found += [self._of_tensor(cascade, at, t, j, units) for t, units in produced.items()]
        return self._written_over(cascade, at, found) if self.overlap else tuple(found)

    def _of_tensor(self, cascade: Cascade, at: dict[int, Units], t: int, j: int, units: int | None) -> Lives:
        """Return the lives of a tensor; `units`: rows stored if the segment makes the tensor, else None."""
        tables, end = self.tables, len(cascade.trace)
        readers = cascade.readers(t)
        whole = self._of_single_row(cascade, at, t, j, units)
        if whole is not None:
            return whole
        rows = np.arange(tables.tensor_rows[t], dtype=np.int64)
        lower = np.zeros_like(rows)
        if units is not None:
            first: list[
                Units
            ] = []  # of a join each writer makes parts of rows: a row is live from the first of them on
            for m in (m for m in tables.writers(t) if m in at):
                made = cascade.steps(m).made[tables.written(m).index(t)]
                first.append(at[m][np.clip(np.searchsorted(made, rows, side="right") - 1, 0, len(at[m]) - 1)])
            lower = np.min(first, axis=0) if first else lower
        if self.costs.last[t] >= j:
            upper = np.full_like(rows, end)
        else:
            upper = lower + 1
            for o, read in readers:
                last = np.searchsorted(read.keep[:-1], rows, side="right") - 1
                upper = np.maximum(upper, np.where(last >= 0, at[o][np.maximum(last, 0)] + 1, 0))
        inside = units is not None and self.costs.last[t] < j
        by_rows = t in self.by_rows and (self.overlap or inside)
        if by_rows and all(o in cascade.accumulating or self._slides(o, t) for o, _ in readers):
            return Lives(t, tables.unit_bytes(t, ROW), lower, upper, True)
        size = tables.tensor_bytes[t] if units is None else units * tables.unit_bytes(t, ROW)
        return Lives(t, size, lower.min(initial=end, keepdims=True), upper.max(initial=0, keepdims=True), False)

    def _of_single_row(self, cascade: Cascade, at: dict[int, Units], t: int, j: int, units: int | None) -> Lives | None:
        """Return `_of_tensor` if the tensor has a single row, and its writers and readers take a single step each."""
        tables, end, readers = self.tables, len(cascade.trace), cascade.readers(t)
        if tables.tensor_rows[t] != 1 or t in self.by_rows:
            return None
        makers = [m for m in tables.writers(t) if m in at] if units is not None else []
        if any(len(at[o]) != 1 for o in (*makers, *(o for o, _ in readers))):
            return None
        lower = int(min((at[m][0] for m in makers), default=0))
        upper = end
        if self.costs.last[t] < j:
            upper = int(max((at[o][0] + 1 for o, read in readers if read.keep[0] <= 0), default=0))
            upper = max(upper, lower + 1)
        size = tables.tensor_bytes[t] if units is None else units * tables.unit_bytes(t, ROW)
        return Lives(t, size, np.array([lower]), np.array([upper]), False)

    def _written_over(self, cascade: Cascade, at: dict[int, Units], found: list[Lives]) -> tuple[Lives, ...]:
        """Return the lives with element-wise operators' rows in place of the dying input rows."""
        by_tensor = {lives.tensor: lives for lives in found}
        graph, taken = self.tables.graph, set[int]()
        for o in cascade.members:
            op = graph.ops[o] if o >= 0 else None
            out = None if op is None or len(op.outputs) != 1 else by_tensor.get(op.outputs[0])
            if op is None or out is None or not out.by_rows or o in cascade.accumulating:
                continue
            for t in (op.inputs[p] for p in op.in_place):
                read = by_tensor.get(t)
                both = t in self.contiguous and out.tensor in self.contiguous
                if read is None or not read.by_rows or both or t in taken or op.inputs.count(t) != 1:
                    continue
                dies = np.array_equal(read.upper, at[o] + 1) and np.array_equal(out.lower, at[o])
                if dies and read.part_bytes == out.part_bytes:
                    taken.add(t)
                    by_tensor[t] = Lives(t, read.part_bytes, read.lower, at[o], True, read.over)
                    by_tensor[out.tensor] = Lives(out.tensor, out.part_bytes, out.lower, out.upper, True, t)
                    break
        return tuple(by_tensor[lives.tensor] for lives in found)

    def cascade(self, i: int, j: int) -> Cascade:
        """Return the operators of [i, j) with their steps; the last result is kept."""
        if self._last is None or self._last[0] != (i, j):
            self._last = (i, j), Cascade(self.tables, self.costs.members(i, j), ROW)
        return self._last[1]

    def bytes(self, i: int, j: int) -> int:
        """Return the most bytes live at once while [i, j) runs by rows; no arena of this segment is smaller."""
        return self.needed(i, j)[0]

    @cached_method
    def needed(self, i: int, j: int) -> tuple[int, int]:
        """Return `bytes` of [i, j), and a lower bound for all longer segments that begin at `i`.

        If all data leaving [i, j) comes from the only sink, a longer segment asks that sink for steps in turn, and the
        sink asks all others as here: tensors dying in [i, j) live as long there. Tensors needed later may die by rows.
        Otherwise the bound is 0.
        """
        costs, cascade = self.costs, self.cascade(i, j)
        steps = max(len(cascade.trace), 1)
        lives = self.lives(i, j)
        change = _changes(lives, steps)
        later = _changes([own for own in lives if costs.last[own.tensor] >= j], steps)
        # rows are aligned less than other blocks, and may lie in the gaps between those
        sums = sum(self.tables.graph.ops[o].kernels.accumulator_bytes for o in costs.accumulating(i, j))
        fixed = costs.state_bytes(i, j, ROW) + costs.scratch_bytes(i, j, BY_ROWS) + sums
        most, dying = (int(np.cumsum(c)[:-1].max(initial=0)) + fixed for c in (change, change - later))
        asked = {o for o in cascade.members for t in self.tables.written(o) if costs.last[t] >= j}
        return most, dying if len(cascade.sinks) == 1 and asked <= set(cascade.sinks) else 0

    def smallest_cuts(self, below: int) -> tuple[int, tuple[int, ...]] | None:
        """Return the cut positions with the fewest live bytes, and these bytes; None unless fewer than `below`."""
        if below > self._cuts[0]:
            self._cuts = below, self._smallest_cuts(below)
        cuts = self._cuts[1]
        return None if cuts is None or cuts[0] >= below else cuts

    def _smallest_cuts(self, below: int) -> tuple[int, tuple[int, ...]] | None:
        """Compute `smallest_cuts`."""
        costs, search = self.costs, monitor()
        n = len(costs.order)
        across = [sum(self.tables.tensor_bytes[t] for t in costs.across[i]) for i in range(n + 1)]
        least, came = [0] + [_UNREACHED] * n, [0] * (n + 1)
        longer = [0] * n  # lower bounds of all segments from there on that are longer than those seen
        for j in range(1, n + 1):
            search.check()
            if across[j] >= below and j < n:
                continue
            for i in range(j - 1, -1, -1):
                limit = min(least[j], below)
                if max(least[i], longer[i]) < limit and (j == i + 1 or self._bounds.up_to(j, below)[i] < limit):
                    needed, floor = self.needed(i, j)
                    longer[i] = max(longer[i], floor)
                    if max(least[i], needed) < least[j]:
                        least[j], came[j] = max(least[i], needed), i
        if least[n] >= below:
            return None
        cuts = [n]
        while cuts[-1]:
            cuts.append(came[cuts[-1]])
        return least[n], tuple(reversed(cuts))


def _changes(lives: Sequence[Lives], steps: int) -> Units:
    """Return the bytes that come to be live in each step, less those that no longer are; a last entry for the end."""
    if not lives:
        return np.zeros(steps + 1, np.int64)
    sizes = np.repeat([own.part_bytes for own in lives], [len(own.lower) for own in lives])
    change = np.zeros(steps + 1, np.int64)
    np.add.at(change, np.concatenate([own.lower for own in lives]), sizes)
    np.subtract.at(change, np.concatenate([own.upper for own in lives]), sizes)
    return change
