"""Lower bounds on the bytes of an order's segments in a single tile, or in stripes: the tables for `lower_bounds`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.cascading.access_tables import AccessTables, covered
from tvm_cascade.cascading.cached_method import cached_method
from tvm_cascade.cascading.stripes import Striper
from tvm_cascade.graph import PIXEL, ROW, Tile

Table = NDArray[np.int64]  # [i, j]: bytes of the segment of positions [i, j)

INFEASIBLE = 1 << 62  # bytes: the cost of a segment that is impossible or not allowed


class RingBounds:
    """Lower bounds on the bytes of single rings, by tensor; 0 for a tensor without a ring. They hold for every order."""

    def __init__(self, tables: AccessTables) -> None:
        self.tables = tables

    @cached_method
    def plain(self, tile: Tile) -> list[int]:
        """Compute the fewest bytes for every ring in steps of `tile`."""
        return [self._plain(root.tensor, tile) if root.tensor == t else 0 for t, root in enumerate(self.tables.roots)]

    def _plain(self, tensor: int, tile: Tile) -> int:
        """Compute the largest span of units a reader's step needs at once, in bytes."""
        tables = self.tables
        if not tables.writers(tensor):
            return 0
        units = 1
        for reader in tables.readers[tensor]:
            if tables.graph.ops[reader].kernels.accumulator_bytes:
                continue  # it may sum up its input as it comes
            for read in tables.steps(reader, tile).reads:
                if read.tensor == tensor:
                    units = max(units, int((read.need - read.keep[:-1]).max(initial=1)))
        return min(units, tables.units(tensor, tile)) * tables.unit_bytes(tensor, tile)

    @cached_method
    def in_stripes(self, kept: bool) -> list[int]:
        """Compute the fewest bytes of every tensor in stripes: the columns read by a reader's single output column.

        With `kept`, and a producer that multiplies, the halo is added: the columns of every row read by two
        neighbouring output columns. The sum never exceeds all columns a reader reads.
        """
        return [self._strip(t, ring, kept) for t, ring in enumerate(self.plain(ROW))]

    def _strip(self, tensor: int, ring: int, kept: bool) -> int:
        """Compute `in_stripes` for a single tensor, with `ring` bytes in its ring and row steps."""
        tables, columns = self.tables, self.tables.columns(tensor, PIXEL)
        writers = tables.writers(tensor) if ring else ()
        if not writers or writers[0] < 0 or columns == 1:
            return ring
        column, kept = ring // columns, kept and any(tables.graph.ops[o].macs for o in writers)
        halo_column = tables.tensor_rows[tensor] * tables.unit_bytes(tensor, PIXEL)
        most = column
        for reader in (tables.graph.ops[o] for o in tables.readers[tensor]):
            for t, window in zip(reader.inputs, reader.columns, strict=False):
                if t == tensor and window is not None and not reader.kernels.accumulator_bytes:
                    x = np.arange(tables.graph.tensors[reader.outputs[0]].columns, dtype=np.int64)
                    low, high = covered(window, x, x + 1, columns)
                    high = np.maximum(low, high)
                    shared = max(int((high[:-1] - low[1:]).min(initial=columns)), 0) if kept and len(x) > 1 else 0
                    whole = max(int(high.max() - low.min()), 1)
                    at_least = int((high - low).max()) * column + shared * halo_column
                    most = max(most, min(at_least, whole * column))
        return most


class OrderBounds:
    """Lower bounds on the bytes of an order's segments, as tables indexed [i, j].

    `born` and `last` are the positions of birth and last use by root, as in `SegmentCosts`.
    """

    def __init__(
        self,
        rings: RingBounds,
        striper: Striper,
        order: Sequence[int],
        born: Mapping[int, int],
        last: Mapping[int, int],
    ) -> None:
        self.rings, self.tables, self.striper = rings, rings.tables, striper
        self.order, self.born, self.last, self.size = order, born, last, len(order)

    @cached_property
    def stripes(self) -> Table:
        """Return bounds for segments in stripes, recompute allowed; infeasible if an operator cannot be striped."""
        return self._in_stripes(self.rings.in_stripes(kept=False))

    @cached_property
    def halo_stripes(self) -> Table:
        """Return bounds for segments in stripes without recompute: every tensor's halo columns are stored."""
        return self._in_stripes(self.rings.in_stripes(kept=True))

    def _in_stripes(self, rings: Sequence[int]) -> Table:
        """Compute bounds for striped segments with rings of `rings[t]` bytes."""
        n = self.size
        dying = np.cumsum(np.cumsum(self._placed(self.tables.tensor_bytes), axis=1), axis=0)
        earlier = np.concatenate([[0], np.diagonal(dying, -1)])
        bounds = self._live[None, :] + self._counters(ROW) + self._scratch
        bounds[:, 1:] += dying[:, :n] - earlier[:, None]
        bounds[:n, 1:] += self._inside(rings)
        ops, possible = self.tables.graph.ops, self.striper.possible
        out = [not (ops[o].view or ops[o].kernels.accumulator_bytes or possible(o)) for o in self.order]
        left_out = np.cumsum([0, *out])
        return np.where(left_out[None, :] > left_out[:, None], INFEASIBLE, bounds)

    @cached_method
    def plain(self, tile: Tile) -> Table:
        """Return bounds for segments in steps of `tile`."""
        n, after = self.size, np.tile(self._live, (self.size + 1, 1))
        after[:n, 1:] += self._inside(self.rings.plain(tile))
        return np.maximum(after, self._live[:, None]) + self._counters(tile) + self._scratch

    def _inside(self, rings: Sequence[int]) -> Table:
        """Compute the bytes of rings for tensors that live only within [i, j), indexed [i, j - 1]."""
        return np.cumsum(np.cumsum(self._placed(rings), axis=1)[::-1], axis=0)[::-1][1:, : self.size]

    def _placed(self, sizes: Sequence[int]) -> Table:
        """Sums of `sizes` over the roots, indexed [birth + 1, last use] by position in the order.

        Row 0 holds graph inputs that are in memory from the start, row k + 1 outputs of the operator at position k.
        """
        n = self.size
        placed = np.zeros((n + 1, n + 1), np.int64)
        for t, born in self.born.items():
            placed[born + 1, self.last[t]] += sizes[t]
        return placed

    @cached_property
    def _live(self) -> Table:
        """Compute live(j): for each position the bytes of tensors produced before and needed there or later."""
        n = self.size
        change = np.zeros(n + 2, np.int64)
        for t, born in self.born.items():
            change[born + 1] += self.tables.tensor_bytes[t]
            change[self.last[t] + 1] -= self.tables.tensor_bytes[t]
        return np.cumsum(change)[: n + 1]

    @cached_method
    def _counters(self, tile: Tile) -> Table:
        """Compute the step counters' bytes in each segment with steps of `tile`, without sources."""
        widths = self.tables.counter_widths(tile)
        wide = np.array([widths.get(o, 0) for o in self.order], np.int64)  # views have none
        working = np.cumsum([0, *(wide > 0)])
        count = working[None, :] - working[:, None]
        return np.where(count > 1, _largest(wide) * count, 0)

    @cached_property
    def _scratch(self) -> Table:
        """Compute for each segment the largest of the operators' least scratch, in any kernel variant."""
        graph = self.tables.graph
        ops = [graph.ops[o] for o in self.order]
        tilings = [op.kernels.channel_tiling for op in ops]  # in place, or in stripes of one column, they need less
        single = [op.scratch_bytes if c is None else c.scratch_bytes(1) for op, c in zip(ops, tilings, strict=True)]
        in_place = [op.kernels.in_place_workspace_bytes or op.scratch_bytes for op in ops]
        return _largest(np.min([[op.scratch_bytes for op in ops], in_place, single], axis=0))

    @cached_property
    def calls(self) -> Table:
        """Count the kernel calls of each segment in steps of one row, the fewest possible; 0 for an operator that runs
        alone.
        """
        tables = self.tables
        working = [not tables.graph.ops[o].view for o in self.order]
        steps = [tables.steps(o, ROW).count if w else 0 for o, w in zip(self.order, working, strict=True)]
        total, count = np.cumsum([0, *steps]), np.cumsum([0, *working])
        several = count[None, :] - count[:, None] > 1
        return np.where(several, total[None, :] - total[:, None], 0).astype(np.int64)


def _largest(values: np.ndarray) -> Table:
    """Compute the largest of `values[i:j]`, which has a value per position."""
    n = len(values)
    largest = np.zeros((n + 1, n + 1), np.int64)
    for i in range(n):
        largest[i, i + 1 :] = np.maximum.accumulate(values[i:])
    return largest
