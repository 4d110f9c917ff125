"""Access tables: which rows or pixels every step of an operator reads and writes in each tensor.

An operator in a cascade runs in steps. Each step writes one `Tile` of the output, in row-major order: some rows, or
some pixels in one row. An opaque operator writes everything in one step. An operator with an accumulator may read the
input step by step instead, and writes everything in the last step. A streamed graph input has a source, which writes a
row in each step.

Tables count in tensor units: rows, or pixels if the steps make pixels and the tensor's pixels are contiguous. A view,
or a part of a join, is replaced by the tensor that owns the memory (the root); a join has a single producer per part.

Symbols: `need[k]`, input units that must exist before step k; `keep[k]`, the first unit read by step k or later (all
units if none is), so units below are dead; `made[k]`, output units that exist after k steps.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from tvm_cascade.cascading.cached_method import cached_method
from tvm_cascade.cascading.geometry import Units, goes_by_pixels, has_pixels, has_rows, outermost
from tvm_cascade.cascading.simulate_compiled import StepTables
from tvm_cascade.graph import IDENTITY, PIXEL, ROW, Graph, Op, Tensor, Tile, Window

_SHAPES = 256  # shapes of maps and windows of which tables are kept: networks repeat few


@dataclass(frozen=True, slots=True)
class Read:
    """How an operator reads a tensor that owns memory, step by step."""

    tensor: int  # root tensor
    need: Units  # by step, never decreasing
    keep: Units  # by step and one past the last, never decreasing
    reach: int  # least units of a ring, so that the kernel can address the padding before the first unit
    ringable: bool  # False: the reader cannot read a ring, the root must be stored whole
    in_place: bool  # step k may overwrite the elements that it reads


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps an operator, or a streamed input's source, takes."""

    count: int
    made: tuple[Units, ...]  # of each output, in units of its root; length count + 1
    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TileGrid:
    """The tiles of a map: step k covers rows `[y0[k], y1[k])` and columns `[x0[k], x1[k])`. Maps with equal shapes
    share a grid.
    """

    y0: Units
    y1: Units
    x0: Units
    x1: Units

    @classmethod
    @lru_cache(maxsize=_SHAPES)
    def of(cls, rows: int, columns: int, tile: Tile) -> TileGrid:
        """Cut a map of `rows` x `columns` into tiles, in row-major order."""
        if not tile.by_pixels:
            y0 = np.arange(0, rows, tile.rows, dtype=np.int64)
            return cls(y0, np.minimum(y0 + tile.rows, rows), np.zeros_like(y0), np.full_like(y0, columns))
        starts = np.arange(0, columns, tile.columns, dtype=np.int64)
        if columns == 0:
            starts = np.zeros(1, np.int64)
        x0 = np.tile(starts, rows)
        y = np.repeat(np.arange(rows, dtype=np.int64), len(starts))
        return cls(y, y + 1, x0, np.minimum(x0 + tile.columns, columns))


SegmentUsers = tuple[tuple[int, bool], ...]  # producers or readers of a tensor in a segment: (operator, accumulates)


class AccessTables:
    """The access tables of a graph, computed on demand and cached.

    Parameters
    ----------
    graph : Graph
    streamed : Iterable[int]
        Graph inputs that a source delivers row by row; the pseudo-operator of tensor t is `source(t)`.
    accumulators : bool
        Whether operators that have such a kernel may sum up their input step by step (`accumulates`).
    """

    def __init__(self, graph: Graph, streamed: Iterable[int] = (), accumulators: bool = False) -> None:
        self.graph, self.roots = graph, graph.roots
        self.streamed = frozenset(streamed)
        self.accumulators = accumulators

    @staticmethod
    def source(tensor: int) -> int:
        """Return the pseudo-operator that delivers a streamed input: a negative index, sorted before every operator."""
        return -1 - tensor

    @cached_property
    def parts(self) -> frozenset[int]:
        """Return the tensors that are parts of a join."""
        return frozenset(t for op in self.graph.ops if op.part_offsets for t in op.inputs)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """List, for each root, the operators that read the root or a view, ascending. Views are not counted as readers."""
        used: list[dict[int, None]] = [{} for _ in self.graph.tensors]
        for op in self.graph.ops:
            if not op.view:
                for t in op.inputs:
                    used[self.roots[t].tensor][op.index] = None
        return tuple(tuple(u) for u in used)

    @cached_property
    def leaves(self) -> frozenset[int]:
        """Return the roots of the graph's outputs: tensors stored whole at the end."""
        return frozenset(self.roots[t].tensor for t in self.graph.outputs)

    def stacked(self, tensor: int) -> bool:
        """Test whether a tensor is a join along the rows, or a part of such a join.

        Such a join is stored whole, never as a ring.
        """
        return self.roots[tensor].tensor in self._stacks

    @cached_property
    def _stacks(self) -> frozenset[int]:
        """Return the joins along the rows."""
        tensors, ops = self.graph.tensors, self.graph.ops
        joins = {
            t: [p for m in self.writers(t) if m >= 0 for p in ops[m].outputs if p in self.parts] for t in self._owners
        }
        return frozenset(t for t, ps in joins.items() if any(tensors[p].row_bytes == tensors[t].row_bytes for p in ps))

    @cached_property
    def _owners(self) -> tuple[int, ...]:
        """List the roots: tensors with memory of their own."""
        return tuple(t for t, root in enumerate(self.roots) if root.tensor == t)

    def _start(self, tensor: int, tile: Tile) -> int:
        """Return the root's units before `tensor`, a part of a join along the rows; 0 for any other tensor."""
        root = self.roots[tensor]
        if root.tensor == tensor or not self.stacked(tensor):
            return 0
        return root.byte_offset // max(self.unit_bytes(root.tensor, tile), 1)

    def writers(self, root: int) -> tuple[int, ...]:
        """Return the operators and sources that write a root.

        These are an operator, or one per join part; a streamed input's source; none for a graph input in memory from
        the start.
        """
        return (self.source(root),) if root in self.streamed else self._writers[root]

    @cached_property
    def _writers(self) -> tuple[tuple[int, ...], ...]:
        """List, for each root, the operators that write the root; sources are left out."""
        made: list[tuple[int, ...]] = [() for _ in self.graph.tensors]
        for op in self.graph.ops:
            if not op.view:
                for root in self.written(op.index):
                    made[root] = (*made[root], op.index)
        return tuple(made)

    @cached_property
    def makers(self) -> tuple[tuple[int, ...], ...]:
        """List, for each operator, the operators and sources that write the inputs."""
        made = [[m for t in op.inputs for m in self.writers(self.roots[t].tensor)] for op in self.graph.ops]
        return tuple(tuple(dict.fromkeys(ms)) for ms in made)

    def written(self, op: int) -> tuple[int, ...]:
        """Return the roots an operator or source writes, one per output."""
        return (-1 - op,) if op < 0 else self._written[op]

    @cached_property
    def _written(self) -> tuple[tuple[int, ...], ...]:
        """List, for each operator, the roots of the outputs."""
        return tuple(tuple(self.roots[t].tensor for t in op.outputs) for op in self.graph.ops)

    def accumulates(self, op: int, members: Container[int]) -> bool:
        """Test whether `op` sums the input step by step in a segment of `members`, which must produce that input."""
        makers = self.summing.get(op)
        return makers is not None and all(m in members for m in makers)

    @cached_property
    def summing(self) -> dict[int, Sequence[int]]:
        """Return the operators able to sum their input step by step, with the input's producers."""
        able = (o for o in self.graph.ops if o.kernels.accumulator_bytes and len(o.inputs) == 1)
        return {o.index: makers for o in able if (makers := self._summed_from(o))} if self.accumulators else {}

    def _summed_from(self, node: Op) -> Sequence[int]:
        """Return the producers of an operator's single input if the input's rows or pixels can be summed on arrival;
        else empty.
        """
        root = self.roots[node.inputs[0]].tensor
        owner = self.graph.tensors[root]
        through = root == node.inputs[0] or outermost(owner)
        return self.writers(root) if through and owner.rows * self._pixels[root] > 1 else ()

    @cached_property
    def _pixels(self) -> tuple[int, ...]:
        """List the columns of each tensor; 1 for tensors without contiguous pixels."""
        return tuple(t.columns if has_pixels(t) else 1 for t in self.graph.tensors)

    @cached_property
    def tensor_bytes(self) -> tuple[int, ...]:
        """List the bytes of each whole tensor."""
        return tuple(t.bytes for t in self.graph.tensors)

    @cached_property
    def tensor_rows(self) -> tuple[int, ...]:
        """List the rows of each tensor."""
        return tuple(t.rows for t in self.graph.tensors)

    def columns(self, tensor: int, tile: Tile) -> int:
        """Return the units in a tensor's row: pixels if `tile` is a part of a row, else 1."""
        return self._pixels[tensor] if tile.columns else 1

    def units(self, tensor: int, tile: Tile) -> int:
        """Return a whole tensor's units: pixels if `tile` is a part of a row and pixels are contiguous, else rows."""
        return self.tensor_rows[tensor] * self._pixels[tensor] if tile.columns else self.tensor_rows[tensor]

    def unit_bytes(self, tensor: int, tile: Tile) -> int:
        """Return the bytes of a tensor's unit."""
        return (self._unit_bytes[1] if tile.columns else self._unit_bytes[0])[tensor]

    @cached_property
    def _unit_bytes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return each tensor's bytes per row, and per pixel."""
        every = range(len(self.graph.tensors))
        rows = tuple(self.tensor_bytes[t] // max(self.units(t, ROW), 1) for t in every)
        return rows, tuple(self.tensor_bytes[t] // max(self.units(t, PIXEL), 1) for t in every)

    @cached_method
    def steps(self, op: int, tile: Tile = ROW, accumulate: bool = False) -> Steps:
        """Return the access tables of an operator or source; with `accumulate` the accumulating kernel's."""
        if op < 0:
            columns, rows = self.columns(-1 - op, tile), self.graph.tensors[-1 - op].rows
            return Steps(rows, (np.arange(rows + 1, dtype=np.int64) * columns,), ())
        node = self.graph.ops[op]
        steps = self._accumulating(node, tile) if accumulate else self._making(node, tile)
        starts = [self._start(t, tile) for t in node.outputs]  # where a part of a join begins
        made = tuple(units + start for units, start in zip(steps.made, starts, strict=True))
        return Steps(steps.count, made, steps.reads)

    @cached_method
    def compiled(self, tile: Tile) -> StepTables:
        """Return the tables in the form the compiled simulation takes."""
        return StepTables(self, tile)

    def calls(self, members: Sequence[int], accumulating: Sequence[int], tile: Tile) -> int:
        """Count the steps of all `members` together; `accumulating` members sum their inputs."""
        plain = self._counts(tile)
        summed = sum(self.steps(o, tile, accumulate=True).count - plain[o] for o in accumulating)
        return sum(plain[o] for o in members) + summed

    @cached_method
    def _counts(self, tile: Tile) -> dict[int, int]:
        """Return the step counts of every source and every working operator, without accumulation."""
        makers = (*(self.source(t) for t in self.streamed), *(o.index for o in self.graph.ops if not o.view))
        return {o: self.steps(o, tile).count for o in makers}

    def counter_bytes(self, members: Sequence[int], tile: Tile) -> int:
        """Compute the bytes of all `members`' step counters, each as wide as the largest count needs; 0 for a single
        member.
        """
        widths = self.counter_widths(tile)
        return max(widths[o] for o in members) * len(members) if len(members) > 1 else 0

    @cached_method
    def counter_widths(self, tile: Tile) -> dict[int, int]:
        """Return, per source and working operator, the bytes of an unsigned integer that numbers the steps from 0 on."""
        counts = dict(self._counts(tile))
        counts |= {o: max(counts[o], self.steps(o, tile, accumulate=True).count) for o in self.summing}
        return {o: 1 if n <= 1 << 8 else 2 if n <= 1 << 16 else 4 for o, n in counts.items()}

    def _making(self, node: Op, tile: Tile) -> Steps:
        """Make the access tables of an operator that writes an output tile in each step."""
        out, inputs = self.graph.tensors[node.outputs[0]], range(len(node.inputs))
        if not has_rows(self.graph, node.index):
            made = tuple(np.array([0, self.units(t, tile)], np.int64) for t in node.outputs)
            return Steps(1, made, tuple(self._whole(node, i, 1, tile) for i in inputs))
        columns = self.columns(out.index, tile)
        if goes_by_pixels(self.graph, node.index):
            grid = TileGrid.of(out.rows, columns, tile)
            made = (np.concatenate([[0], (grid.y1 - 1) * columns + grid.x1]),) * len(node.outputs)
        else:
            grid = TileGrid.of(out.rows, columns, ROW if tile.by_pixels else tile)
            made = tuple(np.concatenate([[0], grid.y1 * self.columns(t, tile)]) for t in node.outputs)
        return Steps(len(grid.y0), made, tuple(self._read(node, i, grid, tile) for i in inputs))

    @cached_method
    def waits(self, op: int, maker: int, tile: Tile, accumulates: bool, maker_accumulates: bool) -> Units:
        """Compute, for each step of `op`, how many steps the producer `maker` must have done before."""
        making = self.steps(maker, tile, maker_accumulates)
        waits = [
            np.searchsorted(making.made[self.written(maker).index(read.tensor)], read.need).astype(np.int64)
            for read in self.steps(op, tile, accumulates).reads
            if maker in self.writers(read.tensor)
        ]
        return np.minimum(np.max(waits, axis=0), making.count)

    @cached_method
    def ring(self, tensor: int, tile: Tile, makers: SegmentUsers, readers: SegmentUsers) -> tuple[int | None, int]:
        """Return a ring's least size in units and a divisor the size must have; `(None, all units)` if no ring is
        possible.
        """
        reads = [r for o, sums in readers for r in self.steps(o, tile, sums).reads if r.tensor == tensor]
        if not reads or any(not r.ringable for r in reads) or self.stacked(tensor):
            return None, self.units(tensor, tile)
        making = [self.steps(o, tile, sums).made[self.written(o).index(tensor)] for o, sums in makers]
        least = max(max(int(np.diff(made).max(initial=1)) for made in making), *(r.reach for r in reads))
        if not tile.by_pixels:
            return least, min(tile.rows, self.tensor_rows[tensor])  # so that the rows of one step are contiguous
        columns = self.columns(tensor, tile)
        around = [o for o, _ in makers] + [o for o, sums in readers if not sums]
        if tensor in self.streamed or any(o >= 0 and not goes_by_pixels(self.graph, o) for o in around):
            return least, columns
        return least, 1 if columns % tile.columns else tile.columns

    def _accumulating(self, node: Op, tile: Tile) -> Steps:
        """Make the access tables of an operator that sums the input: one step per input tile."""
        root = self.roots[node.inputs[0]].tensor
        owner = self.graph.tensors[root]
        columns = self.columns(root, tile)
        grid = TileGrid.of(owner.rows, columns, tile if columns > 1 else ROW)
        need, keep = _reach(grid, IDENTITY, IDENTITY if columns > 1 else None, owner.rows, columns)
        count = len(grid.y0)
        made = tuple(np.append(np.zeros(count, np.int64), self.units(t, tile)) for t in node.outputs)
        return Steps(count, made, (Read(root, need, keep, 0, True, False),))

    def _whole(self, op: Op, i: int, count: int, tile: Tile) -> Read:
        """Make the table for input i into `op`, read whole in each of `count` steps."""
        root = self.roots[op.inputs[i]].tensor
        every = self.units(root, tile)
        keep = np.zeros(count + 1, np.int64)
        keep[-1] = every
        return Read(root, np.full(count, every, np.int64), keep, 0, self._same(op.inputs[i], tile), False)

    def _same(self, tensor: int, tile: Tile) -> bool:
        """Test whether `tensor` has the same rows and pixels as the root, or is a part of a join."""
        root = self.roots[tensor]
        seen, owner = self.graph.tensors[tensor], self.graph.tensors[root.tensor]
        if seen.index == owner.index or tensor in self.parts:
            return True
        alike = self.columns(tensor, tile) == self.columns(root.tensor, tile)
        forms = [(t.rows, t.row_bytes, t.planes) for t in (seen, owner)]
        return alike and root.byte_offset == 0 and forms[0] == forms[1]

    def _read(self, op: Op, i: int, grid: TileGrid, tile: Tile) -> Read:
        """Make the table for input i of `op`, read through a window for every tile of `grid`."""
        window = op.windows[i] if i < len(op.windows) else None
        if window is None or (tile.by_pixels and window.stride == 0):  # kernels read it by rows, not around a ring
            return self._whole(op, i, len(grid.y0), tile)
        seen, root = self.graph.tensors[op.inputs[i]], self.roots[op.inputs[i]]
        by_columns = tile.by_pixels and i < len(op.columns) and goes_by_pixels(self.graph, op.index)
        across, columns = op.columns[i] if by_columns else None, self.columns(seen.index, tile)
        need, keep = _reach(grid, window, across, seen.rows, columns)
        same = self._same(seen.index, tile)
        if not same:
            owner = self.graph.tensors[root.tensor]
            need, keep = self._through_view(need, keep, seen, owner, root.byte_offset, tile)
        beside = 0 if across is None or columns == 1 else max(across.padding, 0)
        padding = max(window.padding, 0) * columns + beside
        return Read(root.tensor, need, keep, padding, same, i in op.in_place)

    def _through_view(
        self, need: Units, keep: Units, seen: Tensor, owner: Tensor, offset: int, tile: Tile
    ) -> tuple[Units, Units]:
        """Convert `need` and `keep` from units of the view `seen` to units of `owner`; the view starts at byte
        `offset`.
        """
        every = self.units(owner.index, tile)
        unit, its = self.unit_bytes(seen.index, tile), max(self.unit_bytes(owner.index, tile), 1)
        if not (outermost(seen) and outermost(owner)):
            whole = np.zeros_like(keep)
            whole[-1] = every
            return np.full_like(need, every), whole
        last = np.where(keep >= self.units(seen.index, tile), every, (offset + keep * unit) // its)
        return np.where(need > 0, -(-(offset + need * unit) // its), 0), last


@lru_cache(maxsize=_SHAPES)
def _reach(grid: TileGrid, window: Window, across: Window | None, height: int, width: int) -> tuple[Units, Units]:
    """Compute `need` and `keep` of a window over `height` x `width` input units, by tile of `grid`; both are read-only."""
    low, high = covered(window, grid.y0, grid.y1, height)
    if across is None or width == 1:
        left, right = np.zeros_like(low), np.full_like(low, width)
    else:
        left, right = covered(across, grid.x0, grid.x1, width)
    empty = (low >= high) | (left >= right)
    last = np.where(empty, 0, (high - 1) * width + right)
    first = np.where(empty, height * width, low * width + left)
    keep = np.append(np.minimum.accumulate(first[::-1])[::-1], height * width)
    return np.maximum.accumulate(last), keep


def covered(window: Window, start: Units, stop: Units, size: int) -> tuple[Units, Units]:
    """Compute the range `[first, last)` on an input axis of length `size` covered by the taps of outputs `[start,
    stop)`.
    """
    first = start * window.stride // window.denominator - window.padding
    last = (stop - 1) * window.stride // window.denominator - window.padding + window.span
    return np.minimum(np.maximum(first, 0), size), np.minimum(np.maximum(last, 0), size)
