"""Row kernels for Cortex-M4, M7 and M33: two 16-bit products an instruction.

Convolutions take 2 pixels x 2 channels at a time: four int8 of each are widened by `sxtb16` (bytes 0 and 2) and
`sxtb16 ror 8` (bytes 1 and 3) and multiplied by `smlad`; wider blocks spill on 14 registers. Depthwise ones take 4 channels
x 2 pixels with `smlabb` and `smlatt`, the zero point subtracted while widening (`sxtab16`), so padding is just left out.
Pixels are the outer loop: the packed weights then stream once per pixel block, in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx import PrimFunc

from tvm_cascade.schedules.conv_row import Blocking, ConvRow, best_step
from tvm_cascade.schedules.emit import KernelBuilder, i32
from tvm_cascade.schedules.geometry import Columns, Run, Sliding, valid_row
from tvm_cascade.schedules.intrinsics import call
from tvm_cascade.schedules.packing import depthwise_records
from tvm_cascade.schedules.quantized import QuantizedConv, read_conv
from tvm_cascade.schedules.requantize import emit_requantize
from tvm_cascade.schedules.row_kernel import RowKernel

Value = Any
BLOCKING = Blocking(pixels=2, channels=2)


class _Conv(ConvRow):
    group = 4

    def row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        """Four taps at a time where the valid ones line up with the packed weights, one by one elsewhere."""
        lo, hi = group.k0 * self.g.channels, group.k1 * self.g.channels
        if lo % 4 or (hi % 4 and hi < self.whole):
            self.singles(acc, at, weights, range(lo, hi), lo, pixels, size)
            return
        words = (min(hi, self.whole) - lo) // 4
        step = words if words <= self.blocking.unroll else best_step(words, self.blocking.step)
        if words:
            with self.k.loop(words // step, "i") as i:
                for u in range(step):
                    self._word(acc, at, weights, i * step + u, lo, pixels, size)
        self.singles(acc, at, weights, range(lo + words * 4, hi), lo, pixels, size)

    def _word(self, acc: Value, at: Value, weights: Value, i: Value, lo: int, pixels: int, size: int) -> None:
        k, g = self.k, self.g
        pairs = []
        for p in range(pixels):
            word = k.let(call("ldr", tirx.address_of(self.x[at + i * 4 + p * g.strides[1] * g.channels])), "xw")
            pairs.append((k.let(call("sxtb16", word), "xa"), k.let(call("sxtb16_ror8", word), "xb")))
        for j in range(size):
            word = k.let(call("ld32", tirx.address_of(self.w[self.place(weights, size, j, i * 4 + lo)])), "ww")
            even, odd = k.let(call("sxtb16", word), "wa"), k.let(call("sxtb16_ror8", word), "wb")
            for p, (xa, xb) in enumerate(pairs):
                first = k.let(call("smlad", xa, even, acc[i32(p * size + j)]), "s")
                k.store(acc, p * size + j, call("smlad", xb, odd, first))


def conv2d(conv: QuantizedConv, blocking: Blocking = BLOCKING) -> RowKernel:
    """K x K and 1 x 1 convolution."""
    return _Conv(conv, blocking).build()


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
        for run in g.runs(self.pixels):
            with k.loop(run.count, "xb") as xb:
                self._channels(run, xb * self.pixels + run.start)
        return RowKernel(k.finish(), self.constants, 0)

    def _channels(self, run: Run, x: Value) -> None:
        k, g = self.k, self.g
        pixels = range(len(run.taps))
        column = (x * g.strides[1] - g.padding[1]) * g.channels
        with k.loop(g.channels // 4, "cb") as cb:
            acc = k.local(4 * len(pixels), "acc")
            first = cb * self.words
            for j in range(4):
                start = k.let(self.record[first + j], "start")
                for p in pixels:
                    k.store(acc, p * 4 + j, start)
            for r in range(g.kernel[0]):
                with valid_row(k, g, r, self.r0, self.r1):
                    self._row(acc, self.rows[r] + column + cb * 4, first + 4 + r * g.kernel[1], run)
            last = first + 4 + self.taps
            for j in range(4):
                m, addend, e = (k.let(self.record[last + j * 3 + i], s) for i, s in enumerate(("m", "r", "e")))
                for p in pixels:
                    value = emit_requantize(k, self.conv.requantize, acc[i32(p * 4 + j)], m, addend, e)
                    k.store(self.out, (x + p) * g.channels + cb * 4 + j, value.astype("int8"))

    def _row(self, acc: Value, at: Value, weights: Value, run: Run) -> None:
        k, g = self.k, self.g
        z = -self.conv.input_zero_point
        offset = i32(((z & 0xFFFF) | ((z & 0xFFFF) << 16)) - (1 << 32 if z < 0 else 0))
        for kx in range(g.kernel[1]):
            uses = [p for p, (k0, k1) in enumerate(run.taps) if k0 <= kx < k1]
            if not uses:
                continue
            word = k.let(self.record[weights + kx], "ww")
            even, odd = k.let(call("sxtb16", word), "wa"), k.let(call("sxtb16_ror8", word), "wb")
            for p in uses:
                place = at + (kx + p * g.strides[1]) * g.channels
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
