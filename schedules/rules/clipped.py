"""Convolutions in small code: one form of a block for whole windows, one for windows that a border cuts.

Other row kernels have a section for every set of valid kernel columns, and a bias for every set of valid taps. Here

    blocks of pixels with whole windows, all columns of which are valid;
    then single pixels: those whose windows are cut at the left or right, and those that fill no block

are two loops. The valid columns [k0, k1) of a single pixel are computed. Taps of padding are counted as the input's zero
point, or products take inputs less their zero point (`ConvRow.less_zero`), so a channel has a single bias. Nothing depends
on which borders a layer has, so that kernels of layers with other strides, extents and paddings differ in constants alone,
and are merged (`schedules.driver.merge_kernels`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tvm_cascade.schedules.rules import geometry
from tvm_cascade.schedules.rules.channel_table import ChannelTable
from tvm_cascade.schedules.rules.conv_row import Blocking, ConvRow
from tvm_cascade.schedules.rules.emit import best_step
from tvm_cascade.schedules.rules.geometry import Columns
from tvm_cascade.schedules.rules.quantized import QuantizedConv
from tvm_cascade.schedules.tir import Value, i32, tirx


def is_clipped(conv: QuantizedConv, group: int) -> bool:
    """Return True for a layer that the kernels take: windows of several rows and columns of an input without parts, some
    whole and some cut, depths in groups of `group`."""
    g = conv.window
    plain = not (conv.depthwise or conv.parts or conv.non_contiguous or g.dilation != (1, 1))
    if not plain or min(g.kernel) < 2 or conv.weights.shape[2] % group:
        return False
    columns = [(c.k0, c.k1) for c in g.column_groups()]
    return (0, g.kernel[1]) in columns and len(columns) > 1 and all(k0 < k1 for k0, k1 in columns)


class Clipped(ConvRow):
    """Builder for the row kernel of an `is_clipped` layer.

    Operators of Python fold constants. Here nodes are written out where strides and paddings of 0 or 1 would vanish.
    """

    counts_padding = True

    def __init__(self, conv: QuantizedConv, blocking: Blocking) -> None:
        q = conv.requantize
        super().__init__(replace(conv, requantize=replace(q, sign=q.sign or not q.even)), blocking)

    def pack_table(self) -> np.ndarray:
        conv = self.conv
        zero = 0 if self.less_zero else conv.input_zero_point
        biases = geometry.whole_bias(conv.weights, conv.bias, zero)
        self.numbers = ChannelTable(conv.requantize, biases, may_share=True, narrow=self.blocking.narrow)
        return self.numbers.words

    def _first(self, axis: int, position: Value) -> Value:
        """Return the row or column of the input at which a window begins."""
        return tirx.Sub(tirx.Mul(i32(position), i32(self.g.strides[axis])), i32(self.g.padding[axis]))

    def _valid(self, axis: int, position: Value) -> tuple[Value, Value]:
        """Compute the valid kernel rows or columns of an output row or column."""
        first = self.k.let(self._first(axis, position), "first")
        extent, taps = (self.g.height, self.g.width)[axis], self.g.kernel[axis]
        lo = self.k.let(tirx.max(tirx.Sub(i32(0), first), i32(0)), "lo")
        return lo, self.k.let(tirx.min(tirx.Sub(i32(extent), first), i32(taps)), "hi")

    def bounds(self, y: Value) -> tuple[Value, Value]:
        return self._valid(0, y)

    def column(self, group: Columns, x: Value, nth: Value) -> Value:
        return tirx.Mul(tirx.Add(self._first(1, x), i32(group.k0)), i32(self.g.channels))

    def row_columns(self) -> None:
        k, g, pixels = self.k, self.g, self.blocking.pixels
        whole = next(c for c in g.column_groups() if (c.k0, c.k1) == (0, g.kernel[1]))
        blocks = (whole.stop - whole.start) // pixels
        if blocks:
            with k.loop(i32(blocks), "xb") as xb:
                x = k.let(tirx.Add(tirx.Mul(i32(xb), i32(pixels)), i32(whole.start)), "x")
                self.pixel_block(0, whole, x, pixels)
        with k.loop(i32(g.out_width - blocks * pixels), "alone") as alone:
            beyond = tirx.GE(i32(alone), i32(whole.start))
            x = k.let(tirx.Add(i32(alone), tirx.Select(beyond, i32(blocks * pixels), i32(0))), "x")
            self.pixel_block(0, Columns(0, 1, *self._valid(1, x)), x, 1)

    def row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        each = self.depth // self.group  # groups of a column
        if isinstance(group.k1, int):
            step = best_step(group.k1 * each, self.blocking.unroll)
            passes = i32(group.k1 * each // step)
        else:
            step = best_step(each, self.blocking.step)
            passes = tirx.Mul(group.k1 - group.k0, i32(each // step))
        for i in self.k.unrolled(passes, step):
            self.products(acc, at, weights, i, self.before(group.k0), pixels, size)

    def padding(self, acc: Value, group: Columns, channel: Value, pixels: int, size: int) -> None:
        if self.less_zero:
            return
        k, (rows, columns) = self.k, self.g.kernel
        cut = tirx.Or(tirx.GT(self.r0, i32(0)), tirx.LT(self.r1, i32(rows)))
        if pixels == 1:
            cut = tirx.Or(cut, tirx.LT(group.k1 - group.k0, i32(columns)))
        weights = self.block_weights(channel)
        with k.when(cut):
            sums = k.local(size, "padding")
            for j in range(size):
                k.store(sums, j, i32(0))
            stride, hop = (taps * self.packed(size) for taps in (self.length, self.depth))
            with k.loop(rows, "r") as r:
                outside, places = _outside(r, self.r0, self.r1), k.let(weights + r * stride, "wat")
                if pixels == 1:
                    with k.loop(columns, "c") as c, k.when(tirx.Or(outside, _outside(c, group.k0, group.k1))):
                        self.add_zeros(sums, k.let(places + c * hop, "wat"), self.depth, size)
                else:
                    with k.when(outside):
                        self.add_zeros(sums, places, self.length, size)
            for p in range(pixels):
                for j in range(size):
                    k.store(acc, p * size + j, acc[i32(p * size + j)] + sums[i32(j)])


def _outside(tap: Value, lo: Value, hi: Value) -> Value:
    return tirx.Or(tirx.LT(tap, lo), tirx.GE(tap, hi))
