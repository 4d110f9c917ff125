"""How close a segment's output may follow its dying input through the same memory.

While the segment runs, the rows of its input die as they are consumed, so its output may be written behind the read
front. When the output's maker writes step k, its operators upstream have done at least the steps that step k needs;
the first byte of the input that any of them still reads is the front. The output may lie where, at every step, the
end of what it has written (this step included) does not pass the front:

    offset(input) - offset(output) >= max over steps of (end of written - front),    steps with a living input only.

A rolling buffer may begin behind the front in the same way, for it is filled later than its segment starts to read.
For the segment's sink the steps upstream are exact; for an output that is also read inside they are a safe lower bound.
An element-wise operator may write over the very elements that its step reads (`in_place`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.cached_method import cached_method
from tvm_cascade.cascading.geometry import Units, end_bytes, front_bytes, outermost
from tvm_cascade.cascading.simulate import Cascade
from tvm_cascade.graph import Tile


@dataclass(frozen=True, slots=True)
class Pair:
    """Two tensors that may share memory as `memory.OffsetConstraint` allows."""

    reader: int  # the dying input
    writer: int  # the output or ring
    distance: int
    size: int  # bytes of the writer's block
    exact: bool = False  # in the very same place

    @property
    def reach(self) -> int:
        """Bytes at the start of the reader that the writer may cover; none where negative."""
        return self.size - self.distance


class Overlaps:
    """Finds how close outputs and rings may follow dying inputs, for the segments of one graph."""

    def __init__(self, tables: AccessTables, in_place: bool) -> None:
        self.tables, self.in_place = tables, in_place
        self._distances: dict[object, dict[tuple[int, int, tuple[int, ...]], Pair | None]] = {}

    def pairs(
        self, members: Sequence[int], dying: Sequence[int], made: Mapping[int, int], tile: Tile
    ) -> tuple[Pair, ...]:
        """The pairs of a dying input and a tensor made that can share bytes.

        Parameters
        ----------
        members : Sequence[int]
            Operators and sources of the segment.
        dying : Sequence[int]
            Inputs whose last reader is in the segment.
        made : Mapping[int, int]
            Units held of each root that the segment makes.
        tile : Tile
            What a step makes.
        """
        if not dying or not made:
            return ()
        cascade = Cascade(self.tables, members, tile)
        pairs: list[Pair | None] = []
        for x in dying:
            readers = tuple((o, o in cascade.accumulating) for o, _ in cascade.readers(x))
            known = self._distances.setdefault((x, tile, readers), {})
            for y, units in made.items():
                makers = tuple(m for m in self.tables.writers(y) if m in cascade.inside)  # some of a join's makers
                key = (y, units, makers)
                if key not in known:
                    distance = max(self._behind(cascade, x, y, units, m) for m in makers)
                    size = units * self.tables.unit_bytes(y, tile)
                    known[key] = Pair(x, y, distance, size) if distance < size else None
                pairs.append(known[key])
        return tuple(pair for pair in pairs if pair is not None)

    def overwrites(self, pair: Pair) -> bool:
        """Whether the operator that makes the writer may write over the very elements that it reads."""
        makers = self.tables.writers(pair.writer)
        if len(makers) != 1 or makers[0] < 0 or not self._alike(pair.reader, pair.writer):
            return False
        return any(r.in_place and r.tensor == pair.reader for r in self.tables.steps(makers[0]).reads)

    def _behind(self, cascade: Cascade, x: int, y: int, units: int, maker: int) -> int:
        """Bytes by which y must stay behind x; the size of y where the two must not share anything."""
        tables, tile = self.tables, cascade.tile
        taken, given = tables.graph.tensors[x], tables.graph.tensors[y]
        size = units * tables.unit_bytes(y, tile)
        steps = cascade.steps(maker)
        front = np.full(steps.count, taken.bytes, np.int64)
        least = -taken.bytes
        for reader, read in cascade.readers(x):
            done = self._done(cascade, maker, reader)
            if done is None:
                return size
            if reader == maker and read.in_place and self._alike(x, y):
                done, least = done + 1, 0
            front = np.minimum(front, front_bytes(taken, read.keep[done], tables.columns(x, tile)))
        made = steps.made[tables.written(maker).index(y)][1:]
        if units < tables.units(y, tile):
            written = np.minimum(made * tables.unit_bytes(y, tile), size)
        else:
            written = end_bytes(given, made, tables.columns(y, tile))
        alive = (front < taken.bytes) & (written > 0)
        return int((written - front)[alive].max(initial=least))

    def _alike(self, x: int, y: int) -> bool:
        """Whether two tensors have the same layout, so that one may overwrite the other element for element."""
        one, other = self.tables.graph.tensors[x], self.tables.graph.tensors[y]
        if x in self.tables.streamed and not outermost(one):
            return False  # its planes lie together row by row, those of the output one behind the other
        return self.in_place and (one.shape, one.dtype, one.row_axis) == (other.shape, other.dtype, other.row_axis)

    def _done(self, cascade: Cascade, maker: int, reader: int) -> Units | None:
        """For each step of `maker` the steps that `reader` has certainly done before it; None where that may be none."""
        count = cascade.steps(maker).count
        if reader == maker:
            return np.arange(count, dtype=np.int64)
        done = self._upstream(maker, cascade.tile).get(reader)
        if done is None or reader in cascade.accumulating or not self.tables.accumulators:
            return done
        beside = self.tables.accumulates(reader, (reader, *self.tables.makers[reader]))  # where all its makers run too
        full = self.tables.steps(reader, cascade.tile, beside).count
        return done if full == cascade.steps(reader).count else (done >= full).astype(np.int64)

    @cached_method
    def _upstream(self, maker: int, tile: Tile) -> dict[int, Units]:
        """For every operator upstream of `maker` the steps that it has done, by step of the maker.

        All of them are taken to run in the same cascade, which is the least that any segment has done.
        """
        everything = Cascade(self.tables, _ancestors(self.tables, maker), tile)
        done = {maker: np.arange(1, everything.steps(maker).count + 1, dtype=np.int64)}
        for o in reversed(everything.members):
            for upstream, waits in everything.waits(o).items():
                asked = np.append(0, np.maximum.accumulate(waits))[done[o]]
                done[upstream] = np.maximum(done[upstream], asked) if upstream in done else asked
        return done


def _ancestors(tables: AccessTables, op: int) -> tuple[int, ...]:
    """The operators and sources that `op` depends on, and `op` itself, ascending."""
    seen, pending = {op}, [op]
    while pending:
        o = pending.pop()
        fresh = [m for m in tables.makers[o] if m not in seen] if o >= 0 else []
        seen.update(fresh)
        pending.extend(fresh)
    return tuple(sorted(seen))
