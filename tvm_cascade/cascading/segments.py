"""What a segment costs: every byte that is live while it runs.

For positions `[i, j)` of an execution order: tensors made before and still wanted, whole; tensors made inside and
wanted later, whole; tensors that live inside alone, their rings; the driver's counters; accumulators; the largest
scratch. (REFERENCES: M(i,j) = |X_i| + |X_(j+1)| + sum B_l + skips; here with the rings exact, and counters and
scratch besides.) Where a segment's output may follow its dying input through the same memory, what the two can share
is taken off. An interleaving is a number: 0 for rows, n > 0 for n pixels a step, below 0 for a
form of stripes (`stripes.interleaving`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_cascade.cascading.flow import Flow, goes_by_pixels
from tvm_cascade.cascading.heights import Heights
from tvm_cascade.cascading.overlap import Overlaps, Pair
from tvm_cascade.cascading.simulate import Cascade
from tvm_cascade.cascading.stripes import Forms, Striper, Stripes

COUNTER_BYTES = 4  # one int32 step counter an operator
SCRATCH_BYTES, SCRATCH_SHARE = 512, 100  # steps by pixels: so many bytes of scratch, or a hundredth of the arena


def aligned(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@dataclass(frozen=True, slots=True)
class Settings:
    """What the planner may use."""

    alignment: int = 4  # bytes, of every block
    overlap: bool = False  # outputs behind dying inputs
    in_place: bool = False  # element-wise operators over their input, also where nothing else overlaps
    rings_follow: bool = True  # with `overlap`, rolling buffers behind dying inputs too


@dataclass(frozen=True, slots=True)
class Striped:
    """What a segment costs in one form of stripes."""

    interleaving: int
    bytes: int  # rounded up block by block
    exact: int
    extra_macs: int


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
        self._striped: dict[tuple[int, int], tuple[Striped, ...]] = {}
        self._members: dict[tuple[int, int], tuple[int, ...]] = {}
        self._taller: dict[int, SegmentCosts] = {self.flow.height: self}

    def in_steps_of(self, rows: int) -> SegmentCosts:
        """The same where steps by rows make so many."""
        if rows not in self._taller:
            flow = Flow(self.flow.graph, self.flow.streamed, self.flow.accumulators, rows)
            self._taller[rows] = SegmentCosts(flow, self.order, self.settings)
        return self._taller[rows]

    def _lives(self) -> tuple[dict[int, int], dict[int, int]]:
        """For every root the position of its (first) maker and of its last reader.

        Inputs are made at -1, streamed ones at their first reader; outputs are read at the end.
        """
        flow, end = self.flow, len(self.order)
        born: dict[int, int] = {}
        last: dict[int, int] = {}
        for t, root in enumerate(flow.roots):
            if root.tensor == t:
                readers = [self.place[c] for c in flow.readers[t]]
                if t in flow.streamed:
                    born[t] = min(readers, default=0)
                else:
                    born[t] = min((self.place[m] for m in flow.writers(t)), default=-1)
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
        return all(any(c in inside for t in self.flow.written(o) for c in self.flow.readers[t]) for o in members[:-1])

    def held(self, i: int, j: int, chunk: int) -> dict[int, int]:
        """Units held of every root made in `[i, j)`: all where it is wanted later, else the ring's. Rows in stripes."""
        members = self.members(i, j)
        chunk = max(chunk, 0)
        made = dict.fromkeys(t for o in members for t in self.flow.written(o) if self.born[t] >= i)
        inner = [t for t in made if self.last[t] < j]
        rings = self.rings.of(members, inner, chunk)
        return {t: rings.get(t, self.flow.units(t, chunk)) for t in made}

    def over(self, i: int, j: int) -> int | None:
        """The operator of `[i, j)` that runs over its dying input, if that is all that runs."""
        members, flow = self.members(i, j), self.flow
        if not self.settings.in_place or len(members) != 1 or members[0] < 0:
            return None
        node = flow.graph.ops[members[0]]
        own = all(flow.roots[t].tensor == t and t not in flow.streamed for t in (*node.inputs, *node.outputs))
        return node.index if node.over_bytes and own and node.inputs[0] in self._dying(i, j) else None

    def state_bytes(self, i: int, j: int) -> int:
        """Step counters of the driver: none where a single operator runs whole."""
        count = len(self.members(i, j))
        return COUNTER_BYTES * count if count > 1 else 0

    def scratch_bytes(self, i: int, j: int, chunk: int) -> int:
        """The largest scratch of an operator; by pixels that of locating a step's window counts."""
        over = self.over(i, j)
        if over is not None:
            return self.flow.graph.ops[over].over_bytes
        stripes = self.stripes(i, j, chunk)
        by_columns = 0 if stripes is None else stripes.scratch
        return max((by_columns, *(self._scratch(o, chunk) for o in self.order[i:j])))

    def little_scratch(self, i: int, j: int, chunk: int) -> bool:
        """Whether locating windows takes `[i, j)` no more than `SCRATCH_BYTES` or that share of the arena."""
        scratch = self.scratch_bytes(i, j, chunk)
        if not chunk or scratch <= SCRATCH_BYTES or scratch == self.scratch_bytes(i, j, 0):
            return True
        return scratch * SCRATCH_SHARE <= self.exact_cost(i, j, chunk)

    def stripes(self, i: int, j: int, chunk: int) -> Stripes | None:
        """`[i, j)` in the stripes that a negative `chunk` names; None where it goes by rows or pixels, or cannot be striped."""
        key = (i, j, chunk)
        if chunk >= 0:
            return None
        if key not in self._stripes:
            forms = self._forms(i, j)
            self._stripes[key] = None if forms is None else forms.stripes(chunk)
        return self._stripes[key]

    def _forms(self, i: int, j: int) -> Forms | None:
        members = self.members(i, j)
        if not members or any(self.last[t] >= j for t in self._streamed(members)):
            return None
        leaving = [t for o in members for t in self.flow.written(o) if self.last[t] >= j]
        return self.striper.forms(members, self.accumulating(i, j), leaving)

    def _streamed(self, members: Sequence[int]) -> list[int]:
        return [-1 - o for o in members if o < 0]

    def striped(self, i: int, j: int) -> tuple[Striped, ...]:
        """The forms of `[i, j)` in stripes that no other beats in bytes and work, those of least work first."""
        key = (i, j)
        if key not in self._striped:
            forms = self._forms(i, j)
            self._striped[key] = () if forms is None else self._undominated(i, j, forms)
        return self._striped[key]

    def _undominated(self, i: int, j: int, forms: Forms) -> tuple[Striped, ...]:
        flow, unit = self.flow, self.settings.alignment
        rows = self.held(i, j, 0)
        plain = [b for t, n in rows.items() if t not in forms.widths for b in [n * flow.unit_bytes(t, 0)]]
        plain += [*self._around(i, j), self.state_bytes(i, j)]
        scratch = np.maximum(forms.scratch, max(self._scratch(o, -1) for o in self.order[i:j]))
        sizes = [scratch]
        sizes += [forms.widths[t] * (rows[t] * flow.unit_bytes(t, 1)) for t in forms.widths]
        sizes += [forms.kept[t] * (flow.rows[t] * flow.unit_bytes(t, 1)) for t in forms.kept]
        exact = sum(plain) + sum(sizes) + np.zeros_like(forms.extra_macs)
        rounded = sum(aligned(b, unit) for b in plain) + sum(-(-b // unit) * unit for b in sizes) + np.zeros_like(exact)
        names = np.array(forms.interleavings, np.int64)
        found = zip(*(a.ravel().tolist() for a in (forms.extra_macs, rounded, exact, -names)), strict=True)
        kept: list[Striped] = []
        made = np.all(
            [np.broadcast_to(w > 0, exact.shape) for w in forms.widths.values()] or [exact >= 0], axis=0
        ).ravel()
        for extra, size, least, name in sorted(f for f, all_made in zip(found, made.tolist(), strict=True) if all_made):
            if not kept or size < kept[-1].bytes or least < kept[-1].exact:
                kept.append(Striped(-name, size, least, extra))
        return tuple(kept)

    def _around(self, i: int, j: int) -> list[int]:
        """Bytes of tensors that live across `[i, j)`, and of its sums."""
        across = [self.flow.bytes[t] for t in self._across(i)]
        return [*across, *(self.flow.graph.ops[o].accumulator_bytes for o in self.accumulating(i, j))]

    def extra_macs(self, i: int, j: int, chunk: int) -> int:
        """Multiply-accumulates of `[i, j)` beyond the network's."""
        stripes = self.stripes(i, j, chunk)
        return 0 if stripes is None else stripes.extra_macs

    def _scratch(self, op: int, chunk: int) -> int:
        node = self.flow.graph.ops[op]
        if chunk < 0 and node.grouped is not None:
            return 0  # `Stripes.scratch`
        if chunk <= 0 or node.patch_bytes == (0, 0) or not goes_by_pixels(self.flow.graph, op):
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
            inside = [self.bytes_held(i, j, t, units, chunk) for t, units in self.held(i, j, chunk).items()]
            stripes = self.stripes(i, j, chunk)
            kept = (
                [] if stripes is None else [n * flow.rows[t] * flow.unit_bytes(t, 1) for t, n in stripes.kept.items()]
            )
            around = self._around(i, j)
            self._blocks[key] = (*around, *inside, *kept, self.state_bytes(i, j), self.scratch_bytes(i, j, chunk))
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
        if not (self.settings.overlap or self.settings.in_place):
            return 0
        return sum(self.flow.bytes[t] for t in self._dying(i, j))

    def pairs(self, i: int, j: int, chunk: int) -> tuple[Pair, ...]:
        """Outputs and rings of `[i, j)` that may follow an input that dies in it, with the distance to keep."""
        if chunk < 0 or not (self.settings.overlap or self.settings.in_place):
            return ()
        key = (i, j, chunk)
        op = self.over(i, j)
        if op is not None:
            node = self.flow.graph.ops[op]
            self._pairs[key] = (Pair(node.inputs[0], node.outputs[0], 0, self.flow.bytes[node.outputs[0]], True),)
        if key not in self._pairs:
            rings = self.settings.rings_follow
            held = self.held(i, j, chunk).items()
            made = {t: u for t, u in held if t not in self.flow.streamed and (rings or self.last[t] >= j)}
            found = self.overlaps.pairs(self.members(i, j), self._dying(i, j), made, chunk)
            self._pairs[key] = tuple(p for p in found if self.settings.overlap or self.overlaps.overwrites(p))
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
        if (over := self.over(i, j)) is not None:
            return (over,)
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
