"""Lower bounds on the bytes live in segments with separate row addresses (`RowLives.needed`).

Steps run on demand. So the steps done at the end of a round, when all sinks have done their next steps, are known
without the trace: each operator has done the steps its readers waited for. The rows made by then and still to be read
are live. Operators before a segment change nothing behind them. So one walk back from an end bounds all segments
with this end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tvm_cascade.cascading.access_tables import Steps
from tvm_cascade.cascading.geometry import Units
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.graph import ROW


class RowBounds:
    """Bounds for all segments [i, j) in an execution order."""

    def __init__(self, costs: SegmentCosts) -> None:
        self.costs, self.tables = costs, costs.tables
        self._waits: dict[tuple[int, int, bool, bool], Units] = {}
        self._known: dict[int, tuple[int, list[int]]] = {}  # by end: up to which bytes, and the bounds
        self._sources: dict[int, list[int]] = {}  # by position: the streamed inputs that are first read there
        for t in self.tables.streamed:
            self._sources.setdefault(costs.born[t], []).append(self.tables.source(t))

    def up_to(self, end: int, most: int) -> list[int]:
        """Return by i a lower bound, in bytes, on `needed` for segment [i, end); at least `most` where that is more."""
        known = self._known.get(end)
        if known is None or known[0] < most:
            known = self._known[end] = most, self._up_to(end, most)
        return known[1]

    def _up_to(self, end: int, most: int) -> list[int]:
        found = [most] * end
        walk = _Walk(self, end, 1, ())
        for i in range(end - 1, -1, -1):
            accumulating = self.costs.accumulating(i, end)
            rounds = max(walk.rounds, self._rounds(self.at(i), end, walk.accumulating))
            if (accumulating, rounds) == (walk.accumulating, walk.rounds):
                walk.add(i)
            else:  # members behind `i` run by other steps, or in more rounds
                walk = _Walk(self, end, rounds, accumulating)
                for p in range(end - 1, i - 1, -1):
                    walk.add(p)
            found[i] = int(walk.live_bytes.max()) if walk.done else 0  # views take no step
            if walk.made_bytes.max() >= most and self._goes_on(walk, i, end):
                break
        return found

    def _rounds(self, makers: Iterable[int], end: int, summing: Sequence[int]) -> int:
        """Return the most steps of an operator that nothing before position `end` reads; 1 without any."""
        sinks = (o for o in makers if self.costs.first_reader[o] >= end)
        return max((self.tables.steps(o, ROW, o in summing).count for o in sinks), default=1)

    def _goes_on(self, walk: _Walk, i: int, end: int) -> bool:
        """Test whether operators before position `i` change nothing of the walk's steps and rounds."""
        before = (o for p in range(i) for o in self.at(p))
        same = self.costs.accumulating(0, end) == walk.accumulating
        return same and self._rounds(before, end, walk.accumulating) <= walk.rounds

    def at(self, i: int) -> list[int]:
        """Return the operator at position `i` and the sources run with the operator; none for a view."""
        o = self.costs.order[i]
        return [] if self.tables.graph.ops[o].view else [o, *self._sources.get(i, ())]

    def waits(self, reader: int, maker: int, sums: bool, maker_sums: bool) -> Units:
        """Return, by `reader`'s steps done, how many `maker` steps they waited for."""
        key = reader, maker, sums, maker_sums
        if key not in self._waits:
            waits = self.tables.waits(reader, maker, ROW, sums, maker_sums)
            self._waits[key] = np.concatenate(([0], np.maximum.accumulate(waits)))
        return self._waits[key]


class _Walk:
    """The members in [first, end) at the end of each round; index 0 is before the first round."""

    def __init__(self, bounds: RowBounds, end: int, rounds: int, accumulating: Sequence[int]) -> None:
        self.bounds, self.costs, self.tables = bounds, bounds.costs, bounds.tables
        self.end, self.rounds, self.accumulating = end, rounds, accumulating
        self.done: dict[int, Units] = {}  # steps by member
        self.dead: dict[int, Units] = {}  # first rows that no member reads again, by tensor
        self.live: dict[int, Units] = {}  # bytes by tensor
        across = sum(self.tables.tensor_rows[t] * self.tables.unit_bytes(t, ROW) for t in self.costs.across[end])
        self.live_bytes = np.full(rounds + 1, across, np.int64)
        # of tensors that the members make: more members change nothing
        self.made_bytes = np.zeros(rounds + 1, np.int64)
        for t in self.costs.across[end]:
            rows = self.tables.tensor_rows[t] * self.tables.unit_bytes(t, ROW)
            self.live[t] = np.full(rounds + 1, rows, np.int64)

    def steps(self, o: int) -> Steps:
        """Return the steps of a member."""
        return self.tables.steps(o, ROW, o in self.accumulating)

    def add(self, i: int) -> None:
        """Add position `i` in front."""
        touched = dict[int, None]()
        for o in self.bounds.at(i):
            done = self.done[o] = self._done(o)
            for read in self.steps(o).reads:
                touched[read.tensor] = None
                dead = read.keep[done]
                known = self.dead.get(read.tensor)
                self.dead[read.tensor] = dead if known is None else np.minimum(known, dead)
            touched |= dict.fromkeys(self.tables.written(o))
        for t in touched:
            live = self._live(t, i)
            known = self.live.get(t)
            self.live_bytes = self.live_bytes + (live if known is None else live - known)
            self.live[t] = live
            if self.costs.born[t] == i:
                self.made_bytes = self.made_bytes + live

    def _done(self, o: int) -> Units:
        """Return the steps member `o` has done."""
        asked = [
            self.bounds.waits(c, o, c in self.accumulating, o in self.accumulating)[self.done[c]]
            for t in self.tables.written(o)
            for c in self.tables.readers[t]
            if c in self.done
        ]
        if asked:
            return asked[0] if len(asked) == 1 else np.max(asked, axis=0)
        rounds = self.rounds
        return -(-self.steps(o).count * np.arange(rounds + 1) // rounds)

    def _live(self, t: int, first: int) -> Units:
        """Return the bytes of the rows of a tensor that are made and still to be read, for segment [first, end)."""
        rows, made = self.tables.tensor_rows[t], None
        if self.costs.born[t] >= first:
            writers = self.tables.writers(t)
            if len(writers) != 1:  # parts of rows: less than is live is known
                return np.zeros(self.rounds + 1, np.int64)
            output = self.tables.written(writers[0]).index(t)
            made = self.steps(writers[0]).made[output][self.done[writers[0]]]
        if self.costs.last[t] >= self.end:
            live = np.full(self.rounds + 1, rows) if made is None else made
        elif t in self.dead:
            live = np.maximum((rows if made is None else made) - self.dead[t], 0)
        else:
            live = np.zeros(self.rounds + 1, np.int64)
        return live * self.tables.unit_bytes(t, ROW)
