"""Sliding-window geometry: which kernel rows and columns are valid (inside the input) for an output row or column.

A row kernel restricts its loop over kernel rows to the valid `[r0, r1)` of the output row, and treats left edge,
interior and right edge of the output columns separately. So padding takes no RAM, and the interior has no tests. The
input's zero point is folded into the bias, which therefore has a value for every distinct set of valid taps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.emit import Builder, KernelBuilder
from tvm_cascade.schedules.tir import Value, i32, tirx


@dataclass(frozen=True, slots=True)
class Columns:
    """Output columns `[start, stop)` with common valid kernel columns `[k0, k1)`."""

    start: int
    stop: int
    k0: Value  # int, or computed by the kernel
    k1: Value

    @property
    def is_padding(self) -> bool:
        """Return True if windows are known to read padding alone."""
        return isinstance(self.k0, int) and self.k1 <= self.k0


@dataclass(frozen=True, slots=True)
class Run:
    """`count` equal blocks of output columns from `start` on; `taps[p]`: valid kernel columns [k0, k1) of pixel p."""

    start: int
    count: int
    taps: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Sliding:
    """A 2-D sliding window over an NHWC tensor with batch 1, and the shape of its output."""

    height: int
    width: int
    channels: int
    out_height: int
    out_width: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]  # top, left
    dilation: tuple[int, int] = (1, 1)  # rows and columns from one tap to the next
    rows_by_table: bool = False  # this and the following as in `schedules.kernels.spec.OperatorSpec`
    tile_rows: int = 0
    joined_rows: int = 1

    @classmethod
    def of(cls, spec: OperatorSpec, kernel: tuple[int, int]) -> Sliding:
        """Make the windows of `kernel` (rows, columns) through which an operator reads its first input."""
        (_, height, width, channels), (_, rows, columns, _) = spec.inputs[0].shape, spec.output.shape
        given, whole = spec.attributes, (spec.rows_by_table, spec.tile_rows, spec.joined_rows)
        strides, dilation = given.strides or (1, 1), given.dilation or (1, 1)
        steps = ((strides[0], strides[1]), (given.padding or (0, 0))[:2], (dilation[0], dilation[1]))
        return cls(height, width, channels, rows, columns, kernel, *steps, *whole)  # type: ignore[arg-type]

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """Return each output row's valid kernel rows [r0, r1)."""
        return _rows(self)

    @property
    def dilated_rows(self) -> bool:
        """Return True if a window's rows lie apart, which row tables cannot express."""
        return self.kernel[0] > 1 and self.dilation[0] > 1

    @property
    def row_elements(self) -> int:
        """Return the elements in a row of the network's tensor; `joined_rows` such rows are a single row here."""
        return self.width * self.channels // self.joined_rows

    @property
    def wraps_once(self) -> bool:
        """Return True if a window, padding rows included, wraps around the end of any ring at most once."""
        return self.padding[0] <= self.height

    def taps(self, axis: int, position: int) -> tuple[int, int]:
        """Return the valid kernel rows (axis 0) or columns (axis 1) of an output row or column, as a range [lo, hi)."""
        extent = (self.height, self.width)[axis]
        first, step = position * self.strides[axis] - self.padding[axis], self.dilation[axis]
        lo, hi = max(0, -(first // step)), min(self.kernel[axis], -((first - extent) // step))
        return lo, max(lo, hi)

    def row_variants(self) -> Sequence[tuple[int, int]]:
        """List the row variants, as valid kernel rows: each output row cut at the top, one for all full rows, each cut
        at the bottom.
        """
        rows, full = self.rows, (0, self.kernel[0])
        top, bottom = self._cut()
        if top + bottom >= self.out_height:
            return rows
        return [*rows[:top], full, *rows[self.out_height - bottom :]]

    def _cut(self) -> tuple[int, int]:
        """Count the output rows with windows cut off at the top, and at the bottom."""
        rows, full = self.rows, (0, self.kernel[0])
        if full not in rows:
            return self.out_height, 0
        top = rows.index(full)
        return top, rows[::-1].index(full)

    def variant(self, y: Value) -> Value:
        """Index into `row_variants` of output row `y`."""
        top, bottom = self._cut()
        if top + bottom >= self.out_height:
            return y
        index: Value = i32(0)
        if top:
            index = tirx.min(y, i32(top))
        if bottom:
            index = index + tirx.max(y - (self.out_height - bottom - 1), i32(0))
        return index

    def column_groups(self) -> Sequence[Columns]:
        """Return the output columns in order, grouped by valid kernel columns."""
        return _column_groups(self)

    @property
    def whole_columns(self) -> bool:
        """Return True if no window is cut off at the left or right: some pixels of a row may all be cut off alike."""
        return all((group.k0, group.k1) == (0, self.kernel[1]) for group in self.column_groups())

    def runs(self, pixels: int) -> list[Run]:
        """Split the output columns into blocks of `pixels` (the last may be smaller); join equal neighbours to runs."""
        runs: list[Run] = []
        for start in range(0, self.out_width, pixels):
            taps = tuple(self.taps(1, x) for x in range(start, min(start + pixels, self.out_width)))
            if runs and runs[-1].taps == taps:
                runs[-1] = Run(runs[-1].start, runs[-1].count + 1, taps)
            else:
                runs.append(Run(start, 1, taps))
        return runs

    def bounds(self, b: Builder, y: Value) -> tuple[Value, Value]:
        """Compute the valid kernel rows [r0, r1) for output row `y`, as constants if equal for all rows."""
        rows = set(self.rows)
        if rows == {(0, self.kernel[0])}:
            return 0, self.kernel[0]
        first = b.let(self.padding[0] - y * self.strides[0], "above")
        r0 = b.let(self._taps_in(tirx.max(first, i32(0))), "r0") if any(r[0] for r in rows) else 0
        cut_below = any(r[1] < self.kernel[0] for r in rows)
        below = self._taps_in(first + self.height)
        r1 = b.let(tirx.min(below, i32(self.kernel[0])), "r1") if cut_below else self.kernel[0]
        return r0, r1

    def _taps_in(self, rows: Value) -> Value:
        """Count the kernel rows in the window's first `rows` rows (`rows` >= 0)."""
        step = self.dilation[0]
        return rows if step == 1 else tirx.truncdiv(rows + (step - 1), i32(step))


@lru_cache(maxsize=256)
def _rows(g: Sliding) -> tuple[tuple[int, int], ...]:
    return tuple(g.taps(0, y) for y in range(g.out_height))


@lru_cache(maxsize=256)
def _column_groups(g: Sliding) -> Sequence[Columns]:
    groups: list[Columns] = []
    for x in range(g.out_width):
        k0, k1 = g.taps(1, x)
        if groups and (groups[-1].k0, groups[-1].k1) == (k0, k1):
            groups[-1] = Columns(groups[-1].start, x + 1, k0, k1)
        else:
            groups.append(Columns(x, x + 1, k0, k1))
    return tuple(groups)


def fewest_blocks(width: int, choices: tuple[int, ...]) -> int:
    """Choose the block width in `choices` that covers `width` columns in the fewest blocks; ties: the narrowest."""
    return min(choices, key=lambda p: (-(-width // p), p))


def row_offsets(k: KernelBuilder, g: Sliding, index: int = 0, start: Value = 0) -> list[Value]:
    """Bind the element offsets in input `index` of the window's rows, for a window that begins `start` rows further
    down.
    """
    taps = range(0, g.kernel[0] * g.dilation[0], g.dilation[0])
    return [k.let(k.row_offset(index, start + tap, g.row_elements), "row") for tap in taps]


def row_bases(k: KernelBuilder, g: Sliding, index: int = 0) -> Value:
    """Store the element offsets of the window's rows in input `index` in a buffer that a loop can index."""
    if k.row_tables is not None:
        return k.row_tables[index]
    table = k.local(g.kernel[0], "rows")
    store_bases(k, g, table, index)
    return table


def store_bases(k: KernelBuilder, g: Sliding, table: Value, index: int = 0, start: Value = 0) -> None:
    """Fill a buffer as `row_bases` returns it, for a window `start` rows further down."""
    for tap in range(g.kernel[0]):
        k.store(table, tap, k.row_offset(index, start + tap * g.dilation[0], g.row_elements))


def row_test(g: Sliding, tap: int, r0: Value, r1: Value) -> Value | None:
    """Return the condition for kernel row `tap` being no padding; None if the row is padding for no output row."""
    tests = []
    if any(r[0] > tap for r in g.rows):
        tests.append(tirx.LE(r0, i32(tap)))
    if any(r[1] <= tap for r in g.rows):
        tests.append(tirx.GT(r1, i32(tap)))
    return tirx.all(*tests) if len(tests) > 1 else next(iter(tests), None)


@contextmanager
def valid_row(k: KernelBuilder, g: Sliding, tap: int, r0: Value, r1: Value) -> Iterator[None]:
    """Open a context for kernel row `tap`'s statements: under a test, if that row is padding for some output row."""
    test = row_test(g, tap, r0, r1)
    if test is None:
        yield
        return
    with k.when(test):
        yield


def folded_bias(
    g: Sliding, weights: np.ndarray, bias: np.ndarray, zero_point: int, every_column: bool = False
) -> np.ndarray:
    """Compute the bias minus zero point times the valid weights' sum, int32 [row variants, column groups, channels].

    `weights` is [kh, kw, inputs, channels], with 1 input for depthwise. With `every_column` all kernel columns count as
    valid, in a single column group: for kernels that add the zero point's products in padding columns.
    """
    w = weights.sum(axis=2, dtype=np.int64)
    variants = g.row_variants()
    groups = [Columns(0, g.out_width, 0, g.kernel[1])] if every_column else g.column_groups()
    table = np.empty((len(variants), len(groups), w.shape[-1]), np.int64)
    for v, (r0, r1) in enumerate(variants):
        for c, group in enumerate(groups):
            table[v, c] = bias.astype(np.int64).ravel() - zero_point * w[r0:r1, group.k0 : group.k1].sum(axis=(0, 1))
    return table.astype(np.int32)


def whole_bias(weights: np.ndarray, bias: np.ndarray, zero_point: int) -> np.ndarray:
    """Return bias minus zero point times the sum of all weights, int32 [1, channels]: for kernels that count taps of padding.

    `weights` is [kh, kw, inputs, channels], with 1 input for depthwise.
    """
    whole = bias.astype(np.int64).ravel() - zero_point * weights.sum(axis=(0, 1, 2), dtype=np.int64)
    return whole.astype(np.int32)[None]


def bias_index(k: KernelBuilder, g: Sliding, y: Value) -> Value:
    """Return the index, among a channel's biases (`folded_bias`), for output row `y` and the first column group."""
    if len(g.row_variants()) == 1:
        return 0
    return k.let(g.variant(y) * len(g.column_groups()), "bias")
