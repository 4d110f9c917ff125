"""Memory cost of a segment: the bytes live during the run.

For positions `[i, j)` of an execution order: tensors produced before and still needed, whole; tensors produced inside
and needed later, whole; rings of tensors that live only inside; the driver's counters; accumulators; the largest
scratch. (REFERENCES: M(i,j) = |X_i| + |X_(j+1)| + sum B_l + skips; here with exact rings, and with counters and
scratch added.) Bytes that an output or ring can share with a dying input (`overlap`) are subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from weakref import WeakValueDictionary

import numpy as np

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.cached_method import cached_method
from tvm_cascade.cascading.geometry import outermost
from tvm_cascade.cascading.interleaving import BY_ROWS, Interleaving
from tvm_cascade.cascading.options import Settings
from tvm_cascade.cascading.order_bounds import OrderBounds, RingBounds
from tvm_cascade.cascading.overlap import Overlaps, Pair, shared_bytes
from tvm_cascade.cascading.ring_sizes import RingSizes
from tvm_cascade.cascading.row_tables import OperatorScratch
from tvm_cascade.cascading.segment_structures import SegmentStructures, by_structure
from tvm_cascade.cascading.simulate import Cascade
from tvm_cascade.cascading.stripes import Forms, Striped, Striper, Stripes
from tvm_cascade.graph import PIXEL, ROW, Tile

_STRIPED = Interleaving(stripe_columns=1)
SCRATCH_BYTES, SCRATCH_SHARE = 512, 100  # scratch limit of pixel steps: 512 bytes, or a hundredth of the live bytes
_SIGNAL_SHARE = 4  # the share where maps have one row, of which a window that wraps around its ring is a large part


def aligned(size: int, unit: int) -> int:
    """Round `size` up to a multiple of `unit`."""
    return -(-size // unit) * unit


class SegmentCosts:
    """Costs of an order's segments [i, j); i and j are positions in the order.

    `like` holds the costs for another order of the same graph; tables independent of the order are shared.
    """

    def __init__(
        self, tables: AccessTables, order: Sequence[int], settings: Settings, like: SegmentCosts | None = None
    ) -> None:
        self.tables, self.order, self.settings = tables, tuple(order), settings
        self.place = {op: k for k, op in enumerate(self.order)}
        self.born, self.last = self._lives()
        self.rings = RingSizes(tables) if like is None else like.rings
        self.overlaps = Overlaps(tables, settings.in_place) if like is None else like.overlaps
        self.striper = Striper(tables) if like is None else like.striper
        self.scratch = OperatorScratch(tables) if like is None else like.scratch
        self._ring_bounds = RingBounds(tables) if like is None else like._ring_bounds
        # those of other orders and settings, as long as something else keeps them
        self._kin = WeakValueDictionary[object, SegmentCosts]() if like is None else like._kin
        self._kin.setdefault((self.order, settings), self)
        self.structures = self._structures(settings)

    def in_order(self, order: Sequence[int]) -> SegmentCosts:
        """Return the costs for another order of the same graph; equal calls return the same object."""
        known = self._kin.get((tuple(order), self.settings))
        return SegmentCosts(self.tables, order, self.settings, self) if known is None else known

    @cached_property
    def bounds(self) -> OrderBounds:
        """Lower bounds of the costs."""
        return OrderBounds(self._ring_bounds, self.striper, self.order, self.born, self.last)

    def without_ring_constraints(self) -> SegmentCosts:
        """Copy the costs for rings that do not follow dying inputs; tables independent of this are shared."""
        settings = replace(self.settings, rings_follow=False)
        known = self._kin.get((self.order, settings))
        if known is None:
            known = self._kin[self.order, settings] = copy(self)
            known.settings, known.structures = settings, self._structures(settings)
            for name in ("pairs", "shared", "little_scratch"):  # caches of results that depend on it
                vars(known).pop(name, None)
        return known

    def _structures(self, settings: Settings) -> SegmentStructures:
        return SegmentStructures(self.tables, self.order, (self.born, self.last), settings)

    def _lives(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return, for every root, the positions of the first producer (birth) and the last reader.

        Graph inputs are born at -1, streamed inputs at their first reader; graph outputs are read at the end.
        """
        tables, end = self.tables, len(self.order)
        born: dict[int, int] = {}
        last: dict[int, int] = {}
        for t, root in enumerate(tables.roots):
            if root.tensor == t:
                readers = [self.place[c] for c in tables.readers[t]]
                if t in tables.streamed:
                    born[t] = min(readers, default=0)
                else:
                    born[t] = min((self.place[m] for m in tables.writers(t)), default=-1)
                last[t] = end if t in tables.leaves else max([*readers, born[t], 0])
        return born, last

    @cached_method
    def members(self, i: int, j: int) -> tuple[int, ...]:
        """Return the sources of streamed inputs and then the operators in [i, j), by index; views are left out.

        Steps inside a segment are driven by demand, so the cost is independent of the operators' order.
        """
        sources = [self.tables.source(t) for t in sorted(self.tables.streamed, reverse=True) if i <= self.born[t] < j]
        return (*sources, *(o for o in sorted(self.order[i:j]) if not self.tables.graph.ops[o].view))

    def one_sink(self, i: int, j: int) -> bool:
        """Test whether the last operator of [i, j) is the only sink."""
        return sum(self.first_reader[o] >= j for o in self.members(i, j)) <= 1

    def along_signal(self, i: int, j: int) -> bool:
        """Test whether all maps written in [i, j) have a single row: steps of whole rows then keep no ring."""
        return all(self.tables.tensor_rows[t] == 1 for o in self.members(i, j) for t in self.tables.written(o))

    @cached_property
    def first_reader(self) -> dict[int, int]:
        """Return, for each operator and source, the position of the first reading operator; the end for none."""
        tables, end = self.tables, len(self.order)
        makers = (*self.order, *(tables.source(t) for t in tables.streamed))
        return {
            o: min((self.place[c] for t in tables.written(o) for c in tables.readers[t]), default=end) for o in makers
        }

    def held(self, i: int, j: int, interleaving: Interleaving) -> dict[int, int]:
        """Return the units stored of every root produced in [i, j): all if needed later, else the ring's.

        In stripes units are rows.
        """
        return self._held(i, j, interleaving.tile)

    @cached_method
    def _held(self, i: int, j: int, tile: Tile) -> dict[int, int]:
        held, alone = dict[int, int](), list[int]()
        for t in self._produced(i, j):
            held[t] = 0
            if self.last[t] >= j:
                held[t] = self.tables.units(t, tile)
                continue
            first, last = self._ring_span(t)
            if i <= first and last < j:
                held[t] = self.rings.anywhere(t, tile)
            else:
                alone.append(t)
        return held | self.rings.simulated(self.members(i, j), tile, alone) if alone else held

    @cached_method
    def _produced(self, i: int, j: int) -> tuple[int, ...]:
        """Return the roots produced in [i, j)."""
        made = (t for o in self.members(i, j) for t in self.tables.written(o) if self.born[t] >= i)
        return tuple(dict.fromkeys(made))

    @cached_method
    def _ring_span(self, tensor: int) -> tuple[int, int]:
        """Return the first and last position of operators that determine a tensor's ring size; before all if unknown."""
        needed = self.rings.needed(tensor)
        if needed is None:
            return -1, -1
        places = [self.place[o] if o >= 0 else self.born[-1 - o] for o in needed]
        return min(places), max(places)

    @cached_method
    def in_place(self, i: int, j: int) -> int | None:
        """Return the operator of [i, j) if that runs alone and overwrites the dying input, or a state; else None."""
        members, tables = self.members(i, j), self.tables
        if len(members) == 1 and members[0] >= 0 and tables.graph.ops[members[0]].target is not None:
            return members[0]
        if not self.settings.in_place or len(members) != 1 or members[0] < 0:
            return None
        node = tables.graph.ops[members[0]]
        own = all(map(self._is_whole, node.inputs)) and all(tables.roots[t].tensor == t for t in node.outputs)
        able = (
            node.kernels.in_place_workspace_bytes and own and tables.roots[node.inputs[0]].tensor in self._dying(i, j)
        )
        return node.index if able else None

    def _is_whole(self, tensor: int) -> bool:
        """Test whether a tensor fills its memory, as root or as a view, and is not streamed."""
        root, sizes = self.tables.roots[tensor], self.tables.tensor_bytes
        return root.byte_offset == 0 and sizes[root.tensor] == sizes[tensor] and root.tensor not in self.tables.streamed

    def state_bytes(self, i: int, j: int, tile: Tile) -> int:
        """Return the bytes of the driver's step counters; 0 for a segment with a single operator."""
        return self.tables.counter_bytes(self.members(i, j), tile)

    def scratch_bytes(self, i: int, j: int, interleaving: Interleaving) -> int:
        """Return the largest operator scratch in [i, j), pixel tiles' workspace included."""
        in_place = self.in_place(i, j)
        if in_place is not None:
            return self.tables.graph.ops[in_place].kernels.in_place_workspace_bytes
        stripes, largest = self.stripes(i, j, interleaving), self._largest_scratch(i, j, interleaving)
        return largest if stripes is None else max(stripes.scratch, largest)

    @cached_method
    def little_scratch(self, i: int, j: int, interleaving: Interleaving) -> bool:
        """Test whether pixel steps need little scratch: no more than rows do, `SCRATCH_BYTES`, or a share of the live
        bytes.
        """
        if interleaving == BY_ROWS:
            return True
        scratch = self.scratch_bytes(i, j, interleaving)
        if scratch <= SCRATCH_BYTES or scratch == self.scratch_bytes(i, j, BY_ROWS):
            return True
        share = _SIGNAL_SHARE if self.along_signal(i, j) else SCRATCH_SHARE
        most, least = self.exact_apart(i, j, interleaving), scratch * share
        return least <= most and (
            least <= most - self.most_shared(i, j) or least <= self.exact_cost(i, j, interleaving)
        )

    @cached_method
    def stripes(self, i: int, j: int, interleaving: Interleaving) -> Stripes | None:
        """Return the stripes of [i, j); None if `interleaving` has none, or the segment cannot be striped."""
        forms = self._forms(i, j) if interleaving.striped else None
        return None if forms is None else forms.stripes(interleaving)

    def _forms(self, i: int, j: int) -> Forms | None:
        """Return all striped forms of [i, j); None if stripes are impossible."""
        members = self.members(i, j)
        if not members or any(self.last[-1 - o] >= j for o in members if o < 0):
            return None  # a streamed input is read again by a later segment
        leaving = [t for o in members for t in self.tables.written(o) if self.last[t] >= j]
        return self.striper.forms(members, self.accumulating(i, j), leaving)

    @cached_method
    def striped(self, i: int, j: int, narrowest: int = 1) -> tuple[Striped, ...]:
        """Compute the Pareto front of [i, j) in stripes of at least `narrowest` columns: bytes against work, least work
        first.
        """
        forms = self._forms(i, j)
        if forms is None:
            return ()
        tables, unit = self.tables, self.settings.alignment
        rows = self.held(i, j, BY_ROWS)
        plain = [b for t, n in rows.items() if t not in forms.widths for b in [n * tables.unit_bytes(t, ROW)]]
        plain += [*self._around(i, j), self.state_bytes(i, j, ROW)]
        scratch = np.maximum(forms.scratch, self._largest_scratch(i, j, _STRIPED))
        sizes = [scratch]
        sizes += [forms.widths[t] * (rows[t] * tables.unit_bytes(t, PIXEL)) for t in forms.widths]
        sizes += [n * (tables.tensor_rows[t] * tables.unit_bytes(t, PIXEL)) for t, n in forms.halo_columns.items()]
        exact = sum(plain) + sum(sizes) + np.zeros_like(forms.extra_macs)
        rounded = sum(aligned(b, unit) for b in plain) + sum(-(-b // unit) * unit for b in sizes) + np.zeros_like(exact)
        widths = [np.broadcast_to(w > 0, exact.shape) for w in forms.widths.values()]
        made = np.all(widths or [exact >= 0], axis=0)
        figures = (a.ravel().tolist() for a in (rounded, exact, forms.extra_macs, made))
        rows = zip(forms.interleavings, *figures, strict=True)
        possible = [Striped(f, *row) for f, *row, all_made in rows if all_made and f.stripe_columns >= narrowest]
        kept: list[Striped] = []
        for form in sorted(possible, key=Striped.sort_key):
            if not kept or form.bytes < kept[-1].bytes or form.exact < kept[-1].exact:
                kept.append(form)
        return tuple(kept)

    def _around(self, i: int, j: int) -> list[int]:
        """List the bytes for each tensor live when [i, j) begins, and for each accumulator inside."""
        across = [self.tables.tensor_bytes[t] for t in self.across[i]]
        return [*across, *self._accumulators(i, j)]

    def _accumulators(self, i: int, j: int) -> list[int]:
        """List the bytes of each accumulator in [i, j)."""
        return [self.tables.graph.ops[o].kernels.accumulator_bytes for o in self.accumulating(i, j)]

    @cached_property
    def _across_bytes(self) -> tuple[tuple[int, int], ...]:
        """Compute, by position, the bytes of tensors live across the cut before: exact, and each rounded up."""
        unit, sizes = self.settings.alignment, self.tables.tensor_bytes
        return tuple((sum(sizes[t] for t in live), sum(aligned(sizes[t], unit) for t in live)) for live in self.across)

    def extra_macs(self, i: int, j: int, interleaving: Interleaving) -> int:
        """Count the multiply-accumulates of [i, j) beyond the operators run whole."""
        stripes = self.stripes(i, j, interleaving)
        return 0 if stripes is None else stripes.extra_macs

    def _largest_scratch(self, i: int, j: int, interleaving: Interleaving) -> int:
        """Return the largest scratch of an operator in [i, j), without channel tiling in stripes."""
        held = self.held(i, j, interleaving) if interleaving.tile.by_pixels else {}
        return self.scratch.largest(self.order[i:j], interleaving, held)

    @cached_method
    def accumulating(self, i: int, j: int) -> tuple[int, ...]:
        """Return the operators of [i, j) that sum inputs step by step."""
        summing = self.tables.summing
        members = self.members(i, j) if summing else ()
        return tuple(o for o in members if o in summing and self.tables.accumulates(o, members))

    def blocks(self, i: int, j: int, interleaving: Interleaving) -> tuple[int, ...]:
        """Return the bytes of every block live while [i, j) runs."""
        across = (self.tables.tensor_bytes[t] for t in self.across[i])
        return (*across, *self._inside(i, j, interleaving))

    def _inside(self, i: int, j: int, interleaving: Interleaving) -> list[int]:
        """List the bytes of every block live only from [i, j) on: outputs, rings, halos, accumulators, counters,
        scratch.
        """
        tables, stripes = self.tables, self.stripes(i, j, interleaving)
        inside = [self.bytes_held(i, j, t, units, interleaving) for t, units in self.held(i, j, interleaving).items()]
        halo = {} if stripes is None else stripes.halo_columns
        stores = [n * tables.tensor_rows[t] * tables.unit_bytes(t, PIXEL) for t, n in halo.items()]
        counters = self.state_bytes(i, j, interleaving.tile)
        return [*self._accumulators(i, j), *inside, *stores, counters, self.scratch_bytes(i, j, interleaving)]

    @cached_method
    @by_structure
    def _inside_bytes(self, i: int, j: int, interleaving: Interleaving) -> tuple[int, int]:
        """Return the sum of `_inside`: exact, and with each block rounded up to the alignment."""
        inside, unit = self._inside(i, j, interleaving), self.settings.alignment
        return sum(inside), sum(aligned(b, unit) for b in inside)

    def bytes_held(self, i: int, j: int, tensor: int, units: int, interleaving: Interleaving) -> int:
        """Return the bytes of a tensor's block when `units` units are stored."""
        stripes = self.stripes(i, j, interleaving)
        if stripes is None or tensor not in stripes.widths:
            return units * self.tables.unit_bytes(tensor, interleaving.tile)
        return units * stripes.widths[tensor] * self.tables.unit_bytes(tensor, PIXEL)

    def cost(self, i: int, j: int, interleaving: Interleaving = BY_ROWS) -> int:
        """Compute the bytes live while [i, j) runs, every block rounded up to the alignment."""
        return self.apart(i, j, interleaving) - self.shared(i, j, interleaving)

    def apart(self, i: int, j: int, interleaving: Interleaving) -> int:
        """`cost` if no blocks shared memory."""
        return self._across_bytes[i][1] + self._inside_bytes(i, j, interleaving)[1]

    def exact_apart(self, i: int, j: int, interleaving: Interleaving) -> int:
        """Compute `exact_cost` as if no blocks shared memory."""
        return self._across_bytes[i][0] + self._inside_bytes(i, j, interleaving)[0]

    def fits(self, i: int, j: int, interleaving: Interleaving, cap: int) -> bool:
        """Test whether `cost` is at most `cap`."""
        rounded = self.apart(i, j, interleaving)
        if rounded <= cap or rounded - self.most_shared(i, j) > cap:
            return rounded <= cap
        return rounded - self.shared(i, j, interleaving) <= cap

    def exact_cost(self, i: int, j: int, interleaving: Interleaving = BY_ROWS) -> int:
        """Compute the bytes live while [i, j) runs, without rounding: no arena is smaller."""
        return self.exact_apart(i, j, interleaving) - self.shared(i, j, interleaving)

    @cached_method
    def _dying(self, i: int, j: int) -> list[int]:
        """List the root tensors written before the operators [i, j) and read last in [i, j)."""
        return [t for t in self.across[i] if self.last[t] < j]

    @cached_method
    @by_structure
    def most_shared(self, i: int, j: int) -> int:
        """Return an upper bound on `shared` in any interleaving: the bytes of dying inputs in [i, j)."""
        if not (self.settings.overlap or self.settings.in_place or self.in_place(i, j) is not None):
            return 0
        return sum(self.tables.tensor_bytes[t] for t in self._dying(i, j))

    @cached_method
    def trails_by_pixels(self, i: int, j: int) -> bool:
        """Test whether [i, j) is one operator on a signal whose output may follow a dying input pixel by pixel: in one
        step of the whole row it cannot.
        """
        members, tables = self.members(i, j), self.tables
        if len(members) != 1 or members[0] < 0 or not self.settings.overlap or not self._dying(i, j):
            return False
        made = (tables.graph.tensors[t] for t in tables.graph.ops[members[0]].outputs)
        return self.in_place(i, j) is None and all(t.rows == 1 and t.columns > 1 for t in made)

    @cached_method
    def pairs(self, i: int, j: int, interleaving: Interleaving) -> tuple[Pair, ...]:
        """Return the offset constraints between outputs and rings of [i, j) and the dying inputs."""
        op = self.in_place(i, j)
        if op is not None and not interleaving.striped:
            node = self.tables.graph.ops[op]
            x, y = self.tables.roots[node.inputs[node.target or 0]].tensor, node.outputs[0]
            return (Pair(x, y, 0, self.tables.tensor_bytes[y], exact=True),)
        if interleaving.striped or not (self.settings.overlap or self.settings.in_place):
            return ()
        planes = self._over_planes(i, j)
        if planes is not None:
            return (planes,)
        rings, held = self.settings.rings_follow, self.held(i, j, interleaving).items()
        made = {t: u for t, u in held if t not in self.tables.streamed and (rings or self.last[t] >= j)}
        pairs = self.overlaps.pairs(self.members(i, j), self._dying(i, j), made, interleaving.tile)
        return tuple(p for p in pairs if self.settings.overlap or self.overlaps.overwrites(p))

    def _over_planes(self, i: int, j: int) -> Pair | None:
        """Return the pair for an element-wise operator that runs alone on several planes (NCHW), with the dying input.

        A row of every plane is written in a step, so the output may not trail the input: only the same offset is safe.
        """
        members, tables = self.members(i, j), self.tables
        if not self.settings.in_place or len(members) != 1 or members[0] < 0:
            return None
        node = tables.graph.ops[members[0]]
        y, dying = node.outputs[0], self._dying(i, j)
        for x in dict.fromkeys(node.inputs[k] for k in node.in_place):
            reads = [r for r in tables.steps(node.index).reads if r.tensor == x]
            own = x in dying and x not in tables.streamed and tables.roots[y].tensor == y
            planes = not outermost(tables.graph.tensors[x]) and all(r.in_place for r in reads)
            pair = Pair(x, y, 0, tables.tensor_bytes[y], exact=True)
            if own and planes and self.overlaps.overwrites(pair):
                return pair
        return None

    @cached_method
    @by_structure
    def shared(self, i: int, j: int, interleaving: Interleaving) -> int:
        """Compute an upper bound on the bytes that outputs and rings of [i, j) can share with dying inputs."""
        return shared_bytes(self.pairs(i, j, interleaving), self.tables.tensor_bytes, lambda t: self.last[t] >= j)

    @cached_method
    def trace(self, i: int, j: int, tile: Tile) -> tuple[int, ...]:
        """Return the operators of [i, j) in execution order, a single entry a step."""
        in_place = self.in_place(i, j)
        return Cascade(self.tables, self.members(i, j), tile).trace if in_place is None else (in_place,)

    @cached_method
    def calls(self, i: int, j: int, interleaving: Interleaving) -> int:
        """Count the kernel calls of [i, j)."""
        stripes = self.stripes(i, j, interleaving)
        count = self.tables.calls(self.members(i, j), self.accumulating(i, j), interleaving.tile)
        return count * (1 if stripes is None else len(stripes.ranges))

    @cached_property
    def across(self) -> list[list[int]]:
        """List, by position i, the roots live across the cut before: produced earlier, needed at i or later."""
        across: list[list[int]] = [[] for _ in range(len(self.order) + 1)]
        for t, born in self.born.items():
            for i in range(born + 1, self.last[t] + 1):
                across[i].append(t)
        return across
