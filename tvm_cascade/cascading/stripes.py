"""Stripes across the width: a segment run once for every vertical stripe of its last map, at the price of some work.

Full rows make wide rings. A segment may instead make columns [x0, x1) of its sink's rows, all rows, then the next
stripe. Along the rows nothing changes: same steps, same demand, same ring heights. Along the columns each operator
makes what the stripe needs of it, and what two stripes both need is made twice. (Patch-based inference recomputes along
both axes; MCUNetV2, msf-CNN.)

The sink is the segment's only way out: an operator whose columns are known, or one that sums up its input, whose
stripes are then those of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from tvm_cascade.cascading.flow import Flow, goes_by_pixels, has_pixels, outermost
from tvm_cascade.graph import Window

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stripes:
    """A segment in stripes."""

    ranges: tuple[dict[int, Range], ...]  # for each stripe the columns that each operator makes (or sums up)
    widths: dict[int, int]  # columns that the ring of each inner tensor holds
    macs: int  # multiply-accumulates of the segment
    extra_macs: int  # of these, more than without stripes


class Striper:
    """Stripes of the segments of one graph."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._taps = lru_cache(maxsize=None)(_taps)
        self._by_pixels = lru_cache(maxsize=None)(partial(goes_by_pixels, flow.graph))

    def sink_columns(self, members: Sequence[int], accumulating: Sequence[int]) -> int:
        """Columns over which a segment can be striped; 0 where it cannot."""
        graph = self.flow.graph
        if len(members) < 2 or members[0] < 0:
            return 0
        for o in members:
            if o in accumulating:
                possible = o == members[-1] and has_pixels(graph.tensors[graph.ops[o].inputs[0]])
            else:
                possible = self._by_pixels(o) and self._by_stripes(o)
            if not possible or not all(
                self._plain(o, k, members, accumulating) for k in range(len(graph.ops[o].inputs))
            ):
                return 0
        return graph.tensors[self._grid(members[-1], accumulating)].columns

    def _by_stripes(self, op: int) -> bool:
        """Whether an operator's kernel can make columns of a row: it addresses contiguous rows, by known columns."""
        node = self.flow.graph.ops[op]
        inputs = [self.flow.graph.tensors[t] for t in node.inputs]
        known = all(across is not None for across in node.columns)
        return known and all(t.row_axis is not None and outermost(t) for t in inputs)

    def _plain(self, op: int, k: int, members: Sequence[int], accumulating: Sequence[int]) -> bool:
        """Whether input k of `op` comes from outside, or is read by columns from where it was made."""
        node = self.flow.graph.ops[op]
        root = self.flow.roots[node.inputs[k]].tensor
        if self.flow.maker(root) not in members:
            return True
        return root == node.inputs[k] and (op in accumulating or node.columns[k] is not None)

    def _grid(self, sink: int, accumulating: Sequence[int]) -> int:
        """The tensor over whose columns the stripes go."""
        node = self.flow.graph.ops[sink]
        return node.inputs[0] if sink in accumulating else node.outputs[0]

    def of(
        self, members: Sequence[int], accumulating: Sequence[int], leaving: Sequence[int], width: int
    ) -> Stripes | None:
        """`members` in stripes of `width` columns of their sink; None where that is not possible or is no stripe."""
        graph, sink = self.flow.graph, members[-1]
        columns = self.sink_columns(members, accumulating)
        if not 0 < width < columns or any(graph.producer[t] != sink for t in leaving):
            return None
        ranges: list[dict[int, Range]] = []
        for x0 in range(0, columns, width):
            found = self._stripe(members, sink in accumulating, (x0, min(x0 + width, columns)))
            if found is None:
                return None
            ranges.append(found)
        inner = [t for o in members for t in graph.ops[o].outputs if t not in leaving]
        maker = {t: o for o in members for t in graph.ops[o].outputs}
        widths = {t: max(r[maker[t]][1] - r[maker[t]][0] for r in ranges) for t in inner}
        macs = sum(self._macs(o, ranges, o in accumulating) for o in members)
        return Stripes(tuple(ranges), widths, macs, macs - sum(graph.ops[o].macs for o in members))

    def _stripe(self, members: Sequence[int], sums: bool, columns: Range) -> dict[int, Range] | None:
        """What each operator makes of one stripe, from the sink upwards; None where something is made for nothing."""
        graph, inside = self.flow.graph, set(members)
        asked: dict[int, Range] = {members[-1]: columns}
        for o in reversed(members):
            if o not in asked:
                return None
            node = graph.ops[o]
            for k, t in enumerate(node.inputs):
                maker = self.flow.maker(self.flow.roots[t].tensor)
                if maker is None or maker not in inside:
                    continue
                across = None if sums and o == members[-1] else node.columns[k]
                low, high = columns if across is None else _covered(across, asked[o], graph.tensors[t].columns)
                before = asked.get(maker, (low, high))
                asked[maker] = (min(before[0], low), max(before[1], high))
        return asked

    def _macs(self, op: int, ranges: Sequence[dict[int, Range]], sums: bool) -> int:
        node = self.flow.graph.ops[op]
        window = node.columns[0] if node.columns else None
        if sums or not node.macs or window is None:
            return node.macs if sums or not node.macs else node.macs * len(ranges)
        out, seen = self.flow.graph.tensors[node.outputs[0]], self.flow.graph.tensors[node.inputs[0]]
        every = self._taps(window, 0, out.columns, seen.columns)
        done = sum(self._taps(window, *r[op], seen.columns) for r in ranges)
        return node.macs * done // every


def widths_of(columns: int) -> tuple[int, ...]:
    """Stripe widths worth trying, wide first: those of 2 to 8 stripes and of some more."""
    counts = (*range(2, 9), 10, 12, 14, 16, 18, 24, 28, 36, 56, columns)
    return tuple(sorted({-(-columns // n) for n in counts if n <= columns}, reverse=True))


def _covered(window: Window, columns: Range, size: int) -> Range:
    low, high = window.first(columns[0]), window.first(columns[1] - 1) + window.span
    return min(max(low, 0), size), max(min(high, size), 0)


def _taps(window: Window, x0: int, x1: int, size: int) -> int:
    """Taps of output columns [x0, x1) that are not padding: multiply-accumulates go with them."""
    return sum(0 <= window.first(x) + k * window.dilation < size for x in range(x0, x1) for k in range(window.extent))
