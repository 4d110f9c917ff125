"""Striped execution: a segment runs once for every vertical stripe of its last map, with halo columns stored or recomputed.

Full rows make wide rings. A segment may instead compute columns [x0, x1) in all rows of the sink, then the next stripe.
Along the rows nothing changes: same steps, same demand, same ring heights. Along the columns each operator computes the
columns needed by the stripe. Columns needed by two neighbouring stripes (*halo columns*) are either recomputed,
together with the columns upstream, or stored: all rows' halo columns lie in a separate block from one stripe to the
next. (Patch-based inference recomputes along both axes: MCUNetV2, msf-CNN. Accelerators store the overlap along one
axis: DeFiNES, "H-cached, V-recompute".) With all halos stored nothing is recomputed.

A form is a stripe width and a number k: the k tensors with the fewest bytes a column store their halo. Narrow tensors
between wide ones cost least to store and stop the overlap from growing upstream, so no other choice is tried.

A striped segment has one sink: an operator with known column windows, or an operator that sums the input; the stripes
are then the input's. A streamed input is delivered in full rows, again for every stripe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.cascading.access_tables import AccessTables, covered
from tvm_cascade.cascading.cached_method import cached_method
from tvm_cascade.cascading.geometry import goes_by_pixels, has_pixels, outermost
from tvm_cascade.cascading.interleaving import Interleaving
from tvm_cascade.graph import Window

Range = tuple[int, int]
Table = NDArray[np.int64]

_MOST_HALO_COUNTS = 8  # numbers of tensors with a halo that are tried


@dataclass(frozen=True, slots=True)
class Stripes:
    """A striped segment, with a stripe width and a choice of halo tensors."""

    ranges: tuple[dict[int, Range], ...]  # by stripe: for each operator the columns that it computes (or sums up)
    widths: dict[int, int]  # by inner tensor: columns in a row of its ring
    halo_columns: dict[int, int]  # by tensor: columns of every row stored for the next stripe; only where above 0
    extra_macs: int  # multiply-accumulates of the segment beyond those without stripes
    scratch: int = 0  # bytes: the largest scratch of a channel-tiled operator


@dataclass(frozen=True, slots=True)
class Forms:
    """All stripe widths and numbers of halo tensors that are tried for a segment, as tables.

    Tables have a row for every number of tensors that store a halo (`counts`) and a column for every width (`tried`).
    """

    tried: tuple[int, ...]  # widths
    counts: tuple[int, ...]  # tensors with a halo
    starts: Table  # for each width the index of its first stripe, in tables by stripe
    # by operator: first column and the one after the last, by count and stripe
    ranges: Mapping[int, tuple[Table, Table]]
    widths: Mapping[int, Table]  # by inner tensor, by count and width
    halo_columns: Mapping[int, Table]
    extra_macs: Table
    scratch: Table  # bytes: the largest scratch of a channel-tiled operator

    @property
    def interleavings(self) -> list[Interleaving]:
        """List all forms, row by row of the tables."""
        return [Interleaving(stripe_columns=w, halo_tensors=k) for k in self.counts for w in self.tried]

    def stripes(self, form: Interleaving) -> Stripes:
        """Return the stripes for the width and number of halo tensors in `form`."""
        k, w = self.counts.index(form.halo_tensors), self.tried.index(form.stripe_columns)
        end = self.starts[w + 1] if w + 1 < len(self.tried) else None
        table = {
            o: (a[k, self.starts[w] : end].tolist(), b[k, self.starts[w] : end].tolist())
            for o, (a, b) in self.ranges.items()
        }
        count = len(next(iter(table.values()))[0])
        return Stripes(
            tuple({o: (a[n], b[n]) for o, (a, b) in table.items()} for n in range(count)),
            {t: int(v[k, w] if v.ndim > 1 else v[w]) for t, v in self.widths.items()},
            {t: int(v[k, w]) for t, v in self.halo_columns.items() if v[k, w]},
            int(self.extra_macs[k, w]),
            int(self.scratch[k, w]),
        )


@dataclass(frozen=True, slots=True)
class Striped:
    """Costs for a striped segment, by stripe width and number of halo tensors."""

    interleaving: Interleaving
    bytes: int  # live bytes, every block rounded up to the alignment
    exact: int  # live bytes, not rounded
    extra_macs: int  # multiply-accumulates beyond those without stripes

    def sort_key(self) -> tuple[int, ...]:
        """Return a key that sorts by least work, then fewest bytes, halo tensors and columns."""
        form = self.interleaving
        return self.extra_macs, self.bytes, self.exact, form.halo_tensors, form.stripe_columns


class Striper:
    """Computes column ranges, ring widths, halos and work of a graph's striped segments."""

    def __init__(self, tables: AccessTables) -> None:
        self.tables = tables

    @cached_method
    def possible(self, op: int) -> bool:
        """Test whether an operator or source may be part of a striped segment (accumulating sinks are checked
        elsewhere).

        A kernel can compute columns of a row if the rows of the inputs are contiguous and the column windows known.
        """
        if op < 0:
            return True
        graph, node = self.tables.graph, self.tables.graph.ops[op]
        if not goes_by_pixels(graph, op) and node.kernels.channel_tiling is None:
            return False
        inputs = [graph.tensors[t] for t in node.inputs]
        known = all(across is not None for across in node.columns)
        return known and all(t.row_axis is not None and outermost(t) for t in inputs)

    def sink_columns(self, members: Sequence[int], accumulating: Sequence[int]) -> int:
        """Return the columns of the map a segment's stripes cut; 0 if stripes are impossible."""
        graph = self.tables.graph
        joined = any(t in self.tables.parts for o in members if o >= 0 for t in graph.ops[o].outputs)
        if len(members) < 2 or joined:
            return 0
        for o in members:
            if o in accumulating:
                possible = o == members[-1] and has_pixels(graph.tensors[graph.ops[o].inputs[0]])
            else:
                possible = self.possible(o)
            if not possible or not all(
                self._plain(o, k, members, accumulating) for k in range(len(graph.ops[o].inputs) if o >= 0 else 0)
            ):
                return 0
        sink = graph.ops[members[-1]]
        return graph.tensors[sink.inputs[0] if members[-1] in accumulating else sink.outputs[0]].columns

    def _plain(self, op: int, k: int, members: Sequence[int], accumulating: Sequence[int]) -> bool:
        """Test whether input k of `op` comes from outside, or is no view and has a known column window."""
        node = self.tables.graph.ops[op]
        root = self.tables.roots[node.inputs[k]].tensor
        if not any(m in members for m in self.tables.writers(root)):
            return True
        return root == node.inputs[k] and (op in accumulating or node.columns[k] is not None)

    def forms(self, members: Sequence[int], accumulating: Sequence[int], leaving: Sequence[int]) -> Forms | None:
        """Compute all forms of a segment in stripes; None if stripes are impossible.

        Parameters
        ----------
        members : Sequence[int]
            Its operators and sources, in topological order.
        accumulating : Sequence[int]
            Those that sum up their input.
        leaving : Sequence[int]
            Roots that are needed after the segment.
        """
        graph, sink = self.tables.graph, members[-1]
        columns = self.sink_columns(members, accumulating)
        tried = tuple(w for w in widths_of(columns) if w < columns) if columns > 1 else ()
        if not tried or sink < 0 or any(graph.producer[t] != sink for t in leaving):
            return None
        made = {o: graph.ops[o].outputs for o in members if o >= 0 and o != sink}
        inner = sorted(
            (graph.tensors[t].bytes // max(graph.tensors[t].columns, 1), t) for ts in made.values() for t in ts
        )
        counts = _counts(len(inner))
        first = [np.arange(0, columns, w) for w in tried]
        layout = _Layout(np.cumsum([0, *(len(f) for f in first[:-1])]), sum(len(f) for f in first))
        ends = np.concatenate([np.minimum(f + w, columns) for f, w in zip(first, tried, strict=True)])
        asked: dict[int, tuple[Table, Table]] = {}
        ranges = {sink: (np.tile(np.concatenate(first), (len(counts), 1)), np.tile(ends, (len(counts), 1)))}
        widths = {t: layout.most(ends - np.concatenate(first)) for t in graph.ops[sink].outputs if t not in leaving}
        halo: dict[int, Table] = {}
        keeps = {t: np.array([k > place for k in counts])[:, None] for place, (_, t) in enumerate(inner)}
        for o in reversed(members):
            if o in made:
                wanted = [asked[t] for t in made[o] if t in asked]
                if not wanted:
                    return None  # no operator inside reads its outputs
                low, high = (reduce(f, [w[n] for w in wanted]) for n, f in ((0, np.minimum), (1, np.maximum)))
                store = layout.overlap(low, high) * keeps[made[o][0]]
                stored = layout.spread(store)
                start = np.where(layout.later & (stored > 0), layout.before(high), low)
                ranges[o] = np.minimum(start, high), high
                origin = np.maximum(layout.spread(low[:, layout.starts]), start - stored)
                for t in made[o]:
                    halo[t] = store
                    widths[t] = layout.most(high - origin)
            if o >= 0:
                self._ask(o, o in accumulating, ranges[o], members, asked)
        none = np.zeros((len(counts), len(tried)), np.int64)
        extra = none + sum(self._macs(o, ranges[o], layout) for o in members if o >= 0 and o not in accumulating)
        scratch = none
        for o in members:
            tiling = graph.ops[o].kernels.channel_tiling if o >= 0 else None
            if tiling is not None:
                scratch = np.maximum(scratch, tiling.scratch_bytes(layout.most(ranges[o][1] - ranges[o][0])))
        return Forms(tried, counts, layout.starts, ranges, widths, halo, extra, scratch)

    def _ask(
        self,
        o: int,
        sums: bool,
        made: tuple[Table, Table],
        members: Sequence[int],
        asked: dict[int, tuple[Table, Table]],
    ) -> None:
        """Add to the ranges in `asked` the columns of each input operator `o` reads to compute columns `made`."""
        graph = self.tables.graph
        node = graph.ops[o]
        for k, t in enumerate(node.inputs):
            if not any(m >= 0 and m in members for m in self.tables.writers(self.tables.roots[t].tensor)):
                continue
            across = None if sums else node.columns[k]
            low, high = made if across is None else _covered(across, *made, graph.tensors[t].columns)
            before = asked.get(t, (low, high))
            asked[t] = np.minimum(before[0], low), np.maximum(before[1], high)

    def _macs(self, op: int, made: tuple[Table, Table], layout: _Layout) -> Table | int:
        """Compute an operator's multiply-accumulates in stripes beyond a single run over whole rows.

        Work is in proportion to the taps outside padding.
        """
        node = self.tables.graph.ops[op]
        if not node.macs:
            return 0
        taps = self._taps(op)
        done = np.add.reduceat(taps[made[1]] - taps[made[0]], layout.starts, axis=1)
        tiling = node.kernels.channel_tiling
        if tiling is not None:
            across, size = node.columns[0], self.tables.graph.tensors[node.inputs[0]].columns
            assert across is not None
            low, high = _covered(across, *made, size)
            inputs, columns = (np.add.reduceat(b - a, layout.starts, axis=1) for a, b in ((low, high), made))
            macs = tiling.macs_per_covered_column * inputs + tiling.macs_per_tap * done
            return macs + tiling.macs_per_column * columns - node.macs
        return node.macs * done // taps[-1] - node.macs

    @cached_method
    def _taps(self, op: int) -> Table:
        """Compute prefix sums over output columns of the first input's taps outside padding."""
        node = self.tables.graph.ops[op]
        window, size = node.columns[0], self.tables.graph.tensors[node.inputs[0]].columns
        assert window is not None
        columns = range(self.tables.graph.tensors[node.outputs[0]].columns)
        return np.cumsum([0, *(window.taps(x, size) for x in columns)])


class _Layout:
    """Tables by stripe hold the stripes of all widths, width after width.

    `starts` are each width's first stripes, `count` is the total number.
    """

    def __init__(self, starts: Table, count: int) -> None:
        self.starts = starts
        self.later = np.ones(count, np.bool_)  # for each stripe, whether another stripe of the same width precedes it
        self.later[starts] = False
        self._width = np.cumsum(~self.later) - 1  # for each stripe the index of its width
        self._before = np.arange(-1, count - 1)  # for each stripe the one before it; for the first of all the last

    def spread(self, by_width: Table) -> Table:
        """Turn a table by width into one by stripe."""
        return by_width[:, self._width]

    def before(self, by_stripe: Table) -> Table:
        """Return, for each stripe, the value of the stripe before; for the very first the last stripe's value."""
        return by_stripe[:, self._before]

    def most(self, by_stripe: Table) -> Table:
        """Return, for each width, the largest value of the stripes."""
        return np.maximum.reduceat(by_stripe, self.starts, axis=-1)

    def overlap(self, low: Table, high: Table) -> Table:
        """Return, for each width, the most columns a stripe and the stripe before have in common."""
        return self.most(np.maximum(self.before(high) - low, 0) * self.later)


def widths_of(columns: int) -> tuple[int, ...]:
    """Return the stripe widths to try, wide first: for 2 to 8 stripes, and for some larger numbers."""
    counts = (*range(2, 9), 10, 12, 14, 16, 18, 24, 28, 36, 56, columns)
    return tuple(sorted({-(-columns // n) for n in counts if n <= columns}, reverse=True))


def _counts(tensors: int) -> tuple[int, ...]:
    """Return the numbers of halo tensors to try: all if they are few."""
    return tuple(sorted({round(n * tensors / _MOST_HALO_COUNTS) for n in range(_MOST_HALO_COUNTS + 1)}))


def _covered(window: Window, start: Table, stop: Table, size: int) -> tuple[Table, Table]:
    """Compute the range of input columns read by output columns [start, stop); empty for an empty range of outputs."""
    low, high = covered(window, start, stop, size)
    return np.where(start < stop, low, high), high
