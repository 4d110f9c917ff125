"""Simulation of demand-driven execution: a segment's trace, and the exact sizes of rolling buffers.

Each sink runs the next step; before a step the operator's producers run until the rows to read exist (the producer with
the highest index first). So no tile is computed before it is needed, and none twice. A tensor's ring holds the most
units (rows or pixels) between the oldest unit still to be read and the newest written; with one unit less a live unit
would be overwritten. (For a chain of 3x3 convolutions that is 3 rows each; a static stage-by-stage schedule needs 8, 7,
6, ...)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np

from tvm_cascade import native
from tvm_cascade.cascading import simulate_compiled
from tvm_cascade.cascading.access_tables import AccessTables, Read, SegmentUsers, Steps
from tvm_cascade.cascading.geometry import Units
from tvm_cascade.graph import ROW, Tile

Feeds = Sequence[Sequence[tuple[int, Sequence[int]]]]  # by member: its producers, and its steps' `AccessTables.waits`
# steps and producers of every member by place, with `AccessTables.waits` as bytes; the places of sinks
Demand = tuple[tuple[tuple[int, tuple[tuple[int, bytes], ...]], ...], tuple[int, ...]]
Write = tuple[int, bytes, tuple[tuple[int, bytes], ...]]  # a writer's place, `made`, and `keep` of every reader
_TRACES, _RINGS = 256, 4096  # results that are kept, the last used


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
        """Return the members in execution order, one entry a step.

        Several sinks advance in proportion to their numbers of steps. Steps no sink demands run at the end.
        """
        return tuple(self.members[k] for k in demanded(self._demand))

    @cached_property
    def _place(self) -> dict[int, int]:
        return {o: k for k, o in enumerate(self.members)}

    @cached_property
    def _demand(self) -> Demand:
        """Return all data the trace depends on."""
        feeds = (sorted(self.waits(o).items(), key=lambda f: -f[0]) for o in self.members)
        makers = (tuple((self._place[m], _bytes(waits)) for m, waits in feed) for feed in feeds)
        counts = (self.steps(o).count for o in self.members)
        return tuple(zip(counts, makers, strict=True)), tuple(self._place[o] for o in self.sinks)

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

    def held(self) -> dict[int, int]:
        """Compute by simulation, per root the segment produces, the units the ring must hold for the segment's readers."""
        made = [
            (o, t, m) for o in self.members for t, m in zip(self.tables.written(o), self.steps(o).made, strict=True)
        ]
        writes = tuple(
            (self._place[o], _bytes(units), tuple((self._place[c], _bytes(r.keep)) for c, r in self.readers(t)))
            for o, t, units in made
        )
        held: dict[int, int] = {}
        for (_, t, _), most in zip(made, most_held(self._demand, writes), strict=True):
            held[t] = max(held.get(t, 1), most)
        return {t: self.usable(t, most) for t, most in held.items()}

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
        """Compute `held` for a tensor with one producer and one reader; None for any other.

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


@lru_cache(maxsize=_TRACES)
def demanded(demand: Demand) -> tuple[int, ...]:
    """Compute `Cascade.trace` by places of members; segments with the same structure share the result."""
    library = native.library()
    return demanded_in_python(demand) if library is None else simulate_compiled.demanded(library, demand)


def demanded_in_python(demand: Demand) -> tuple[int, ...]:
    """Compute `demanded` in Python; `native/simulate.c` does the same."""
    members, sinks = demand
    total = [count for count, _ in members]
    feeds = [[(m, _units(waits).tolist()) for m, waits in makers] for _, makers in members]
    rounds = max((total[o] for o in sinks), default=0)
    asked = [(o, -(-total[o] * (k + 1) // rounds)) for k in range(rounds) for o in sinks]
    asked.extend((o, total[o]) for o in reversed(range(len(members))))
    done = [0] * len(members)
    trace: list[int] = []
    for op, upto in asked:
        _advance(op, upto, feeds, done, trace)
    return tuple(trace)


@lru_cache(maxsize=_RINGS)
def most_held(demand: Demand, writes: tuple[Write, ...]) -> tuple[int, ...]:
    """Compute the most units of every output live at once, at least 1; segments with the same structure share this.

    `writes` are sorted by the writers' places.
    """
    library = native.library()
    if library is None:
        return most_held_in_python(demand, writes)
    return simulate_compiled.most_held(library, demand, writes)


def most_held_in_python(demand: Demand, writes: tuple[Write, ...]) -> tuple[int, ...]:
    """Compute `most_held` in Python; `native/simulate.c` does the same."""
    trace = np.asarray(demanded_in_python(demand), np.int64)
    order = np.argsort(trace, kind="stable")
    names, starts = np.unique(trace[order], return_index=True)
    at = dict(zip(names.tolist(), np.split(order, starts[1:]), strict=True))  # places in the trace, by member
    found: list[int] = []
    for o, made, readers in writes:
        most = 1
        for c, keep in readers:
            live = _units(made)[1 : len(at[o]) + 1] - _units(keep)[np.searchsorted(at[c], at[o])]
            most = max(most, int(live.max(initial=1)))
        found.append(most)
    return tuple(found)


def _bytes(units: Units) -> bytes:
    return units.astype(np.int64, copy=False).tobytes()


def _units(data: bytes) -> Units:
    return np.frombuffer(data, np.int64)


def _advance(op: int, upto: int, feeds: Feeds, done: list[int], trace: list[int]) -> None:
    """Run `op` until `upto` steps are done, its producers first as far as needed; append every step to `trace`."""
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
