"""Plans in which every row has an address of its own (`Storage.row_addresses`), by whole rows and at no extra work.

`RowLives` says when rows are live, and in which cuts the fewest are. Their addresses are an allocation problem like the
arena's, with rows as blocks and steps as times. The caller's inputs lie at the top, where their first rows are free
first, and outputs at the bottom, or in reverse; all other data goes into free gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import gcd
from typing import Any, TypeVar

import numpy as np

from tvm_cascade.cascading.assemble import Layout, segment_of, storages_of
from tvm_cascade.cascading.interleaving import BY_ROWS
from tvm_cascade.cascading.layerwise import baseline_peak
from tvm_cascade.cascading.options import PlanOptions
from tvm_cascade.cascading.plan import ROWS, Plan, Segment, Storage
from tvm_cascade.cascading.row_lives import Lives, RowLives
from tvm_cascade.cascading.search_cache import row_lives
from tvm_cascade.cascading.segments import aligned
from tvm_cascade.cascading.structure import structure
from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.graph import ITEM_BYTES, Graph, Window
from tvm_cascade.memory import AllocateOptions, Allocation, Buffer, Problem, allocate
from tvm_cascade.memory.bounds import max_live_step
from tvm_cascade.search_monitor import SearchStopped, cached, monitor

_EFFORT = AllocateOptions(4_000, first_limit=2_000, placements=200_000)  # of a search where heuristics find nothing
_PARTS = (32, 16, 8, 4, 2, 1)  # arenas are tried at these parts of the way from the live bytes to the plan to beat
_LITTLE = 0.01  # of the arena: where no more can be won only one size is tried
_SEARCHED = 400  # blocks, at most, of a search for an arena of the live bytes
_BISECTIONS = 3  # and between the last that failed and the first that did not


Found = TypeVar("Found", Plan, Plan | InfeasibleError)


def or_row_addresses(graph: Graph, options: PlanOptions, found: Found) -> Found:
    """Return a search's result, or a better plan with row addresses.

    Without a cap the smaller plan wins. Under a cap a fitting plan by whole rows is kept, since no tables are needed; a
    fitting plan with row addresses comes before plans with smaller steps or double work, which take longer. If a limit
    strikes first, the search's result is returned, with a bound that covers plans with row addresses too.
    """
    if not options.row_addresses or options.granularity == "pixel":
        return found
    try:
        monitor().check()
        return _or_row_addresses(graph, options, found)
    except SearchStopped:
        return replace(found, bound=min(found.bound, rows_read(graph))) if isinstance(found, Plan) else found


def rows_read(graph: Graph) -> int:
    """Compute a lower bound on every plan by rows: the bytes of rows an operator's windows read at once, at the
    maximum.
    """
    most = 0
    for op in graph.ops:
        rows: dict[int, int] = {}
        for t, window in zip(op.inputs, op.windows, strict=False):
            tensor = graph.tensors[t]
            made = graph.tensors[op.outputs[0]].rows if op.outputs else 1
            read = _read_at_once(window, tensor.rows, made)
            rows[t] = max(rows.get(t, 0), read * (tensor.bytes // max(tensor.rows, 1)))
        most = max(most, sum(rows.values()))
    return most


def _read_at_once(window: Window | None, rows: int, made: int) -> int:
    """Compute the most rows (out of `rows`) a single output row of `made` reads through a sliding window; else 1."""
    if window is None or window.stride < 1 or window.dilation != 1 or window.denominator != 1:
        return 1
    first = np.arange(max(made, 1)) * window.stride - window.padding
    inside = np.minimum(first + window.extent, rows) - np.maximum(first, 0)
    return max(int(inside.max()), 1)


def _or_row_addresses(graph: Graph, options: PlanOptions, found: Found) -> Found:
    """Return the result for `or_row_addresses`; raises `SearchStopped` if a limit strikes first."""
    asked = replace(options.untimed, sram=None, max_macs=1.0)
    below, bound = options.sram or 0, found.bound if isinstance(found, Plan) else 0
    if isinstance(found, Plan):
        # whole rows of as many bytes take less time than smaller steps
        smaller = any(s.tile.by_pixels or s.stripes for s in found.segments)
        below = (found.peak if options.sram is None else options.sram * smaller) + smaller
        bound = min(bound, _least(structure(graph), asked, bound))
    else:
        below += 1
    own = smallest_with_row_addresses(graph, asked, below) if below else None
    if own is not None:
        known = found if isinstance(found, Plan) else own
        finer = known.finer if known.finer is not None and known.finer[0] < own.peak else None
        least = min(own.bound, bound or own.bound)
        made: Any = replace(own, graph=graph, bound=least, baseline_peak=known.baseline_peak, finer=finer)
        return made
    return replace(found, bound=bound) if isinstance(found, Plan) else found


@cached(maxsize=8)
def _least(graph: Graph, options: PlanOptions, below: int) -> int:
    """Compute the fewest bytes live in any plan with row addresses, or `below` if none needs fewer."""
    for lives in row_lives(graph, options):
        cuts = lives.smallest_cuts(below)
        below = below if cuts is None else cuts[0]
    return below


def smallest_with_row_addresses(graph: Graph, options: PlanOptions, below: int) -> Plan | None:
    """Find the smallest plan with row addresses, over the graph's `structure`, below `below` bytes; else None.

    `options` has no cap and no limit on time.
    """
    return _smallest(structure(graph), options, below)


@cached(maxsize=8)
def _smallest(graph: Graph, options: PlanOptions, below: int) -> Plan | None:
    """Find the smallest plan with row addresses below `below` bytes; else None."""
    best = None
    for lives in row_lives(graph, options):
        cuts = lives.smallest_cuts(below)
        found = None if cuts is None else _Scheduled(lives, cuts[1]).plan(below, cuts[0])
        if found is not None:
            best, below = found, found.peak
    return best


@dataclass
class _Scheduled:
    """An execution order with cuts: the arena's blocks by steps, and the plans made from these."""

    lives: RowLives
    cuts: tuple[int, ...]
    parts: dict[int, list[Lives]] = field(default_factory=dict)  # by tensor, segment by segment, in steps of the plan
    begin: list[int] = field(default_factory=lambda: [0])  # by segment: its first step; then the end

    def __post_init__(self) -> None:
        for i, j in pairwise(self.cuts):
            start = self.begin[-1]
            for lives in self.lives.lives(i, j):
                moved = replace(lives, lower=lives.lower + start, upper=lives.upper + start)
                self.parts.setdefault(lives.tensor, []).append(moved)
            self.begin.append(start + len(self.lives.cascade(i, j).trace))

    def plan(self, below: int, least: int) -> Plan | None:
        """Make the plan of these cuts in fewer than `below` bytes, or None; `least` are the live bytes."""
        costs = self.lives.costs
        layout = Layout(self.cuts, (BY_ROWS,) * (len(self.cuts) - 1))
        segments = tuple(segment_of(costs, *segment) for segment in layout.segments)
        storages = storages_of(costs, layout)
        blocks = _Blocks(self, segments, storages)
        found = blocks.allocated(below)
        if found is None:
            return None
        problem, allocation = found
        at = {b.name: o for b, o in zip(problem.buffers, allocation.offsets, strict=True)}
        stored = tuple(blocks.stored(s, at) for s in storages)
        names = {name: offset for name, offset in at.items() if " row " not in name}
        names |= {f"tensor {t}": at[blocks.row(t, 0)] for t in blocks.contiguous}
        scattered = [min(s.row_addresses) for s in stored if s.row_addresses]
        if not scattered:
            return None
        names[ROWS] = min(scattered)
        return Plan(
            graph=costs.tables.graph,
            segments=segments,
            storages=stored,
            allocation=replace(allocation, offsets=tuple(names.values())),
            buffers=tuple(names),
            problem=problem,
            overwritten=(),
            macs=costs.tables.graph.macs,
            baseline_macs=costs.tables.graph.macs,
            baseline_peak=baseline_peak(costs.tables.graph, costs.settings.alignment),
            bound=least,
        )


class _Blocks:
    """The blocks of an arena: a single buffer per row for tensors with row addresses, one for every other block."""

    def __init__(self, scheduled: _Scheduled, segments: tuple[Segment, ...], storages: tuple[Storage, ...]) -> None:
        self.scheduled, self.costs = scheduled, scheduled.lives.costs
        self.graph, self.unit = self.costs.tables.graph, self.costs.settings.alignment
        self.rows: dict[int, list[Lives]] = {}
        self.over: dict[int, int] = {}
        self.buffers: list[Buffer] = []
        for t, parts in scheduled.parts.items():
            if all(p.by_rows for p in parts):
                self.rows[t] = parts
        for t in self.rows:
            self._lie_over(t)
        self.contiguous = [t for t in self.rows if t in scheduled.lives.contiguous]
        for storage in storages:
            if storage.root is None and storage.tensor not in self.rows and storage.size:
                self._whole(storage)
        for t in self.rows:
            self._by_rows(t)
        for s, segment in enumerate(segments):
            lower, upper = scheduled.begin[s : s + 2]
            self._add(f"state {s}", segment.state_bytes, lower, upper)
            self._add(f"scratch {s}", segment.scratch_bytes, lower, upper)
            for o in segment.accumulating:
                self._add(f"accumulator {o}", self.graph.ops[o].kernels.accumulator_bytes, lower, upper)

    def _lie_over(self, t: int) -> None:
        """Move the rows of `t` onto the rows they overwrite, unless these are not free to follow."""
        below = next((p.over for p in self.scheduled.parts[t] if p.over is not None), None)
        if below is None:
            return
        fixed = self.scheduled.lives.contiguous
        if below in self.rows and not (t in fixed and self._first(below) in fixed):
            self.over[t] = below
            return
        last = self.scheduled.parts[below][-1]  # they stay to the end of the step that reads them
        self.scheduled.parts[below][-1] = replace(last, upper=last.upper + 1)

    def _first(self, t: int) -> int:
        """Return the first of the tensors written over one another, up to `t`: this tensor's buffers hold the rows of
        all.
        """
        while t in self.over:
            t = self.over[t]
        return t

    def row(self, t: int, r: int) -> str:
        """Return the buffer name for row r of tensor t."""
        return f"tensor {self._first(t)} row {r}"

    def _add(self, name: str, size: int, lower: int, upper: int, alignment: int | None = None) -> None:
        if size:
            last = max(upper, lower + 1)
            self.buffers.append(Buffer(len(self.buffers), size, lower, last, alignment or self.unit, None, name))

    def _whole(self, storage: Storage) -> None:
        """Add a buffer for a tensor in a single block, whole or a ring."""
        parts = self.scheduled.parts.get(storage.tensor)
        end = self.scheduled.begin[-1]
        lower = min((int(p.lower.min()) for p in parts), default=0) if parts else 0
        upper = max((int(p.upper.max()) for p in parts), default=end) if parts else end
        item = ITEM_BYTES[self.graph.tensors[storage.tensor].dtype]
        self._add(f"tensor {storage.tensor}", storage.size, lower, upper, max(self.unit, item))

    def _by_rows(self, t: int) -> None:
        """Add buffers for a tensor's rows, from their steps until the row and all overwriting rows are dead."""
        if t in self.over:
            return
        item = ITEM_BYTES[self.graph.tensors[t].dtype]
        lower, upper = self._life(t)
        for u in (u for u in self.rows if self._first(u) == t and u != t):
            low, high = self._life(u)
            lower = [min(a, b) for a, b in zip(lower, low, strict=True)]
            upper = [max(a, b) for a, b in zip(upper, high, strict=True)]
        size = self.rows[t][0].part_bytes
        unit = gcd(max(self.unit, item), size)  # as rows are aligned that lie one behind the other
        for r, (low, high) in enumerate(zip(lower, upper, strict=True)):
            self._add(self.row(t, r), size, low, high, unit)

    def _life(self, t: int) -> tuple[list[int], list[int]]:
        """Return the first step for every row of a tensor, and the step behind the last."""
        parts = self.rows[t]
        return parts[0].lower.tolist(), parts[-1].upper.tolist()

    def allocated(self, below: int) -> tuple[Problem, Allocation] | None:
        """Return a problem with the caller's tensors at fixed addresses, and a solution in fewer than `below` bytes."""
        least = aligned(max_live_step(Problem(tuple(self.buffers)))[0], self.unit)
        last = below - 1
        best, low = self._within(least), least
        if best is None and len(self.buffers) <= _SEARCHED:
            best = self._within(least, _EFFORT)
        parts = () if best is not None else _PARTS if last - least > last * _LITTLE else _PARTS[-1:]
        sizes = (aligned(least + (last - least) // part, self.unit) for part in parts)
        for capacity in dict.fromkeys(min(size, last) for size in sizes):
            best = self._within(capacity)
            if best is not None:
                break
            low = capacity
        for _ in range(_BISECTIONS):
            high = low if best is None else best[1].peak
            middle = aligned((low + high) // 2, self.unit)
            if not low < middle < high:
                break
            found = self._within(middle)
            best, low = (found, low) if found is not None else (best, middle)
        return best if best is not None and best[1].peak < below else None

    def _within(self, capacity: int, effort: AllocateOptions | None = None) -> tuple[Problem, Allocation] | None:
        """Return a problem with the caller's tensors at fixed addresses, and a solution in `capacity` bytes."""
        for pinned in self._pinned(capacity):
            problem = Problem(self._at(pinned), capacity)
            with suppress(InfeasibleError, UsageError):
                return replace(problem, capacity=None), allocate(problem, optimise=effort is not None, options=effort)
        return None

    def _pinned(self, capacity: int) -> Iterator[Mapping[int, int]]:
        """Yield addresses for the caller's tensors in `capacity` bytes: inputs above and outputs below, then the
        reverse.
        """
        graph = self.graph
        inputs = [t for t in graph.inputs if t in self.contiguous]
        outputs = [t for t in graph.outputs if t in self.contiguous and t not in inputs]
        for high, low in ((inputs, outputs), (outputs, inputs))[: 2 if outputs else 1]:
            at, top = dict[int, int](), capacity
            for t in high:
                top = (top - graph.tensors[t].bytes) // max(self.unit, 8) * max(self.unit, 8)
                at[t] = top
            bottom = 0
            for t in low:
                at[t], bottom = bottom, aligned(bottom + graph.tensors[t].bytes, max(self.unit, 8))
            if all(place >= 0 for place in at.values()):
                yield at

    def _at(self, places: Mapping[int, int]) -> tuple[Buffer, ...]:
        """Return the buffers, with the rows of the caller's tensors pinned."""
        fixed = {
            self.row(t, r): at + r * self.graph.tensors[t].row_bytes
            for t, at in places.items()
            for r in range(self.graph.tensors[t].rows)
        }
        return tuple(replace(b, offset=fixed[b.name], alignment=1) if b.name in fixed else b for b in self.buffers)

    def stored(self, storage: Storage, at: Mapping[str, int]) -> Storage:
        """Return the storage of a tensor, with row addresses if each row has a separate address."""
        t = storage.tensor
        if t not in self.rows:
            return storage
        tensor = self.graph.tensors[t]
        if t in self.contiguous:
            return Storage(t, tensor.rows, tensor.bytes, storage.lower, storage.upper)
        addresses = tuple(at[self.row(t, r)] for r in range(tensor.rows))
        most = self._most_rows(t)
        size = most * tensor.row_bytes
        return Storage(t, most, size, storage.lower, storage.upper, row_addresses=addresses)

    def _most_rows(self, t: int) -> int:
        """Count the most rows of a tensor live at once."""
        change = np.zeros(self.scheduled.begin[-1] + 2, np.int64)
        lower, upper = self._life(t)
        np.add.at(change, lower, 1)
        np.add.at(change, np.maximum(upper, np.array(lower) + 1), -1)
        return int(np.cumsum(change).max())
