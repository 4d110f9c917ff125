"""Simulation of demand-driven execution: a segment's trace, and the exact sizes of rolling buffers.

Each sink runs the next step; before a step the operator's producers run until the rows to read exist (the producer with
the highest index first). So no tile is computed before it is needed, and none twice. A tensor's ring holds the most
units (rows or pixels) between the oldest unit still to be read and the newest written; with one unit less a live unit
would be overwritten. (For a chain of 3x3 convolutions that is 3 rows each; a static stage-by-stage schedule needs 8, 7,
6, ...)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from tvm_cascade.cascading.access_tables import AccessTables, Read, SegmentUsers, Steps
from tvm_cascade.cascading.geometry import Units
from tvm_cascade.graph import ROW, Tile


class Cascade:
    """Operators, and sources of streamed inputs, that run together; `members` must not contain views."""

    def __init__(self, tables: AccessTables, members: Sequence[int], tile: Tile = ROW) -> None:
        self.tables, self.members, self.tile = tables, tuple(members), tile
        self.inside = frozenset(members)
        self.accumulating = frozenset(
            o for o, makers in tables.summing.items() if o in self.inside and self.inside.issuperset(makers)
        )
        self._steps: dict[int, Steps] = {}

    def steps(self, op: int) -> Steps:
        """Return the steps of a member."""
        if op not in self._steps:
            self._steps[op] = self.tables.steps(op, self.tile, op in self.accumulating)
        return self._steps[op]

    def waits(self, op: int) -> dict[int, Units]:
        """Return, for each producer inside, how many producer steps each step of `op` waits for."""
        summing = self.accumulating
        makers = [m for m in self.tables.makers[op] if m in self.inside] if op >= 0 else []
        return {m: self.tables.waits(op, m, self.tile, op in summing, m in summing) for m in makers}

    @cached_property
    def sinks(self) -> tuple[int, ...]:
        """Return the members no other member reads from."""
        read = {m for o in self.members if o >= 0 for m in self.tables.makers[o]}
        return tuple(o for o in self.members if o not in read)

    @cached_property
    def trace(self) -> tuple[int, ...]:
        """Return the members in execution order, a single entry a step.

        Several sinks advance in proportion to their numbers of steps. Steps no sink demands run at the end.
        """
        return tuple(np.array(self.members, np.int64)[self.places].tolist())

    @cached_property
    def places(self) -> Units:
        """Return the trace by places in `members`."""
        return self.tables.compiled(self.tile).trace(self.members, self.accumulating)

    def readers(self, tensor: int) -> list[tuple[int, Read]]:
        """List the members that read a root, ascending, once for each reading input."""
        return self._reads.get(tensor, [])

    @cached_property
    def _reads(self) -> dict[int, list[tuple[int, Read]]]:
        """Return the members' reads, by tensor."""
        reads: dict[int, list[tuple[int, Read]]] = {}
        for o in sorted(self.members):
            for read in self.steps(o).reads:
                reads.setdefault(read.tensor, []).append((o, read))
        return reads

    def held(self, tensors: Sequence[int] | None = None) -> dict[int, int]:
        """Compute by simulation the units the rings of `tensors` must hold for the segment's readers.

        `tensors` are roots the segment produces; None for all of them.
        """
        most: dict[int, int] = {}
        roots = (t for o in self.members for t in self.tables.written(o))
        for t, units in zip(
            roots, self.tables.compiled(self.tile).most_held(self.members, self.accumulating), strict=True
        ):
            most[t] = max(most.get(t, 1), units)
        return {t: self.usable(t, most[t]) for t in (most if tensors is None else tensors)}

    def usable(self, tensor: int, units: int) -> int:
        """Compute the size in units of a ring for at least `units`, rounded up so that kernels can address the ring.

        All units if a ring is impossible: no reader in the segment, a reader that cannot read rings, or a join by rows.
        A multiple of whole rows if a source fills the ring, or a kernel writes or reads by rows. A multiple of whole
        tiles if steps write several rows or pixels, so no tile wraps around.
        """
        tables = self.tables
        makers, readers = self._users(tables.writers(tensor)), self._users(tables.readers[tensor])
        least, multiple = tables.ring(tensor, self.tile, makers, readers)
        if least is None:
            return multiple
        needed = -(-max(units, least) // multiple) * multiple  # no step's pixels wrap around
        return min(tables.units(tensor, self.tile), needed)

    def _users(self, operators: Sequence[int]) -> SegmentUsers:
        """Return the members among `operators`, each with a bool: accumulates or not."""
        return tuple((o, o in self.accumulating) for o in operators if o in self.inside)

    def closed_form(self, tensor: int) -> int | None:
        """Compute `held` for a tensor with a single producer and a single reader; None for any other.

        The result is the maximum over the reader's steps of `made - keep`.
        """
        if len(self.tables.writers(tensor)) != 1:
            return None
        maker = self.tables.writers(tensor)[0]
        outputs = self.tables.written(maker)
        readers = {o for t in outputs for o in self.tables.readers[t] if o in self.inside}
        if len(readers) != 1:
            return None
        reader = readers.pop()
        ahead = np.maximum.accumulate(self.waits(reader)[maker])
        made = self.steps(maker).made[outputs.index(tensor)][ahead]
        keeps = [r.keep[:-1] for r in self.steps(reader).reads if r.tensor == tensor]
        return self.usable(tensor, max((int((made - keep).max(initial=1)) for keep in keeps), default=1))
