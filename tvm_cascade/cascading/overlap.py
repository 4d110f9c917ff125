"""Offset constraints of a segment: how an output or ring may share memory with an input that dies in the segment.

While the segment runs, the input's rows die as they are consumed, so the output may be written behind the read front.
When the output's producer runs step k, the operators upstream have done at least the steps needed by step k; the first
input byte still to be read is the front. Both may share memory if, at every step, the end of the output's written bytes
(this step included) does not pass the front:

    offset(input) - offset(output) >= max over steps of (end of written - front),    steps with a live input only.

A rolling buffer may lie behind the front in the same way, since the ring is filled after the segment has started to
read. For the segment's sink the steps upstream are exact; for an output that is also read inside they are a safe lower
bound. An element-wise operator may overwrite the very elements read in the same step (`in_place`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from tvm_cascade.cascading.access_tables import AccessTables, Read
from tvm_cascade.cascading.cached_method import cached_method
from tvm_cascade.cascading.geometry import Units, end_bytes, front_bytes, outermost
from tvm_cascade.cascading.simulate import Cascade
from tvm_cascade.graph import Tile

Reads = Sequence[tuple[int, Read]]  # who reads a tensor, and how, once for each input that does


@dataclass(frozen=True, slots=True)
class Pair:
    """Two tensors that may share memory as `memory.OffsetConstraint` allows."""

    reader: int  # tensor: the dying input
    writer: int  # tensor: the output, or the tensor in the ring
    distance: int  # bytes: offset(reader) - offset(writer) must be at least this
    size: int  # bytes of the writer's block
    exact: bool = False  # both blocks have the same offset

    @property
    def reach(self) -> int:
        """Return the bytes at the start of the reader's block the writer may cover; negative if none."""
        return self.size - self.distance


def shared_bytes(pairs: Iterable[Pair], sizes: Sequence[int], later: Callable[[int], bool]) -> int:
    """Compute an upper bound on the bytes writers of a segment's `pairs` can share with the dying inputs.

    Rings cover the start of an input X: packed by `Pair.reach`, at most f bytes. An output Y at distance d covers at
    most |Y| - max(d, 0) bytes of X, and leaves min(f, -d) to the rings if d < 0. Inputs do not overlap one another, so
    an output or ring shares at most its own size with all together. `sizes` are bytes by tensor; `later` tells whether
    a tensor is needed after the segment.
    """
    by_reader: dict[int, list[Pair]] = {}
    covered: dict[int, int] = {}
    for pair in pairs:
        by_reader.setdefault(pair.reader, []).append(pair)
        covered[pair.writer] = min(pair.size, covered.get(pair.writer, 0) + max(pair.reach, 0))
    taken = sum(_shared_with(sizes[t], own, later) for t, own in by_reader.items())
    return min(taken, sum(covered.values()))


def _shared_with(whole: int, pairs: Iterable[Pair], later: Callable[[int], bool]) -> int:
    """Compute `shared_bytes` for a single dying input of `whole` bytes."""
    front, outputs = 0, list[Pair]()
    for pair in sorted(pairs, key=lambda p: (p.reach, p.writer)):
        if later(pair.writer):
            outputs.append(pair)
        else:
            front = min(front + pair.size, pair.reach)
    if len(outputs) == 1:
        only = outputs[0]
        return min(whole, max(front, only.size + min(front, -only.distance)))
    return min(whole, front + sum(min(p.size, p.reach) for p in outputs))


class Overlaps:
    """Computes the offset constraints between outputs or rings and dying inputs, for a graph's segments."""

    def __init__(self, tables: AccessTables, in_place: bool) -> None:
        self.tables, self.in_place = tables, in_place
        self._distances: dict[object, dict[tuple[int, int, tuple[int, ...]], Pair | None]] = {}

    def pairs(
        self, members: Sequence[int], dying: Sequence[int], made: Mapping[int, int], tile: Tile
    ) -> tuple[Pair, ...]:
        """Return the pairs of a dying input and a tensor produced in the segment that can share bytes.

        Parameters
        ----------
        members : Sequence[int]
            Operators and sources of the segment.
        dying : Sequence[int]
            Inputs whose last reader is in the segment.
        made : Mapping[int, int]
            For each root that the segment produces, the units stored of it: all, or those of its ring.
        tile : Tile
            Output of a step.
        """
        if not dying or not made:
            return ()
        cascade = Cascade(self.tables, members, tile)
        plain = self._plain(cascade)
        written = [(y, units, self._makers(y, cascade)) for y, units in made.items()]
        pairs: list[Pair | None] = []
        for x in dying:
            reads = cascade.readers(x)
            readers = tuple((o, o in cascade.accumulating) for o, _ in reads)
            known = self._distances.setdefault((x, tile, readers, plain), {})
            for key in written:
                if key not in known:
                    y, units, makers = key
                    distance = max(self._behind(cascade, x, reads, y, units, m) for m in makers)
                    size = units * self.tables.unit_bytes(y, tile)
                    known[key] = Pair(x, y, distance, size) if distance < size else None
                pairs.append(known[key])
        return tuple(pair for pair in pairs if pair is not None)

    def _makers(self, tensor: int, cascade: Cascade) -> tuple[int, ...]:
        """Return the producers of a tensor inside; for a join maybe only some."""
        return tuple(m for m in self.tables.writers(tensor) if m in cascade.inside)

    def overwrites(self, pair: Pair) -> bool:
        """Test whether the producer of `pair.writer` may overwrite the elements of `pair.reader` read in the same step."""
        makers = self.tables.writers(pair.writer)
        if len(makers) != 1 or makers[0] < 0 or not self._alike(pair.reader, pair.writer):
            return False
        first = self.tables.written(makers[0])[0] == pair.writer
        return first and any(r.in_place and r.tensor == pair.reader for r in self.tables.steps(makers[0]).reads)

    def _behind(self, cascade: Cascade, x: int, reads: Reads, y: int, units: int, maker: int) -> int:
        """Compute the least `offset(x) - offset(y)` in bytes while `maker` writes y; y's size if sharing is impossible."""
        tables, tile = self.tables, cascade.tile
        taken, given = tables.graph.tensors[x], tables.graph.tensors[y]
        size = units * tables.unit_bytes(y, tile)
        steps = cascade.steps(maker)
        front = np.full(steps.count, taken.bytes, np.int64)
        least = -taken.bytes
        for reader, read in reads:
            done = self._done(cascade, maker, reader)
            if done is None:
                return size
            if reader == maker and read.in_place and y == tables.written(maker)[0] and self._alike(x, y):
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
        """Test whether `in_place` is on and two tensors have the same layout, so elements may be overwritten in place."""
        one, other = self.tables.graph.tensors[x], self.tables.graph.tensors[y]
        if x in self.tables.streamed and not outermost(one):
            return False  # x interleaves its planes row by row, y stores one plane after the other
        return self.in_place and (one.shape, one.dtype, one.row_axis) == (other.shape, other.dtype, other.row_axis)

    def _done(self, cascade: Cascade, maker: int, reader: int) -> Units | None:
        """Return, per step of `maker`, the fewest steps `reader` has done before; None if `reader` is not upstream."""
        count = cascade.steps(maker).count
        if reader == maker:
            return np.arange(count, dtype=np.int64)
        return self._upstream(maker, reader, cascade.tile, self._plain(cascade))

    def _plain(self, cascade: Cascade) -> frozenset[int]:
        """Return a segment's operators that do not accumulate there, but would if all their producers ran inside."""
        summing = (o for o in self.tables.summing if o in cascade.inside and o not in cascade.accumulating)
        return frozenset(o for o in summing if self._accumulates(o))

    def _upstream(self, maker: int, reader: int, tile: Tile, plain: frozenset[int]) -> Units | None:
        """Return the steps `reader` has done, by step of `maker`; None if `reader` is not upstream.

        Everything upstream is assumed to run in one cascade: in any other segment at least as many steps are done, if
        the same operators accumulate there. Operators in `plain` do not accumulate. Results are kept as far upstream as
        they were asked for, since few readers are far from `maker`.
        """
        done, pending = self._walk(maker, tile, plain)
        while pending and -pending[0] >= reader:
            o = -heappop(pending)
            made = done[o]
            for upstream in self.tables.makers[o] if o >= 0 else ():
                asked = self._asked(o, upstream, tile, plain & {o, upstream})[made]
                if upstream in done:
                    done[upstream] = np.maximum(done[upstream], asked)
                else:
                    done[upstream] = asked
                    heappush(pending, -upstream)
        return done.get(reader)

    @cached_method
    def _asked(self, op: int, maker: int, tile: Tile, plain: frozenset[int]) -> Units:
        """Return the steps `maker` has done, by the number of steps `op` has done."""
        sums = [o not in plain and self._accumulates(o) for o in (op, maker)]
        waits = self.tables.waits(op, maker, tile, *sums)
        return np.append(0, np.maximum.accumulate(waits))

    @cached_method
    def _walk(self, maker: int, tile: Tile, plain: frozenset[int]) -> tuple[dict[int, Units], list[int]]:
        """Return the start state for the walk upstream: done steps of the operators met, and a heap of negated open
        operators.
        """
        count = self.tables.steps(maker, tile, maker not in plain and self._accumulates(maker)).count
        return {maker: np.arange(1, count + 1, dtype=np.int64)}, [-maker]

    @cached_method
    def _accumulates(self, op: int) -> bool:
        """Test whether an operator sums the input step by step when all producers run in the same segment."""
        return op >= 0 and self.tables.accumulates(op, self.tables.makers[op])
