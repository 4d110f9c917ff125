"""What a segment costs: every byte that is live while it runs.

For positions `[i, j)` of an execution order: tensors made before and still wanted, whole; tensors made inside and
wanted later, whole; tensors that live inside alone, their rings; the driver's counters; accumulators; the largest
scratch. (REFERENCES: M(i,j) = |X_i| + |X_(j+1)| + sum B_l + skips; here with the rings exact, and counters and
scratch besides.) Where a segment's output may follow its dying input through the same memory, what the two can share
is taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_cascade.cascading.flow import Flow
from tvm_cascade.cascading.heights import Heights
from tvm_cascade.cascading.overlap import Overlaps, Pair
from tvm_cascade.cascading.simulate import Cascade

COUNTER_BYTES = 4  # one int32 step counter an operator


def aligned(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@dataclass(frozen=True, slots=True)
class Settings:
    """What the planner may use."""

    alignment: int = 4  # bytes, of every block
    overlap: bool = False  # outputs behind dying inputs
    in_place: bool = False  # element-wise operators over their input


class SegmentCosts:
    """Costs of all segments of one execution order."""

    def __init__(self, flow: Flow, order: Sequence[int], settings: Settings, like: SegmentCosts | None = None) -> None:
        self.flow, self.order, self.settings = flow, tuple(order), settings
        self.place = {op: k for k, op in enumerate(self.order)}
        self.born, self.last = self._lives()
        self.rings = Heights(flow) if like is None else like.rings
        self.overlaps = Overlaps(flow, settings.in_place) if like is None else like.overlaps
        self._blocks: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self._pairs: dict[tuple[int, int, int], tuple[Pair, ...]] = {}

    def _lives(self) -> tuple[dict[int, int], dict[int, int]]:
        """For every root the position of its maker and of its last reader.

        Inputs are made at -1, streamed ones at their first reader; outputs are read at the end.
        """
        flow, end = self.flow, len(self.order)
        born: dict[int, int] = {}
        last: dict[int, int] = {}
        for t, root in enumerate(flow.roots):
            if root.tensor == t:
                maker = flow.graph.producer[t]
                readers = [self.place[c] for c in flow.readers[t]]
                born[t] = -1 if maker is None else self.place[maker]
                if t in flow.streamed:
                    born[t] = min(readers, default=0)
                last[t] = end if t in flow.leaves else max([*readers, born[t], 0])
        return born, last

    def members(self, i: int, j: int) -> tuple[int, ...]:
        """What runs in `[i, j)`: sources of streamed inputs, then operators, by index; views left out.

        Order within a segment is the demand's business, so that a segment costs the same whatever the order it came in.
        """
        sources = [self.flow.source(t) for t in sorted(self.flow.streamed, reverse=True) if i <= self.born[t] < j]
        return (*sources, *(o for o in sorted(self.order[i:j]) if not self.flow.graph.ops[o].view))

    def held(self, i: int, j: int, chunk: int) -> dict[int, int]:
        """Units held of every root made in `[i, j)`: all where it is wanted later, else the ring's."""
        members = self.members(i, j)
        made = [t for o in members for t in self.flow.outputs(o)]
        inner = [t for t in made if self.last[t] < j]
        rings = self.rings.of(members, inner, chunk)
        return {t: rings.get(t, self.flow.units(t, chunk)) for t in made}

    def state_bytes(self, i: int, j: int) -> int:
        """Step counters of the driver: none where a single operator runs whole."""
        count = len(self.members(i, j))
        return COUNTER_BYTES * count if count > 1 else 0

    def scratch_bytes(self, i: int, j: int) -> int:
        return max((self.flow.graph.ops[o].scratch_bytes for o in self.order[i:j]), default=0)

    def accumulating(self, i: int, j: int) -> tuple[int, ...]:
        """Operators of `[i, j)` that sum up their input as it comes."""
        members = self.members(i, j)
        inside = frozenset(members)
        return tuple(o for o in members if self.flow.accumulates(o, inside))

    def blocks(self, i: int, j: int, chunk: int) -> tuple[int, ...]:
        """Bytes of every block that is live while `[i, j)` runs."""
        key = (i, j, chunk)
        if key not in self._blocks:
            flow = self.flow
            across = [flow.graph.tensors[t].bytes for t in self._across(i)]
            inside = [flow.unit_bytes(t, chunk) * units for t, units in self.held(i, j, chunk).items()]
            sums = [flow.graph.ops[o].accumulator_bytes for o in self.accumulating(i, j)]
            self._blocks[key] = (*across, *inside, *sums, self.state_bytes(i, j), self.scratch_bytes(i, j))
        return self._blocks[key]

    def cost(self, i: int, j: int, chunk: int = 0) -> int:
        """Bytes live while `[i, j)` runs, rounded up block by block."""
        return sum(aligned(b, self.settings.alignment) for b in self.blocks(i, j, chunk)) - self.shared(i, j, chunk)

    def exact_cost(self, i: int, j: int, chunk: int = 0) -> int:
        """The same without rounding: what no arena can go below."""
        return sum(self.blocks(i, j, chunk)) - self.shared(i, j, chunk)

    def _dying_and_rising(self, i: int, j: int) -> tuple[list[int], list[int]]:
        """Roots whose last reader is in `[i, j)`, and roots made in it that outlive it."""
        dying = [t for t, b in self.born.items() if b < i <= self.last[t] < j]
        rising = [t for t, b in self.born.items() if i <= b < j <= self.last[t] and t not in self.flow.streamed]
        return dying, rising

    def most_shared(self, i: int, j: int) -> int:
        """Bytes that outputs and dying inputs of `[i, j)` could share at the very most, in any interleaving."""
        if not self.settings.overlap:
            return 0
        tensors = self.flow.graph.tensors
        dying, rising = self._dying_and_rising(i, j)
        return min(sum(tensors[t].bytes for t in dying), sum(tensors[t].bytes for t in rising))

    def pairs(self, i: int, j: int, chunk: int) -> tuple[Pair, ...]:
        """Outputs of `[i, j)` that may follow an input that dies in it, with the distance to keep."""
        if not self.settings.overlap:
            return ()
        key = (i, j, chunk)
        if key not in self._pairs:
            dying, rising = self._dying_and_rising(i, j)
            self._pairs[key] = self.overlaps.pairs(self.members(i, j), dying, rising, chunk)
        return self._pairs[key]

    def shared(self, i: int, j: int, chunk: int) -> int:
        """The most bytes that outputs and dying inputs of `[i, j)` can have in common."""
        tensors = self.flow.graph.tensors
        by_writer: dict[int, int] = {}
        for pair in self.pairs(i, j, chunk):
            both = min(tensors[pair.reader].bytes, tensors[pair.writer].bytes)
            bytes_shared = max(0, min(both, tensors[pair.writer].bytes - pair.distance))
            by_writer[pair.writer] = by_writer.get(pair.writer, 0) + bytes_shared
        total = sum(min(tensors[t].bytes, b) for t, b in by_writer.items())
        return min(total, sum(tensors[t].bytes for t in {p.reader for p in self.pairs(i, j, chunk)}))

    def calls(self, i: int, j: int, chunk: int) -> int:
        """Kernel calls of `[i, j)`: what a finer interleaving costs in time."""
        cascade = Cascade(self.flow, self.members(i, j), chunk)
        return sum(cascade.steps(o).count for o in cascade.members)

    def _across(self, i: int) -> list[int]:
        """Roots made before position `i` and wanted at it or later."""
        return [t for t, b in self.born.items() if b < i and self.last[t] >= i]
