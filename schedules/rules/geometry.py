"""Rows and columns of a sliding window: which taps of an output row or column are inside the input.

A row kernel restricts its loop over kernel rows to `[r0, r1)` of the output row at hand, and treats output columns as
left edge, interior and right edge, so that padding takes no RAM and the interior no tests. The input's zero point is
folded into the bias; taps outside then need bias corrections, one table for every distinct set of valid taps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.emit import Builder, KernelBuilder
from tvm_cascade.schedules.tir import Value, i32, tirx


@dataclass(frozen=True, slots=True)
class Columns:
    """Output columns `[start, stop)` that share the valid kernel columns `[k0, k1)`."""

    start: int
    stop: int
    k0: int
    k1: int


@dataclass(frozen=True, slots=True)
class Run:
    """`count` blocks of output columns from `start` on; `taps[p]` are the valid kernel columns of pixel p of each."""

    start: int
    count: int
    taps: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Sliding:
    """A 2-D window over an NHWC tensor with one batch."""

    height: int
    width: int
    channels: int
    out_height: int
    out_width: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]  # top, left
    dilation: tuple[int, int] = (1, 1)  # rows and columns from one tap to the next
    rows_by_table: bool = False  # as in `schedules.kernels.spec.OperatorSpec`, as all that follow
    tile_rows: int = 0
    joined_rows: int = 1

    @classmethod
    def of(cls, spec: OperatorSpec, kernel: tuple[int, int]) -> Sliding:
        """The windows of `kernel` rows and columns that an operator reads its first input by."""
        (_, height, width, channels), (_, rows, columns, _) = spec.inputs[0].shape, spec.output.shape
        given, whole = spec.attributes, (spec.rows_by_table, spec.tile_rows, spec.joined_rows)
        strides, dilation = given.strides or (1, 1), given.dilation or (1, 1)
        steps = ((strides[0], strides[1]), (given.padding or (0, 0))[:2], (dilation[0], dilation[1]))
        return cls(height, width, channels, rows, columns, kernel, *steps, *whole)  # type: ignore[arg-type]

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Valid kernel rows of every output row."""
        return [self.taps(0, y) for y in range(self.out_height)]

    @property
    def row_elements(self) -> int:
        """Elements of a row of the tensor."""
        return self.width * self.channels // self.joined_rows

    @property
    def wraps_once(self) -> bool:
        """Whether a window's rows, counted from its first also where that is padding, pass a ring's end once at most."""
        return self.padding[0] <= self.height

    def taps(self, axis: int, position: int) -> tuple[int, int]:
        """Valid kernel rows (axis 0) or columns (axis 1) of an output row or column."""
        extent = (self.height, self.width)[axis]
        first, step = position * self.strides[axis] - self.padding[axis], self.dilation[axis]
        lo, hi = max(0, -(first // step)), min(self.kernel[axis], -((first - extent) // step))
        return lo, max(lo, hi)

    def row_variants(self) -> list[tuple[int, int]]:
        """Valid kernel rows of every variant: the rows cut at the top, the full one, the rows cut at the bottom."""
        rows, full = self.rows, (0, self.kernel[0])
        top, bottom = self._cut()
        if top + bottom >= self.out_height:
            return rows
        return [*rows[:top], full, *rows[self.out_height - bottom :]]

    def _cut(self) -> tuple[int, int]:
        """Output rows that are cut at the top, and at the bottom."""
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

    def column_groups(self) -> list[Columns]:
        """Output columns in order, grouped by their valid kernel columns."""
        groups: list[Columns] = []
        for x in range(self.out_width):
            k0, k1 = self.taps(1, x)
            if groups and (groups[-1].k0, groups[-1].k1) == (k0, k1):
                groups[-1] = Columns(groups[-1].start, x + 1, k0, k1)
            else:
                groups.append(Columns(x, x + 1, k0, k1))
        return groups

    def runs(self, pixels: int) -> list[Run]:
        """The output columns in order, cut into blocks of `pixels` (fewer at the end), equal neighbours joined."""
        runs: list[Run] = []
        for start in range(0, self.out_width, pixels):
            taps = tuple(self.taps(1, x) for x in range(start, min(start + pixels, self.out_width)))
            if runs and runs[-1].taps == taps:
                runs[-1] = Run(runs[-1].start, runs[-1].count + 1, taps)
            else:
                runs.append(Run(start, 1, taps))
        return runs

    def bounds(self, b: Builder, y: Value) -> tuple[Value, Value]:
        """`r0` and `r1` of output row `y`, constants where they never change."""
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
        """Kernel rows that start in the first `rows` rows of the window, for a positive number or 0."""
        step = self.dilation[0]
        return rows if step == 1 else tirx.truncdiv(rows + (step - 1), i32(step))


def fewest_blocks(width: int, choices: tuple[int, ...]) -> int:
    """The block width that covers `width` columns in the fewest blocks, the narrowest of equals."""
    return min(choices, key=lambda p: (-(-width // p), p))


def row_offsets(k: KernelBuilder, g: Sliding, index: int = 0, start: Value = 0) -> list[Value]:
    """Offsets of the window's rows in input `index`, of the window that begins `start` rows further down."""
    taps = range(0, g.kernel[0] * g.dilation[0], g.dilation[0])
    return [k.let(k.row_offset(index, start + tap, g.row_elements), "row") for tap in taps]


def row_bases(k: KernelBuilder, g: Sliding, index: int = 0) -> Value:
    """Offsets of the window's rows in input `index`, as a table that a loop may index."""
    if k.row_tables is not None:
        return k.row_tables[index]
    table = k.local(g.kernel[0], "rows")
    store_bases(k, g, table, index)
    return table


def store_bases(k: KernelBuilder, g: Sliding, table: Value, index: int = 0, start: Value = 0) -> None:
    """Fills a table of `row_bases`, of the window that begins `start` rows further down."""
    for tap in range(g.kernel[0]):
        k.store(table, tap, k.row_offset(index, start + tap * g.dilation[0], g.row_elements))


@contextmanager
def valid_row(k: KernelBuilder, g: Sliding, tap: int, r0: Value, r1: Value) -> Iterator[None]:
    """What kernel row `tap` does, under a test only where that row is padding for some output row."""
    tests = []
    if any(r[0] > tap for r in g.rows):
        tests.append(tirx.LE(r0, i32(tap)))
    if any(r[1] <= tap for r in g.rows):
        tests.append(tirx.GT(r1, i32(tap)))
    if not tests:
        yield
        return
    with k.when(tests[0] if len(tests) == 1 else tirx.all(*tests)):
        yield


def folded_bias(
    g: Sliding, weights: np.ndarray, bias: np.ndarray, zero_point: int, every_column: bool = False
) -> np.ndarray:
    """Bias less zero point times the valid weights, int32 [row variants, column groups, channels].

    `weights` is [kh, kw, inputs, channels]: for depthwise inputs is 1. With `every_column` all columns count as valid,
    in one group: for kernels that multiply the zero point where columns are padding.
    """
    w = weights.astype(np.int64).sum(axis=2)
    variants = g.row_variants()
    groups = [Columns(0, g.out_width, 0, g.kernel[1])] if every_column else g.column_groups()
    table = np.empty((len(variants), len(groups), w.shape[-1]), np.int64)
    for v, (r0, r1) in enumerate(variants):
        for c, group in enumerate(groups):
            table[v, c] = bias.astype(np.int64).ravel() - zero_point * w[r0:r1, group.k0 : group.k1].sum(axis=(0, 1))
    return table.astype(np.int32)


def table_width(g: Sliding) -> int:
    """Words a channel has in `channel_table`: three of requantization and a bias for every set of valid taps."""
    return 3 + len(g.row_variants()) * len(g.column_groups())


def channel_table(g: Sliding, requantize: np.ndarray, folded: np.ndarray) -> np.ndarray:
    """All a channel needs beside weights, int32 [channels, table_width], flat: one pointer walks through it."""
    return np.concatenate([requantize, folded.reshape(-1, folded.shape[-1]).T], axis=1).astype(np.int32).ravel()


def bias_index(k: KernelBuilder, g: Sliding, y: Value) -> Value:
    """Place, in a channel's words, of the bias for output row `y` and the first column group."""
    if len(g.row_variants()) == 1:
        return 3
    return k.let(g.variant(y) * len(g.column_groups()) + 3, "bias")
