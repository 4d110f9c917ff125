"""What a segment costs: every byte that is live while it runs.

For positions `[i, j)` of an execution order: tensors made before and still wanted, whole; tensors made inside and
wanted later, whole; tensors that live inside alone, their rings; the driver's counters; accumulators; the largest
scratch. (REFERENCES: M(i,j) = |X_i| + |X_(j+1)| + sum B_l + skips; here with the rings exact, and counters and
scratch besides.) Where a segment's output may follow its dying input through the same memory, what the two can share
is taken off. An interleaving is a number: 0 for rows, n > 0 for n pixels a step, -n for stripes of n columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_cascade.cascading.flow import Flow, goes_by_pixels
from tvm_cascade.cascading.heights import Heights
from tvm_cascade.cascading.overlap import Overlaps, Pair
from tvm_cascade.cascading.simulate import Cascade
from tvm_cascade.cascading.stripes import Striper, Stripes, widths_of

COUNTER_BYTES = 4  # one int32 step counter an operator


def aligned(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@dataclass(frozen=True, slots=True)
class Settings:
    """What the planner may use."""

    alignment: int = 4  # bytes, of every block
    overlap: bool = False  # outputs behind dying inputs
    in_place: bool = False  # element-wise operators over their input
    rings_follow: bool = True  # with `overlap`, rolling buffers behind dying inputs too


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
        self._traces: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}
        self._shared: dict[tuple[int, int, int], int] = {}
        self.striper = Striper(flow) if like is None else like.striper
        self._stripes: dict[tuple[int, int, int], Stripes | None] = {}
        self._members: dict[tuple[int, int], tuple[int, ...]] = {}

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
        if (i, j) not in self._members:
            sources = [self.flow.source(t) for t in sorted(self.flow.streamed, reverse=True) if i <= self.born[t] < j]
            working = [o for o in sorted(self.order[i:j]) if not self.flow.graph.ops[o].view]
            self._members[i, j] = (*sources, *working)
        return self._members[i, j]

    def one_sink(self, i: int, j: int) -> bool:
        """Whether all that runs in `[i, j)` leads to its last operator."""
        members = self.members(i, j)
        inside = set(members)
        return all(any(c in inside for t in self.flow.outputs(o) for c in self.flow.readers[t]) for o in members[:-1])

    def held(self, i: int, j: int, chunk: int) -> dict[int, int]:
        """Units held of every root made in `[i, j)`: all where it is wanted later, else the ring's. Rows in stripes."""
        members = self.members(i, j)
        chunk = max(chunk, 0)
        made = [t for o in members for t in self.flow.outputs(o)]
        inner = [t for t in made if self.last[t] < j]
        rings = self.rings.of(members, inner, chunk)
        return {t: rings.get(t, self.flow.units(t, chunk)) for t in made}

    def state_bytes(self, i: int, j: int) -> int:
        """Step counters of the driver: none where a single operator runs whole."""
        count = len(self.members(i, j))
        return COUNTER_BYTES * count if count > 1 else 0

    def scratch_bytes(self, i: int, j: int, chunk: int) -> int:
        """The largest scratch of an operator; by pixels that of gathering a step's window counts."""
        stripes = self.stripes(i, j, chunk)
        if stripes is None:
            return max((self._scratch(o, chunk) for o in self.order[i:j]), default=0)
        wide = {o: max(r[o][1] - r[o][0] for r in stripes.ranges) for o in self.members(i, j)}
        return max(self._scratch(o, n) for o, n in wide.items())

    def stripes(self, i: int, j: int, chunk: int) -> Stripes | None:
        """`[i, j)` in stripes of `-chunk` columns; None where it goes by rows or pixels, or cannot be striped."""
        key = (i, j, chunk)
        if chunk >= 0:
            return None
        if key not in self._stripes:
            members = self.members(i, j)
            leaving = [t for o in members for t in self.flow.outputs(o) if self.last[t] >= j]
            self._stripes[key] = self.striper.of(members, self.accumulating(i, j), leaving, -chunk)
        return self._stripes[key]

    def stripe_chunks(self, i: int, j: int) -> tuple[int, ...]:
        """Interleavings of `[i, j)` in stripes, those of least work first."""
        members = self.members(i, j)
        columns = self.striper.sink_columns(members, self.accumulating(i, j)) if members else 0
        tried = [-w for w in widths_of(columns)] if columns > 1 else []
        return tuple(c for c in tried if self.stripes(i, j, c) is not None)

    def extra_macs(self, i: int, j: int, chunk: int) -> int:
        """Multiply-accumulates of `[i, j)` beyond the network's."""
        stripes = self.stripes(i, j, chunk)
        return 0 if stripes is None else stripes.extra_macs

    def _scratch(self, op: int, chunk: int) -> int:
        node = self.flow.graph.ops[op]
        if not chunk or node.patch_bytes == (0, 0) or not goes_by_pixels(self.flow.graph, op):
            return node.scratch_bytes
        n = min(chunk, self.flow.graph.tensors[node.outputs[0]].columns)
        return node.patch_bytes[0] + n * node.patch_bytes[1] + node.scratch_bytes

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
            across = [flow.bytes[t] for t in self._across(i)]
            inside = [self.bytes_held(i, j, t, units, chunk) for t, units in self.held(i, j, chunk).items()]
            sums = [flow.graph.ops[o].accumulator_bytes for o in self.accumulating(i, j)]
            self._blocks[key] = (*across, *inside, *sums, self.state_bytes(i, j), self.scratch_bytes(i, j, chunk))
        return self._blocks[key]

    def bytes_held(self, i: int, j: int, tensor: int, units: int, chunk: int) -> int:
        """Bytes of the block of a tensor of which `units` are held."""
        stripes = self.stripes(i, j, chunk)
        if stripes is None or tensor not in stripes.widths:
            return units * self.flow.unit_bytes(tensor, max(chunk, 0))
        return units * stripes.widths[tensor] * self.flow.unit_bytes(tensor, 1)

    def cost(self, i: int, j: int, chunk: int = 0) -> int:
        """Bytes live while `[i, j)` runs, rounded up block by block."""
        return sum(aligned(b, self.settings.alignment) for b in self.blocks(i, j, chunk)) - self.shared(i, j, chunk)

    def exact_cost(self, i: int, j: int, chunk: int = 0) -> int:
        """The same without rounding: what no arena can go below."""
        return sum(self.blocks(i, j, chunk)) - self.shared(i, j, chunk)

    def _dying(self, i: int, j: int) -> list[int]:
        """Roots from before whose last reader is in `[i, j)`."""
        return [t for t, b in self.born.items() if b < i <= self.last[t] < j]

    def most_shared(self, i: int, j: int) -> int:
        """Bytes that anything made in `[i, j)` could share with dying inputs at the very most, in any interleaving."""
        if not self.settings.overlap:
            return 0
        return sum(self.flow.bytes[t] for t in self._dying(i, j))

    def pairs(self, i: int, j: int, chunk: int) -> tuple[Pair, ...]:
        """Outputs and rings of `[i, j)` that may follow an input that dies in it, with the distance to keep."""
        if not self.settings.overlap or chunk < 0:
            return ()
        key = (i, j, chunk)
        if key not in self._pairs:
            rings = self.settings.rings_follow
            held = self.held(i, j, chunk).items()
            made = {t: u for t, u in held if t not in self.flow.streamed and (rings or self.last[t] >= j)}
            self._pairs[key] = self.overlaps.pairs(self.members(i, j), self._dying(i, j), made, chunk)
        return self._pairs[key]

    def shared(self, i: int, j: int, chunk: int) -> int:
        """The most bytes that outputs, rings and dying inputs of `[i, j)` can have in common.

        Rings cover the start of an input X: packed by reach, f bytes at most. An output Y that must stay d behind
        covers at most |Y| - max(d, 0) bytes, and leaves min(f, -d) to the rings where d < 0. Inputs do not overlap, so
        what a writer has in common with all of them is at most the writer.
        """
        key = (i, j, chunk)
        if key not in self._shared:
            by_reader: dict[int, list[Pair]] = {}
            covered: dict[int, int] = {}
            for pair in self.pairs(i, j, chunk):
                by_reader.setdefault(pair.reader, []).append(pair)
                covered[pair.writer] = min(pair.size, covered.get(pair.writer, 0) + max(pair.reach, 0))
            taken = sum(self._shared_with(t, pairs, j) for t, pairs in by_reader.items())
            self._shared[key] = min(taken, sum(covered.values()))
        return self._shared[key]

    def _shared_with(self, reader: int, pairs: Sequence[Pair], j: int) -> int:
        whole = self.flow.bytes[reader]
        front = 0
        for pair in sorted(pairs, key=lambda p: (p.reach, p.writer)):
            if self.last[pair.writer] < j:
                front = min(front + pair.size, pair.reach)
        outputs = [p for p in pairs if self.last[p.writer] >= j]
        if len(outputs) == 1:
            only = outputs[0]
            return min(whole, max(front, only.size + min(front, -only.distance)))
        return min(whole, front + sum(min(p.size, p.reach) for p in outputs))

    def trace(self, i: int, j: int, chunk: int) -> tuple[int, ...]:
        """The execution order of `[i, j)`, step by step."""
        key = (self.members(i, j), max(chunk, 0))
        if key not in self._traces:
            self._traces[key] = Cascade(self.flow, *key).trace
        return self._traces[key]

    def calls(self, i: int, j: int, chunk: int) -> int:
        """Kernel calls of `[i, j)`: what a finer interleaving costs in time."""
        cascade = Cascade(self.flow, self.members(i, j), max(chunk, 0))
        stripes = self.stripes(i, j, chunk)
        return sum(cascade.steps(o).count for o in cascade.members) * (1 if stripes is None else len(stripes.ranges))

    def _across(self, i: int) -> list[int]:
        """Roots made before position `i` and wanted at it or later."""
        return [t for t, b in self.born.items() if b < i and self.last[t] >= i]
