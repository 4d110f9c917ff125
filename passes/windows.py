"""Sliding windows from TIR: which rows (or columns) of every input an output row reads, by access pattern analysis.

A PrimFunc's blocks are walked from the outputs backwards. For an output row the demand on every buffer is a box of
strided intervals (`passes.intervals`): a block's axes are narrowed to the demand on the written buffers, and the loads'
indices, evaluated over these axes, give the demand on the read buffers. Repeated for every output row, this gives the
rows read from each input as a sequence of intervals, to which the window `y * stride // denominator - padding + k *
dilation` is fitted. The window covers every row read; for convolutions, pools and all other linear patterns the window
is exact.

Names play no role: a hand-written stencil has windows like a convolution. The conditions that guard padding are ignored
too, so a padded convolution's window starts at row `-padding`, as is usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np

from tvm_cascade.graph import IDENTITY, Window
from tvm_cascade.passes.intervals import Evaluator, NotUnderstoodError, Strided, clip, compile_index, hull, is_affine
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import Buffer, PrimFunc, Var, ir, tirx

Box = tuple[Strided, ...]
_MAX_DENOMINATOR = 16
_MOST_ROWS = 1 << 16  # analysis limit: windows are evaluated row by row


@dataclass(frozen=True)
class _Block:
    """A TIR block: the axes' extents, then the inner loops', stores and loads.

    `writes` pairs each stored buffer with the block axis of each index, None if it is no plain axis. `reads` pairs each
    loaded buffer with an evaluator for each index, None if the index is not understood.
    """

    extents: tuple[int, ...]
    writes: tuple[tuple[Buffer, tuple[int | None, ...]], ...]
    reads: tuple[tuple[Buffer, tuple[Evaluator | None, ...]], ...]


class AccessPattern:
    """A PrimFunc's access pattern: maps output parts to the input boxes needed.

    The first `activations` parameters are activation inputs. `tables` maps constant parameters to their values, for
    operators with indices loaded from constants. `reasons` maps (buffer, axis) to why an index was not understood; such
    an axis counts as read in full, and no window is fitted to it.
    """

    def __init__(self, func: PrimFunc, activations: int, tables: Mapping[Var, np.ndarray] | None = None) -> None:
        self._whole: dict[Buffer, tuple[Buffer, Box]] = {}  # every buffer as this object knows it, and all of it
        self.inputs: tuple[Buffer, ...] = tuple(self._own(b) for b in func.params[:activations])
        self.outputs = tuple(map(self._own, tir.outputs_of(func)))
        self.layout = str((func.attrs or {}).get("layout", ""))  # of its tensors, where the function says it
        self.reasons: dict[tuple[Buffer, int], str] = {}
        self._tables = dict(tables or {})
        self.affine = True  # whether all indices that are read are affine
        self.clipped = False  # whether a demand so far reached beyond the axes of a block
        indices = (i for load in tir.collect(func.body, ir.TensorLoad) for i in tir.elements(load.indices))
        made = (i for i in indices if type(i) not in (tirx.Var, tirx.IntImm))
        self.uses_tables = any(tir.collect(i, ir.TensorLoad) for i in made)  # as indices
        self._blocks = [self._block(r) for r in tir.leaf_blocks(func)]

    def _own(self, buffer: Buffer) -> Buffer:
        """Return a common object for equal buffers: dictionaries compare distinct objects by calls into TVM."""
        if buffer not in self._whole:
            self._whole[buffer] = buffer, tuple(map(Strided.full, tir.shape_of(buffer)))
        return self._whole[buffer][0]

    def _block(self, realize: Any) -> _Block:
        block = realize.block
        slots = {iv.var: k for k, iv in enumerate(block.iter_vars)}
        inner = [f for f in tir.collect(block.body, tirx.For) if isinstance(f.extent, tirx.IntImm)]
        within = slots | {f.loop_var: len(slots) + k for k, f in enumerate(inner)}
        extents = tuple(int(iv.dom.extent) for iv in block.iter_vars) + tuple(int(f.extent) for f in inner)
        writes = tuple(
            (self._own(s.buffer), tuple(slots.get(i) if isinstance(i, tirx.Var) else None for i in s.indices))
            for s in tir.stores(block.body)
        )
        written = {b for b, _ in writes}
        found: list[Any] = tir.collect(block.body, ir.TensorLoad)
        reads = tuple((self._own(x.source), self._indices(x, slots, within)) for x in found if x.source not in written)
        return _Block(extents, writes, reads)

    def _indices(self, load: Any, slots: Mapping[Var, int], within: Mapping[Var, int]) -> tuple[Evaluator | None, ...]:
        """Return evaluators for a load's indices; if an index contains a block axis, it may count an inner loop too."""
        compiled: list[Evaluator | None] = []
        for axis, index in enumerate(load.indices):
            of_axis = any(v in slots for v in tir.collect(index, tirx.Var))
            try:
                compiled.append(compile_index(index, within if of_axis else slots, self._tables))
                self.affine = self.affine and is_affine(index)
            except NotUnderstoodError as why:
                self.reasons[load.source, axis] = str(why)
                compiled.append(None)
        return tuple(compiled)

    def demand(
        self, restricted: Mapping[Buffer, Mapping[int, Strided]], outputs: Sequence[Buffer] | None = None
    ) -> dict[Buffer, Box]:
        """Compute every buffer's box for the requested output parts.

        `restricted[output][axis]` limits an output axis; all other axes are requested in full. With `outputs`, only
        these outputs are requested.
        """
        boxes: dict[Buffer, Box] = {}
        for output in self.outputs if outputs is None else outputs:
            wanted = restricted.get(output, {})
            boxes[output] = tuple(wanted.get(k, every) for k, every in enumerate(self._whole[output][1]))
        for block in reversed(self._blocks):
            env = self._axes(block, boxes)
            if env is None:
                continue
            for buffer, indices in block.reads:
                whole = self._whole[buffer][1]
                part = tuple(whole[k] if f is None else f(env) for k, f in enumerate(indices))
                old = boxes.get(buffer)
                boxes[buffer] = part if old is None else tuple(hull(a, b) for a, b in zip(old, part, strict=True))
        return boxes

    def _axes(self, block: _Block, boxes: Mapping[Buffer, Box]) -> list[Strided] | None:
        """Compute the intervals of a block's axes that cover the demand on the written buffers; None without demand."""
        merged: list[Strided] | None = None
        for buffer, places in block.writes:
            if buffer not in boxes:
                continue
            env = [Strided.full(e) for e in block.extents]
            for axis, place in enumerate(places):
                if place is not None:
                    wanted, extent = boxes[buffer][axis], block.extents[place]
                    env[place] = clip(wanted, extent)
                    self.clipped |= not 0 <= wanted.lo <= wanted.hi < extent
            merged = env if merged is None else [hull(a, b) for a, b in zip(merged, env, strict=True)]
        return merged

    def taps(
        self, output_axes: Sequence[tuple[Buffer, int]], rows: int, input_axes: Sequence[tuple[Buffer, int | None]]
    ) -> list[list[Strided] | None]:
        """Compute for each input the rows read by each output row in `rows`; None for unread or one-row inputs.

        If all indices are affine, the first row read is a concave function of the output row, and the last a convex
        function: each is a sum or minimum (maximum) of linear functions. If the values for the first, the second and
        the last output row lie on a line, all do.
        """

        def demand(y: int) -> dict[Buffer, Box]:
            return self.demand({o: {a: Strided(y, y, 0)} for o, a in output_axes})

        self.clipped = False
        if self.affine and rows > 3:
            few = [demand(y) for y in (0, 1, rows - 1)]
            found = [_along(few, buffer, axis) for buffer, axis in input_axes]
            lines = [None if t is None else _line(t[0], t[1], t[2], rows) for t in found]
            if not self.clipped and all(t is None or line is not None for t, line in zip(found, lines, strict=True)):
                return lines
        every = [demand(y) for y in range(rows)]
        return [_along(every, buffer, axis) for buffer, axis in input_axes]


def _along(boxes: Sequence[Mapping[Buffer, Box]], buffer: Buffer, axis: int | None) -> list[Strided] | None:
    """Return the demands on an axis of a buffer; None if there is none."""
    return None if axis is None or any(buffer not in b for b in boxes) else [b[buffer][axis] for b in boxes]


def _line(first: Strided, second: Strided, last: Strided, count: int) -> list[Strided] | None:
    """Return the `count` intervals from `first` to `last`, if both ends move by equal steps; else None."""
    low, high = second.lo - first.lo, second.hi - first.hi
    straight = (last.lo, last.hi) == (first.lo + (count - 1) * low, first.hi + (count - 1) * high)
    if not straight or not first.step == second.step == last.step:
        return None
    return [Strided(first.lo + y * low, first.hi + y * high, first.step) for y in range(count)]


def fit_window(taps: Sequence[Strided], rows: int) -> Window | str:
    """Find the window that covers `taps[y]`, the rows read by output row y from an input with `rows` rows, or return
    why there is none.
    """
    if rows == 1 and len(taps) == 1:
        return IDENTITY
    first = taps[0]
    step = reduce(gcd, (t.step for t in taps)) or 1
    if all(t == first for t in taps) and (len(taps) > 1 or first == Strided.full(rows)):
        return Window.whole(rows)
    if len(taps) == 1:
        return Window(extent=(first.hi - first.lo) // step + 1, dilation=step, padding=-first.lo)
    stride = taps[1].lo - first.lo
    width = first.hi - first.lo
    if stride > 0 and all(t.lo == y * stride + first.lo and t.hi - t.lo == width for y, t in enumerate(taps)):
        return Window(width // step + 1, stride, step, -first.lo)
    if any(b.lo < a.lo or b.hi < a.hi for a, b in pairwise(taps)):
        return "rows are not read in ascending order"
    best = min(_covers(taps, rows), key=lambda w: (w.extent, w.denominator, w.stride))
    return best if best.extent < rows else Window.whole(rows)


def _covers(taps: Sequence[Strided], rows: int) -> list[Window]:
    """List candidate windows around `taps`, one per slope `stride / denominator`, with the least padding and extent.

    Slopes are the ratio of input (`rows`) to output rows, and fractions next to the taps' rise.
    """
    last = len(taps) - 1
    slopes = {(rows // gcd(rows, last + 1), (last + 1) // gcd(rows, last + 1))}
    for denominator in range(1, _MAX_DENOMINATOR + 1):
        for rise in (taps[last].lo - taps[0].lo, taps[last].hi - taps[0].hi):
            low = rise * denominator // last
            slopes |= {(s, denominator) for s in (low, low + 1) if s > 0 and gcd(s, denominator) == 1}
    found: list[Window] = []
    for stride, denominator in sorted(slopes):
        starts = [y * stride // denominator for y in range(len(taps))]
        padding = max(s - t.lo for s, t in zip(starts, taps, strict=True))
        extent = max(t.hi - s for s, t in zip(starts, taps, strict=True)) + padding + 1
        found.append(Window(extent, stride, 1, padding, denominator))
    return found


def row_windows(
    pattern: AccessPattern, output_axes: Sequence[int | None], input_axes: Sequence[int | None]
) -> tuple[tuple[Window | None, ...], str | None]:
    """Find every input's window along the row (or column) axis, and the reasons for windows that are None.

    Parameters
    ----------
    output_axes, input_axes
        The axis of each output and input along which rows (or columns) are counted; None for a tensor of a single row.
        Outputs must agree on their row count, otherwise all windows are None.
    """
    rows = {tir.shape_of(o)[a] if a is not None else 1 for o, a in zip(pattern.outputs, output_axes, strict=True)}
    if len(rows) != 1:
        return (None,) * len(input_axes), "outputs with different numbers of rows"
    if max(rows) > _MOST_ROWS:
        return (None,) * len(input_axes), f"more than {_MOST_ROWS} rows or columns"
    axes = [(o, a) for o, a in zip(pattern.outputs, output_axes, strict=True) if a is not None]
    inputs = list(zip(pattern.inputs, input_axes, strict=True))
    read = pattern.taps(axes, rows.pop(), inputs)
    found = [_input_window(pattern, taps, buffer, axis) for taps, (buffer, axis) in zip(read, inputs, strict=True)]
    reasons = [f"{b.name}: {why}" for (b, _), why in zip(inputs, found, strict=True) if isinstance(why, str)]
    return tuple(w if isinstance(w, Window) else None for w in found), "; ".join(reasons) or None


def _input_window(
    pattern: AccessPattern, taps: Sequence[Strided] | None, buffer: Buffer, axis: int | None
) -> Window | str:
    if axis is None:
        return Window.whole(1)
    extent = tir.shape_of(buffer)[axis]
    if taps is None:
        return Window.whole(extent)
    if (buffer, axis) in pattern.reasons:
        return pattern.reasons[buffer, axis]
    return fit_window(taps, extent)
