"""Demand-driven execution of operators, step by step, and the exact sizes of their rolling buffers.

Every sink asks for its next step, each operator first asks its producers for what its step reads (the last listed
first): nothing is made before it is needed, and nothing twice. A tensor's ring holds as many units (rows or pixels)
as ever lie between the oldest one still to be read and the newest one made; one less would overwrite what is still
wanted. (For a chain of 3x3 convolutions that is 3 rows each, where a static stage-by-stage schedule needs 8, 7, 6,
...)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from tvm_cascade.cascading.access_tables import AccessTables, Read, Steps, steps_for
from tvm_cascade.cascading.geometry import Units, goes_by_pixels
from tvm_cascade.graph import ROW, Tile

Feeds = Mapping[int, Sequence[tuple[int, Sequence[int]]]]


class Cascade:
    """Operators, and sources of streamed inputs, that run together; `members` must not contain views."""

    def __init__(self, tables: AccessTables, members: Sequence[int], tile: Tile = ROW) -> None:
        self.tables, self.members, self.tile = tables, tuple(members), tile
        inside = frozenset(members)
        self.inside = inside
        self.accumulating = frozenset(o for o in members if tables.accumulates(o, inside))

    def steps(self, op: int) -> Steps:
        """The steps of one member."""
        return self.tables.steps(op, self.tile, op in self.accumulating)

    def waits(self, op: int) -> dict[int, Units]:
        """For each producer inside, the number of its steps that each step of `op` waits for."""
        found: dict[int, Units] = {}
        for maker in self.tables.makers[op] if op >= 0 else ():
            if maker in self.inside:
                key = (op, maker, self.tile, op in self.accumulating, maker in self.accumulating)
                if key not in self.tables.waits:
                    self.tables.waits[key] = self._waits(op, maker)
                found[maker] = self.tables.waits[key]
        return found

    def _waits(self, op: int, maker: int) -> Units:
        """`waits` for one producer."""
        found: Units | None = None
        for read in self.steps(op).reads:
            if maker in self.tables.writers(read.tensor):
                made = self.steps(maker).made[self.tables.written(maker).index(read.tensor)]
                steps = np.minimum(steps_for(made, read.need), self.steps(maker).count)
                found = steps if found is None else np.maximum(found, steps)
        assert found is not None
        return found

    @cached_property
    def sinks(self) -> tuple[int, ...]:
        """Members that no other member reads from."""
        read = {m for o in self.members if o >= 0 for m in self.tables.makers[o]}
        return tuple(o for o in self.members if o not in read)

    @cached_property
    def trace(self) -> tuple[int, ...]:
        """The members in execution order, one entry a step.

        Several sinks advance in proportion to their numbers of steps. What nothing inside reads is made at the end.
        """
        total = {o: self.steps(o).count for o in self.members}
        feeds = {
            o: [(m, w.tolist()) for m, w in sorted(self.waits(o).items(), key=lambda f: -f[0])] for o in self.members
        }
        rounds = max((total[o] for o in self.sinks), default=0)
        asked = [(o, -(-total[o] * (k + 1) // rounds)) for k in range(rounds) for o in self.sinks]
        asked.extend((o, total[o]) for o in reversed(self.members))
        done = dict.fromkeys(self.members, 0)
        trace: list[int] = []
        for op, upto in asked:
            _advance(op, upto, feeds, done, trace)
        return tuple(trace)

    def readers(self, tensor: int) -> list[tuple[int, Read]]:
        """Members that read a root, once for each input that does."""
        among = [o for o in self.tables.readers[tensor] if o in self.inside]
        return [(o, r) for o in among for r in self.steps(o).reads if r.tensor == tensor]

    def held(self) -> dict[int, int]:
        """Units that each root made inside must hold for the readers inside, found by replaying the trace."""
        trace = np.asarray(self.trace, np.int64)
        order = np.argsort(trace, kind="stable")
        names, starts = np.unique(trace[order], return_index=True)
        at = dict(zip(names.tolist(), np.split(order, starts[1:]), strict=True))  # places in the trace, by operator
        found: dict[int, int] = {}
        for o in self.members:
            for t, made in zip(self.tables.written(o), self.steps(o).made, strict=True):
                most = found.get(t, 1)
                for c, read in self.readers(t):
                    done = np.searchsorted(at[c], at[o])
                    most = max(most, int((made[1 : len(at[o]) + 1] - read.keep[done]).max(initial=1)))
                found[t] = most
        return {t: self.usable(t, most) for t, most in found.items()}

    def usable(self, tensor: int, units: int) -> int:
        """The units of a ring that must hold at least `units`, rounded up to what kernels can address.

        All units where a reader cannot follow a ring or none is inside. Whole rows where a source fills it or a kernel makes or
        reads rows. Whole steps where an operator fills it several pixels at a time.
        """
        least, multiple = self._usable(tensor)
        if least is None:
            return multiple
        needed = -(-max(units, least) // multiple) * multiple  # no step's pixels wrap around
        return min(self.tables.units(tensor, self.tile), needed)

    def _usable(self, tensor: int) -> tuple[int | None, int]:
        """The fewest units of a ring and what they must be a multiple of; (None, all units) where it cannot be a ring."""
        tables, tile = self.tables, self.tile
        makers = [m for m in tables.writers(tensor) if m in self.inside]
        readers = tuple((o, o in self.accumulating) for o in tables.readers[tensor] if o in self.inside)
        key = (tensor, tile, tuple((m, m in self.accumulating) for m in makers), readers)
        if key not in tables.rings:
            reads = [r for _, r in self.readers(tensor)]
            if not reads or any(not r.ringable for r in reads) or tables.stacked(tensor):
                tables.rings[key] = None, tables.units(tensor, tile)
            else:
                made = [self.steps(m).made[tables.written(m).index(tensor)] for m in makers]
                wide = tables.columns(tensor, tile)
                steps = tile.columns > 1 and any(m >= 0 and goes_by_pixels(tables.graph, m) for m in makers)
                around = (*makers, *(o for o, summing in readers if not summing))
                rows = any(not goes_by_pixels(tables.graph, o) for o in around if o >= 0)
                rows = rows or tensor in tables.streamed
                multiple = wide if rows else tile.columns if steps and wide % tile.columns == 0 else 1
                if not tile.by_pixels:
                    multiple = min(tile.rows, tables.tensor_rows[tensor])  # a step's rows lie together
                least = max(int(np.diff(units).max(initial=1)) for units in made)
                tables.rings[key] = max(least, *(r.reach for r in reads)), multiple
        return tables.rings[key]

    def closed_form(self, tensor: int) -> int | None:
        """`held` of a tensor with one producer and one reader; None for any other.

        It is the maximum over the reader's steps of `made - keep`.
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


def _advance(op: int, upto: int, feeds: Feeds, done: dict[int, int], trace: list[int]) -> None:
    """Run `op` until it has done `upto` steps, its producers first as far as needed; append every step to `trace`."""
    pending = [(op, upto)]
    while pending:
        o, goal = pending[-1]
        k = done[o]
        if k >= goal:
            pending.pop()
            continue
        for maker, waits in feeds[o]:
            if done[maker] < waits[k]:
                pending.append((maker, waits[k]))
                break
        else:
            done[o] = k + 1
            trace.append(o)
