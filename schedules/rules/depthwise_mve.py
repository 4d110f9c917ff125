"""MVE row kernels of depthwise convolutions: lanes over eight channels.

Taps are taken in groups whose sum of products fits int16 in every channel; the sums are widened into the accumulators of
even and odd channels.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tvm_cascade.schedules.rules.conv_row import DepthwiseRow, Layer
from tvm_cascade.schedules.rules.geometry import Run, valid_row
from tvm_cascade.schedules.rules.lanes import LANES, put, requantize_lanes, splat, vector
from tvm_cascade.schedules.rules.packing import lane_records, tap_nibbles
from tvm_cascade.schedules.rules.parts import Source, in_eights, tables_of
from tvm_cascade.schedules.rules.quantized import RANGES, QuantizedConv, in_four_bits
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx

_WORTH_NIBBLES = 1024  # weights of a layer, at least, that takes four bits: the kernel's code is larger


def depthwise_variants(conv: QuantizedConv, packs_weights: bool = False) -> list[Variant]:
    """List a depthwise convolution's variants by pixels per block, the default first.

    They need a multiple of eight channels, multiplier 1, requantization in lanes, products of 16 bits, and no parts
    requantized by a table.
    """
    lanes = in_eights(conv) and conv.multiplier == 1 and conv.requantize.in_lanes
    if not lanes or tables_of(conv) or not _fits_halfword(conv, conv.weights):
        return []
    if packs_weights and packs(conv):
        return [Variant(f"depthwise nibbles {p}", lambda p=p: NibbleDepthwise(conv, p).build()) for p in (2, 1, 3, 4)]
    return [Variant(f"depthwise {p}", lambda p=p: Depthwise(conv, p).build()) for p in (2, 1, 3, 4)]


def packs(conv: Layer) -> bool:
    """Return True for a layer that `NibbleDepthwise` takes, and whose weights outweigh the larger code."""
    return conv.weights.size >= _WORTH_NIBBLES and in_four_bits(conv.weights)


def _fits_halfword(conv: QuantizedConv, *weights: np.ndarray) -> bool:
    """Test that products of any inputs and `weights`, arrays of equal shape, sum up to a halfword in every element."""
    reach = sum(np.abs(w.astype(np.int64)) for w in weights) * max(abs(v) for v in RANGES[conv.dtype])
    return int(np.max(reach)) < 1 << 15


class Depthwise(DepthwiseRow):
    """Depthwise convolution on lanes of eight channels (constants: output zero point, then `packing.lane_records`)."""

    most = 2  # taps whose products are summed in int16

    def pack(self, biases: np.ndarray) -> np.ndarray:
        records, self.words = lane_records(self.packed_weights(), biases, self.conv.requantize.table)
        self.weights_at = (4 + 2 * biases.shape[0]) * LANES
        return np.concatenate([np.array([self.conv.requantize.zero_point, 0, 0, 0], records.dtype), records])

    def packed_weights(self) -> np.ndarray:
        """Return the weights as they are stored, [..., channels]."""
        return self.conv.weights

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
                    self._row(acc, rows[r] + column + block * 8, words, r, run, source)
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

    def row_weights(self, words: Value, r: int, taps: Iterable[int]) -> dict[int, Value]:
        """Load weights in row `r` of the window, as int16, for eight channels each, by tap."""
        first = (words + self.weights_at) * (4 // self.conv.weights.itemsize) + r * (self.g.kernel[1] * 8)
        return {
            kx: self.k.let(vector(self.w, first + kx * 8, 8).astype("int16x8"), "wv", "int16x8")
            for kx in dict.fromkeys(taps)
        }

    def _pad(self, acc: Value, words: Value, run: Run) -> None:
        """Adds `weight * zero point` for the taps in padding columns, in every kernel row that lies inside the input."""
        k, g = self.k, self.g
        missing = [(p, kx) for p, (k0, k1) in enumerate(run.taps) for kx in (*range(k0), *range(k1, g.kernel[1]))]
        if not missing or not self.pads:
            return
        for r in range(g.kernel[0]):
            with valid_row(k, g, r, self.r0, self.r1):
                ws = self.row_weights(words, r, (kx for _, kx in missing))
                for p, kx in missing:
                    self._widen(acc, p, k.let(ws[kx] * splat(self.zero, 8), "pad", "int16x8"))

    def _row(self, acc: Value, at: Value, words: Value, r: int, run: Run, source: Source) -> None:
        """Emit the products of kernel row `r`: taps in groups, with products summed in int16."""
        k, g = self.k, self.g
        for taps in self._groups():
            ws = self.row_weights(words, r, taps)
            for p, (k0, k1) in enumerate(run.taps):
                products = []
                for kx in taps:
                    if k0 <= kx < k1:
                        place = at + (kx * g.dilation[1] + p * g.strides[1]) * source.window.channels
                        products.append(vector(source.x, place, 8).astype("int16x8") * ws[kx])
                if products:
                    self._widen(acc, p, k.let(sum(products[1:], products[0]), "some", "int16x8"))

    def _groups(self) -> list[list[int]]:
        """Group neighbours of a kernel row's taps whose products may be summed in int16 in every row."""
        weights, groups = self.conv.weights, [[0]]
        for kx in range(1, self.g.kernel[1]):
            last = groups[-1]
            if len(last) < self.most and _fits_halfword(self.conv, *(weights[:, t] for t in (*last, kx))):
                last.append(kx)
            else:
                groups.append([kx])
        return groups

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


class NibbleDepthwise(Depthwise):
    """Weights of four bits: two taps of eight channels in eight bytes, in their lower and upper halves."""

    stored_as = "4 bits"
    most = 4

    def packed_weights(self) -> np.ndarray:
        packed = tap_nibbles(self.conv.weights.reshape(-1, self.conv.outputs))
        self.held = packed.nbytes
        return packed

    def row_weights(self, words: Value, r: int, taps: Iterable[int]) -> dict[int, Value]:
        k, first = self.k, (words + self.weights_at) * 4
        places = {kx: r * self.g.kernel[1] + kx for kx in taps}
        pairs = {
            i: k.let(vector(self.w, first + i * 8, 8).astype("int16x8"), "ww", "int16x8")
            for i in dict.fromkeys(t // 2 for t in places.values())
        }

        def taken(t: int) -> Value:
            lowest = pairs[t // 2] if t % 2 else tirx.shift_left(pairs[t // 2], _splat(12))
            return tirx.shift_right(lowest, _splat(4 if t % 2 else 12))

        return {kx: k.let(taken(t), "wv", "int16x8") for kx, t in places.items()}


def _splat(count: int) -> Value:
    return splat(tirx.const(count, "int16"), 8)
