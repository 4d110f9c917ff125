"""MVE row kernels of depthwise convolutions: lanes over eight channels.

Taps are taken in pairs if the sum of their products fits int16 in every channel, else singly; the sums are widened into
the accumulators of even and odd channels.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.schedules.rules.conv_row import DepthwiseRow
from tvm_cascade.schedules.rules.geometry import Run, valid_row
from tvm_cascade.schedules.rules.lanes import LANES, put, requantize_lanes, splat, vector
from tvm_cascade.schedules.rules.packing import lane_records
from tvm_cascade.schedules.rules.parts import Source, in_eights, tables_of
from tvm_cascade.schedules.rules.quantized import RANGES, QuantizedConv
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx


def depthwise_variants(conv: QuantizedConv) -> list[Variant]:
    """List a depthwise convolution's variants by pixels per block, the default first.

    They need a multiple of eight channels, multiplier 1, requantization in lanes, products of 16 bits, and no parts
    requantized by a table.
    """
    lanes = in_eights(conv) and conv.multiplier == 1 and conv.requantize.in_lanes
    if not lanes or tables_of(conv) or not _fits_halfword(conv, conv.weights):
        return []
    return [Variant(f"depthwise {p}", lambda p=p: Depthwise(conv, p).build()) for p in (2, 1, 3, 4)]


def _fits_halfword(conv: QuantizedConv, *weights: np.ndarray) -> bool:
    """Test that products of any inputs and `weights`, arrays of equal shape, sum up to a halfword in every element."""
    reach = sum(np.abs(w.astype(np.int64)) for w in weights) * max(abs(v) for v in RANGES[conv.dtype])
    return int(np.max(reach)) < 1 << 15


class Depthwise(DepthwiseRow):
    """Depthwise convolution on lanes of eight channels (constants: output zero point, then `packing.lane_records`)."""

    def pack(self, biases: np.ndarray) -> np.ndarray:
        records, self.words = lane_records(self.conv.weights, biases, self.conv.requantize.table)
        self.weights_at = (4 + 2 * biases.shape[0]) * LANES
        return np.concatenate([np.array([self.conv.requantize.zero_point, 0, 0, 0], records.dtype), records])

    def channels(self, run: Run, x: Value, source: Source, rows: list[Value]) -> None:
        k, g = self.k, self.g
        pixels = range(len(run.taps))
        channels, first = source.window.channels, source.first // 8
        column = (x * g.strides[1] - g.padding[1]) * channels
        with k.loop(channels // 8, "cb") as block:
            cb = block + first
            words = cb * self.words + LANES
            acc = k.local(8 * len(pixels), "acc")
            for odd in range(2):
                start = k.let(self.start(words, odd), "start", "int32x4")
                for p in pixels:
                    put(k, acc, p * 8 + odd * LANES, start, LANES)
            self._pad(acc, words, run)
            for r in range(g.kernel[0]):
                with valid_row(k, g, r, self.r0, self.r1):
                    self._row(acc, rows[r] + column + block * 8, self._weights(words, r), run, source)
            self._outputs(acc, x, cb, words, len(pixels))

    @property
    def pads(self) -> bool:
        """Return True if padding differs from 0."""
        return bool(self.conv.input_zero_point)

    def start(self, words: Value, odd: int) -> Value:
        """Return the sums of four channels before the first tap."""
        return vector(self.record, words + (4 + odd) * LANES + self.bias * (2 * LANES), LANES)

    @property
    def zero(self) -> Value:
        """Return the input's zero point, int16."""
        return tirx.const(self.conv.input_zero_point, "int16")

    def _weights(self, words: Value, r: int) -> Value:
        return (words + self.weights_at) * (4 // self.conv.weights.itemsize) + r * (self.g.kernel[1] * 8)

    def _pad(self, acc: Value, words: Value, run: Run) -> None:
        """Adds `weight * zero point` for the taps in padding columns, in every kernel row that lies inside the input."""
        k, g = self.k, self.g
        missing = [(p, kx) for p, (k0, k1) in enumerate(run.taps) for kx in (*range(k0), *range(k1, g.kernel[1]))]
        if not missing or not self.pads:
            return
        for r in range(g.kernel[0]):
            with valid_row(k, g, r, self.r0, self.r1):
                for p, kx in missing:
                    w = vector(self.w, self._weights(words, r) + kx * 8, 8).astype("int16x8")
                    self._widen(acc, p, k.let(w * splat(self.zero, 8), "pad", "int16x8"))

    def _row(self, acc: Value, at: Value, weights: Value, run: Run, source: Source) -> None:
        """Emit the products of a kernel row: taps in pairs, with products summed in int16."""
        k, g = self.k, self.g
        for taps in self._pairs():
            ws = {kx: k.let(vector(self.w, weights + kx * 8, 8).astype("int16x8"), "wv", "int16x8") for kx in taps}
            for p, (k0, k1) in enumerate(run.taps):
                products = []
                for kx in taps:
                    if k0 <= kx < k1:
                        place = at + (kx * g.dilation[1] + p * g.strides[1]) * source.window.channels
                        products.append(vector(source.x, place, 8).astype("int16x8") * ws[kx])
                if products:
                    self._widen(acc, p, k.let(sum(products[1:], products[0]), "two", "int16x8"))

    def _pairs(self) -> list[list[int]]:
        """Group a kernel row's taps: in pairs of neighbours if their products may be summed in int16 in every row, else
        singly.
        """
        weights, pairs = self.conv.weights, [[0]]
        for kx in range(1, self.g.kernel[1]):
            last = pairs[-1]
            if len(last) == 1 and _fits_halfword(self.conv, weights[:, last[0]], weights[:, kx]):
                last.append(kx)
            else:
                pairs.append([kx])
        return pairs

    def _widen(self, acc: Value, p: int, value: Value) -> None:
        for odd in range(2):
            half = tirx.Shuffle([value], [i32(2 * i + odd) for i in range(LANES)]).astype("int32x4")
            place = p * 8 + odd * LANES
            put(self.k, acc, place, vector(acc, place, LANES) + half, LANES)

    def _outputs(self, acc: Value, x: Value, cb: Value, words: Value, pixels: int) -> None:
        k = self.k
        order = [i32(i // 2 + i % 2 * LANES) for i in range(8)]
        for p in range(pixels):
            halves = []
            for odd in range(2):
                m, shift = (vector(self.record, words + (2 * i + odd) * LANES, LANES) for i in range(2))
                four, zero = vector(acc, p * 8 + odd * LANES, LANES), self.record[i32(0)]
                value = requantize_lanes(k, self.conv.requantize, four, m, shift, zero)
                halves.append(k.let(value.astype("int16x4"), "half", "int16x4"))
            both = k.let(tirx.Shuffle(halves, order), "both", "int16x8")
            put(k, self.out, (x + p) * self.g.channels + cb * 8, both.astype(f"{self.conv.out_dtype}x8"), 8)
