"""Row kernels for Cortex-M4, M7 and M33: two 16-bit products an instruction.

Convolutions take 2 pixels x 2 channels at a time: four int8 of each are widened by `sxtb16` (bytes 0 and 2) and
`sxtb16 ror 8` (bytes 1 and 3) and multiplied by `smlad`; wider blocks spill on 14 registers. Depthwise ones take 4 channels
x 2 pixels with `smlabb` and `smlatt`, the zero point subtracted while widening (`sxtab16`), so padding is just left out.
Pixels are the outer loop: the packed weights then stream once per pixel block, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx import PrimFunc

from tvm_cascade.schedules.emit import KernelBuilder, i32
from tvm_cascade.schedules.geometry import Columns, Sliding, bias_index, channel_table, folded_bias, row_bases, table_width, valid_row
from tvm_cascade.schedules.intrinsics import call
from tvm_cascade.schedules.packing import depthwise_records, interleave
from tvm_cascade.schedules.quantized import QuantizedConv, read_conv
from tvm_cascade.schedules.requantize import emit_requantize
from tvm_cascade.schedules.row_kernel import RowKernel

Value = Any


@dataclass(frozen=True, slots=True)
class DspOptions:
    """Variants of the kernels; the defaults are the analytic choice."""

    pixels: int = 2
    channels: int = 2
    unroll: int = 4  # words of a kernel row up to which its loop is written out
    step: int = 4  # most words per pass of a rolled loop


def conv2d(conv: QuantizedConv, options: DspOptions = DspOptions()) -> RowKernel:
    """K x K and 1 x 1 convolution."""
    return _Conv(conv, options).build()


class _Conv:
    def __init__(self, conv: QuantizedConv, options: DspOptions) -> None:
        self.conv, self.options = conv, options
        self.g: Sliding = conv.window
        self.groups = self.g.column_groups()
        packed = interleave(conv.weights, options.channels, 4)
        folded = folded_bias(self.g, conv.weights, conv.bias, conv.input_zero_point)
        self.constants = (packed, channel_table(self.g, conv.requantize.table, folded))
        self.k = KernelBuilder(["int8"], self.constants, ["int8"])
        k = self.k
        self.x = k.view(k.inputs[0][0], "int8", "xs")
        self.w = k.view(k.constants[0], "int8", "ws")
        self.table = k.view(k.constants[1], "int32", "table")
        self.out = k.view(k.outputs[0], "int8", "outs")
        self.length = conv.weights.shape[1] * conv.weights.shape[2]

    def build(self) -> RowKernel:
        k, g = self.k, self.g
        self.rows = row_bases(k, g)
        self.r0, self.r1 = g.bounds(k, k.y)
        self.bias = bias_index(k, g)
        for index, group in enumerate(self.groups):
            self._columns(index, group)
        return RowKernel(k.finish(), self.constants, 0)

    def _columns(self, index: int, group: Columns) -> None:
        count = group.stop - group.start
        pixels = self.options.pixels
        with self.k.loop(count // pixels, "xb") as xb:
            if count // pixels:
                self._pixels(index, group, xb * pixels + group.start, pixels)
        if count % pixels:
            self._pixels(index, group, i32(group.stop - count % pixels), count % pixels)

    def _pixels(self, index: int, group: Columns, x: Value, pixels: int) -> None:
        outputs = self.conv.outputs
        size = self.options.channels
        if pixels == 1 and outputs % (2 * size) == 0:
            size *= 2  # a single pixel leaves registers for two packed blocks
        with self.k.loop(outputs // size, "ob") as ob:
            if outputs // size:
                self._block(index, group, x, pixels, ob * size, size)
        if outputs % size:
            self._block(index, group, x, pixels, i32(outputs - outputs % size), outputs % size)

    def _block(self, index: int, group: Columns, x: Value, pixels: int, channel: Value, size: int) -> None:
        k, g = self.k, self.g
        acc = k.local(pixels * size, "acc")
        width = table_width(g)
        for j in range(size):
            start = k.let(self.table[(channel + j) * width + self.bias + index], "start")
            for p in range(pixels):
                k.store(acc, p * size + j, start)
        column = (x * g.strides[1] - g.padding[1] + group.k0) * g.channels
        rows = self.r1 - self.r0
        with k.loop(rows, "r", start=self.r0) as r:
            base = self.rows if g.kernel[0] == 1 else self.rows[r]
            at = k.let(base + column, "at")
            weights = k.let(channel * (g.kernel[0] * self.length) + r * (self.length * self._packed(size)), "wat")
            self._row(acc, at, weights, group, pixels, size)
        self._outputs(acc, x, channel, pixels, size)

    def _row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        """Adds the valid part of one kernel row: words where groups of four line up with the packed weights."""
        c = self.g.channels
        lo, hi = group.k0 * c, group.k1 * c
        whole = self.length // 4 * 4
        if lo % 4 or (hi % 4 and hi < whole):
            for tap in range(lo, hi):
                self._single(acc, at, weights, tap, lo, pixels, size)
            return
        words = (min(hi, whole) - lo) // 4
        step = max(u for u in range(1, self.options.step + 1) if words % u == 0)
        if words <= self.options.unroll:
            for i in range(words):
                self._word(acc, at, weights, i32(i), lo, pixels, size)
        else:
            with self.k.loop(words // step, "i") as i:
                for u in range(step):
                    self._word(acc, at, weights, i * step + u, lo, pixels, size)
        for tap in range(lo + words * 4, hi):
            self._single(acc, at, weights, tap, lo, pixels, size)

    def _packed(self, size: int) -> int:
        """Channels of a packed block: the last block of all may be smaller."""
        return min(size, self.options.channels)

    def _place(self, weights: Value, size: int, j: int) -> Value:
        """Where channel `j` of the block starts: `weights` is its first packed block."""
        packed = self._packed(size)
        return weights + (j // packed * (self.g.kernel[0] * self.length * packed) + j % packed * 4)

    def _word(self, acc: Value, at: Value, weights: Value, i: Value, lo: int, pixels: int, size: int) -> None:
        k, g = self.k, self.g
        pairs = []
        for p in range(pixels):
            word = k.let(call("ldr", tirx.address_of(self.x[at + i * 4 + p * g.strides[1] * g.channels])), "xw")
            pairs.append((k.let(call("sxtb16", word), "xa"), k.let(call("sxtb16_ror8", word), "xb")))
        for j in range(size):
            place = self._place(weights, size, j) + lo * self._packed(size) + i * (4 * self._packed(size))
            word = k.let(call("ld32", tirx.address_of(self.w[place])), "ww")
            even, odd = k.let(call("sxtb16", word), "wa"), k.let(call("sxtb16_ror8", word), "wb")
            for p, (xa, xb) in enumerate(pairs):
                place = p * size + j
                first = k.let(call("smlad", xa, even, acc[i32(place)]), "s")
                k.store(acc, place, call("smlad", xb, odd, first))

    def _single(self, acc: Value, at: Value, weights: Value, tap: int, lo: int, pixels: int, size: int) -> None:
        k, g = self.k, self.g
        whole = self.length // 4 * 4
        values = [k.let(self.x[at + (tap - lo) + p * g.strides[1] * g.channels].astype("int32"), "xv") for p in range(pixels)]
        for j in range(size):
            packed, inside = self._packed(size), j % self._packed(size)
            place = tap // 4 * 4 * packed + tap % 4 if tap < whole else tap * packed - inside * 3
            weight = k.let(self.w[self._place(weights, size, j) + place].astype("int32"), "wv")
            for p, value in enumerate(values):
                k.store(acc, p * size + j, acc[i32(p * size + j)] + value * weight)

    def _outputs(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        k, q = self.k, self.conv.requantize
        width = table_width(self.g)
        for j in range(size):
            m, addend, shift = (k.let(self.table[(channel + j) * width + i], s) for i, s in enumerate(("m", "r", "e")))
            for p in range(pixels):
                value = emit_requantize(k, q, acc[i32(p * size + j)], m, addend, shift)
                k.store(self.out, (x + p) * self.conv.outputs + channel + j, value.astype("int8"))


def depthwise(conv: QuantizedConv, pixels: int = 2) -> RowKernel:
    """Depthwise convolution with one output per channel and a multiple of four channels."""
    return _Depthwise(conv, pixels).build()


class _Depthwise:
    """Everything a block of four channels needs lies in one record: four biases, the weights, four requantizations."""

    def __init__(self, conv: QuantizedConv, pixels: int) -> None:
        self.conv, self.pixels = conv, pixels
        self.g: Sliding = conv.window
        self.taps = self.g.kernel[0] * self.g.kernel[1]
        self.words = 16 + self.taps
        self.constants = (depthwise_records(conv.weights, conv.bias, conv.requantize.table),)
        self.k = k = KernelBuilder(["int8"], self.constants, ["int8"])
        self.x = k.view(k.inputs[0][0], "int8", "xs")
        self.record = k.view(k.constants[0], "int32", "record")
        self.out = k.view(k.outputs[0], "int8", "outs")

    def build(self) -> RowKernel:
        k, g = self.k, self.g
        self.rows = [k.let(k.row_offset(0, tap, g.row_elements), "row") for tap in range(g.kernel[0])]
        self.r0, self.r1 = g.bounds(k, k.y)
        for group in g.column_groups():
            count = group.stop - group.start
            with k.loop(count // self.pixels, "xb") as xb:
                if count // self.pixels:
                    self._channels(group, xb * self.pixels + group.start, self.pixels)
            if count % self.pixels:
                self._channels(group, i32(group.stop - count % self.pixels), count % self.pixels)
        return RowKernel(k.finish(), self.constants, 0)

    def _channels(self, group: Columns, x: Value, pixels: int) -> None:
        k, g = self.k, self.g
        column = (x * g.strides[1] - g.padding[1] + group.k0) * g.channels
        with k.loop(g.channels // 4, "cb") as cb:
            acc = k.local(pixels * 4, "acc")
            first = cb * self.words
            for j in range(4):
                start = k.let(self.record[first + j], "start")
                for p in range(pixels):
                    k.store(acc, p * 4 + j, start)
            for r in range(g.kernel[0]):
                with valid_row(k, g, r, self.r0, self.r1):
                    self._row(acc, self.rows[r] + column + cb * 4, first + 4 + r * g.kernel[1], group, pixels)
            last = first + 4 + self.taps
            for j in range(4):
                m, addend, e = (k.let(self.record[last + j * 3 + i], s) for i, s in enumerate(("m", "r", "e")))
                for p in range(pixels):
                    value = emit_requantize(k, self.conv.requantize, acc[i32(p * 4 + j)], m, addend, e)
                    k.store(self.out, (x + p) * g.channels + cb * 4 + j, value.astype("int8"))

    def _row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int) -> None:
        k, g = self.k, self.g
        z = -self.conv.input_zero_point
        offset = i32(((z & 0xFFFF) | ((z & 0xFFFF) << 16)) - (1 << 32 if z < 0 else 0))
        for kx in range(group.k0, group.k1):
            word = k.let(self.record[weights + kx], "ww")
            even, odd = k.let(call("sxtb16", word), "wa"), k.let(call("sxtb16_ror8", word), "wb")
            for p in range(pixels):
                place = at + (kx - group.k0 + p * g.strides[1]) * g.channels
                word = k.let(call("ld32", tirx.address_of(self.x[place])), "xw")
                xa, xb = k.let(call("sxtab16", offset, word), "xa"), k.let(call("sxtab16_ror8", offset, word), "xb")
                for j, (name, a, b) in enumerate(
                    (("smlabb", xa, even), ("smlabb", xb, odd), ("smlatt", xa, even), ("smlatt", xb, odd))
                ):
                    k.store(acc, p * 4 + j, call(name, a, b, acc[i32(p * 4 + j)]))


def rule(func: PrimFunc, constants: tuple[np.ndarray, ...], core: Any) -> RowKernel | None:
    """A kernel for `func` on a core with the DSP extension, None where none here applies."""
    conv = read_conv(func, constants)
    if conv is None:
        return None
    if not conv.depthwise:
        return conv2d(conv)
    if conv.multiplier == 1 and conv.window.channels % 4 == 0:
        return depthwise(conv)
    return None


__all__ = ["DspOptions", "conv2d", "depthwise", "rule"]
