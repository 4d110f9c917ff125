"""Row kernels for Cortex-M55 and M85: the M-profile vector extension, through LLVM.

- Convolutions whose input channels are a multiple of eight: 2 pixels x 4 channels, sixteen (or eight widened) products
  per `vmladava`. Remainders of eight use int16 lanes, so nothing is read beyond the row. A channel whose weights, less
  their zero point, need nine bits stores them less a number (`lifts`), and adds that times the sum of the window.
- First layers and other channel counts: lanes over four output channels, a single input value times a vector at a time.
- Depthwise: `schedules.rules.depthwise_mve`.

The accumulators of two pixels by four channels take eight even registers, lr among them: LLVM must not turn these loops
into low-overhead loops (`-disable-arm-loloops`; the feature `lob` has to stay on, or LLVM 22 drops vector copies).
Requantization: `schedules.rules.lanes`. The C back end cannot print TIR vectors: there this core uses the DSP kernels.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.coded import is_coded
from tvm_cascade.schedules.rules.conv_row import Blocking
from tvm_cascade.schedules.rules.dense import read_dense
from tvm_cascade.schedules.rules.depthwise_mve import depthwise_variants
from tvm_cascade.schedules.rules.elementwise_mve import vector_elementwise
from tvm_cascade.schedules.rules.geometry import Columns, folded_bias
from tvm_cascade.schedules.rules.lanes import LANES, put, requantize_lanes, splat, vector
from tvm_cascade.schedules.rules.opaque_loops import OpaqueLoops, OuterProducts
from tvm_cascade.schedules.rules.packing import lane_table, tailed_interleave
from tvm_cascade.schedules.rules.parts import in_eights
from tvm_cascade.schedules.rules.quantized import QuantizedConv, of_four_bits, read_conv
from tvm_cascade.schedules.rules.requantize import emit_requantize
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx


class LaneOutputs(OpaqueLoops):
    """Output channels in groups of four: a table with vectors `[m][shift][biases...]` for each four channels."""

    def pack_table(self) -> np.ndarray:
        biases = self.biases()
        self.words = LANES * (2 + len(biases))
        self.passes = self.pass_counts()
        head = [*self.passes, self.conv.requantize.zero_point]
        self.head = -(-len(head) // LANES) * LANES
        head = np.array(head + [0] * (self.head - len(head)), np.int32)
        return np.concatenate([head, lane_table(self.conv.requantize.table, biases)])

    def biases(self) -> np.ndarray:
        """Return each channel's numbers held as vectors in the table, [numbers, channels]: biases, perhaps more."""
        conv = self.conv
        return folded_bias(self.g, conv.weights, conv.bias, conv.input_zero_point).reshape(-1, conv.outputs)

    def block_words(self, channel: Value, j: int) -> Value:
        """Index the table entry for the four channels from `channel + j` on."""
        first = channel // LANES if isinstance(channel, int) else tirx.truncdiv(channel, i32(LANES))
        return first * self.words + (j // LANES * self.words + self.head)

    def bias_words(self, index: int) -> Value:
        """Return the offset in an entry of the current row's bias vector for column group `index`."""
        return (self.bias + (index + 2)) * LANES

    def finish_lanes(self, acc: Value, x: Value, channel: Value, words: Value, p: int, j: int) -> None:
        m, shift = vector(self.table, words, LANES), vector(self.table, words + LANES, LANES)
        zero = self.table[i32(len(self.passes))]
        value = requantize_lanes(self.k, self.conv.requantize, acc, m, shift, zero)
        place = (x + p) * self.conv.outputs + channel + j
        put(self.k, self.out, place, value.astype(f"{self.conv.out_dtype}x4"), LANES)


class Dot(LaneOutputs):
    """Convolution by dot products: sixteen products at a time along a kernel row."""

    group = 16
    summing = False  # whether this copy of the builder emits the sums of windows instead of products
    sixteenfold = False  # whether accumulators are sixteen times the sums

    def __init__(self, conv: QuantizedConv, blocking: Blocking) -> None:
        self.lifts = lifts(conv.weights)
        weights = (conv.weights - self.lifts).astype(np.int8)
        super().__init__(replace(conv, weights=weights), blocking)
        self.words_of_w = self.k.view(self.stored, "int32", "ww")
        if conv.dtype == "uint8":  # read as int8: `_inputs` takes 128 from every value
            self.x = self.k.view(self.k.inputs[0][0], "int8", "xs")

    def biases(self) -> np.ndarray:
        conv = self.conv
        zero = conv.input_zero_point - (128 if conv.dtype == "uint8" else 0)
        folded = folded_bias(self.g, conv.weights + self.lifts, conv.bias, zero).reshape(-1, conv.outputs)
        more = ([conv.requantize.table[:, 1]] if conv.requantize.wide else []) + (
            [self.lifts] if self.lifts.any() else []
        )
        return np.concatenate([folded, *(row[None] for row in more)])

    def window_sums(self, group: Columns, x: Value, pixels: int, nth: Value) -> Value:
        """Sum the inputs in each pixel's window, needed if a channel's weights are stored with an offset."""
        if not self.lifts.any():
            return None
        sums = self.k.local(pixels, "sums")
        for p in range(pixels):
            self.k.store(sums, p, i32(0))
        for part in self.part_kernels:
            summing = copy(part)
            summing.summing = True
            summing.add(sums, group, x, pixels, 0, 1, nth)
        return sums

    def pack_weights(self) -> np.ndarray:
        conv = self.conv
        aligned = conv.non_contiguous or self.depth % 16 == 0 or conv.window.whole_columns
        self.group = 16 if aligned else 8
        self.whole = self.length // self.group * self.group
        return self.arranged(lambda w: tailed_interleave(w, LANES, self.group))

    def start(self, index: int, channel: Value, pixels: int, size: int) -> Value:
        acc = self.k.local(pixels * size, "acc")
        for j in range(size):
            words = self.block_words(channel, j) + self.bias_words(index) + j % LANES
            bias = self.k.let(self.table[words], "start")
            for p in range(pixels):
                self.k.store(acc, p * size + j, bias)
        return acc

    def row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        lo, hi = group.k0 * self.depth, group.k1 * self.depth
        passes, step = self.split(hi - lo)
        if passes:
            with self.loop(passes) as i:
                for u in range(step):
                    self._dot(acc, at, weights, (i * step + u) * self.group, lo, self.group, pixels, size)
        if hi > self.whole:
            self._dot(acc, at, weights, i32(passes * step * self.group), lo, 8, pixels, size)

    def _dot(
        self, acc: Value, at: Value, weights: Value, tap: Value, lo: int, lanes: int, pixels: int, size: int
    ) -> None:
        k, wide = self.k, {16: "int8x16", 8: "int16x8"}[lanes]
        xs = self._inputs(at + tap, wide, lanes, pixels)
        if self.summing:
            for p, x in enumerate(xs):
                total = tirx.call_llvm_pure_intrin("int32", "llvm.arm.mve.addv", x, 0)
                k.store(acc, p, acc[i32(p)] + total)
            return
        for j in range(size):
            block = weights + j // LANES * (self.taps * LANES)
            place = block + (tap + lo) * LANES + j % LANES * lanes
            w = k.let(self._weights(place) if lanes == 16 else vector(self.w, place, lanes).astype(wide), "wv", wide)
            for p, x in enumerate(xs):
                value = acc[i32(p * size + j)]
                total = tirx.call_llvm_pure_intrin("int32", "llvm.arm.mve.vmldava", 0, 0, 0, value, x, w)
                k.store(acc, p * size + j, total)

    def _inputs(self, at: Value, wide: str, lanes: int, pixels: int) -> list[Value]:
        """Load `lanes` inputs for each pixel, from element `at` of the first pixel on, as vectors of type `wide`."""
        k, g, xs = self.k, self.g, []
        for p in range(pixels):
            x = vector(self.x, at + p * g.strides[1] * g.channels, lanes).astype(wide)
            if self.conv.dtype == "uint8":
                x = tirx.bitwise_xor(x, splat(tirx.const(-128, wide.split("x")[0]), lanes))
            xs.append(k.let(x, "xv", wide))
        return xs

    def _weights(self, place: Value) -> Value:
        """Load sixteen weights as words (flash is aligned), which have four times the range of immediate offsets."""
        words = vector(self.words_of_w, place // 4 if isinstance(place, int) else tirx.truncdiv(place, i32(4)), LANES)
        return tirx.reinterpret("int8x16", words)

    def outputs(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        if not self.conv.requantize.in_lanes:
            self._singly(acc, x, channel, pixels, size)
            return
        lanes = [i32(i) for i in range(LANES)]
        for p in range(pixels):
            for j in range(0, size, LANES):
                values = [acc[i32(p * size + j + i)] for i in range(LANES)]
                four, words = tirx.Shuffle(values, lanes), self.block_words(channel, j)
                if self.sixteenfold:
                    four = tirx.shift_right(self.k.let(four, "four", "int32x4"), splat(i32(4)))
                if self.sums is not None:
                    lift = vector(self.table, words + self.words - LANES, LANES)
                    four = self.k.let(four, "four", "int32x4") + lift * splat(self.sums[i32(p)])
                self.finish_lanes(self.k.let(four, "four", "int32x4"), x, channel, words, p, j)

    def _singly(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        """Requantize outputs singly: lanes cannot do the single-rounding form."""
        k, q = self.k, self.conv.requantize
        for j in range(size):
            words = self.block_words(channel, j) + j % LANES
            m, e = k.let(self.table[words], "m"), k.let(0 - self.table[words + LANES], "e")
            if q.wide:  # the last number of the table but the lift
                addend = k.let(self.table[words + self.words - LANES * (1 if self.sums is None else 2)], "low")
            else:
                addend = k.let(tirx.shift_left(i32(1), e - 1), "r")
            for p in range(pixels):
                total = acc[i32(p * size + j)]
                if self.sixteenfold:
                    total = self.k.let(tirx.shift_right(total, i32(4)), "total")
                if self.sums is not None:
                    total = k.let(total + self.table[words + self.words - LANES] * self.sums[i32(p)], "total")
                value = emit_requantize(k, q, total, m, addend, e)
                k.store(self.out, (x + p) * self.conv.outputs + channel + j, value.astype(self.conv.out_dtype))


def in_halves(pairs: np.ndarray) -> np.ndarray:
    """Pack weights in [-8, 8), [pairs, 2, n], into the lower and the upper halves of bytes, flat."""
    pairs = pairs.view(np.uint8)
    return (pairs[:, 0] & 15 | pairs[:, 1] << 4).astype(np.uint8).view(np.int8).ravel()


def upper_halves(both: Value) -> tuple[Value, Value]:
    """Take both halves of sixteen bytes to the upper halves: sixteen times the weights packed by `in_halves`."""
    lower = tirx.shift_left(both, splat(tirx.const(4, "int8"), 16))
    return lower, tirx.bitwise_and(both, splat(tirx.const(-16, "int8"), 16))


class NibbleDot(Dot):
    """Weights of four bits: vectors of sixteen bytes hold those of two channels, in their lower and upper halves.

    Both are taken to the upper halves, sixteen times the weights: so are all sums until they are requantized.
    """

    sixteenfold = True
    stored_as = "4 bits"

    def __init__(self, conv: QuantizedConv, blocking: Blocking) -> None:
        super().__init__(conv, blocking)
        self.taps, self.length = self.taps // 2, self.length // 2  # of weights, in bytes from here on

    def pack_weights(self) -> np.ndarray:
        return in_halves(super().pack_weights().reshape(-1, 2, 16))

    def start(self, index: int, channel: Value, pixels: int, size: int) -> Value:
        acc = super().start(index, channel, pixels, size)
        for i in range(pixels * size):
            self.k.store(acc, i, acc[i32(i)] * 16)
        return acc

    def _dot(
        self, acc: Value, at: Value, weights: Value, tap: Value, lo: int, lanes: int, pixels: int, size: int
    ) -> None:
        k, wide = self.k, "int8x16"
        xs = self._inputs(at + tap, wide, lanes, pixels)
        for j in range(0, size, 2):
            block = weights + j // LANES * (self.taps * LANES)
            both = k.let(self._weights(block + (tap + lo) * (LANES // 2) + j % LANES * 8), "wv", wide)
            for n, half in enumerate(upper_halves(both), j):
                w = k.let(half, "wn", wide)
                for p, x in enumerate(xs):
                    value = acc[i32(p * size + n)]
                    total = tirx.call_llvm_pure_intrin("int32", "llvm.arm.mve.vmldava", 0, 0, 0, value, x, w)
                    k.store(acc, p * size + n, total)


class Outer(OuterProducts, LaneOutputs):
    """Convolution by outer products: a single input value times the weights of four output channels at a time."""

    def pack_weights(self) -> np.ndarray:
        return self.arranged(lambda w: tailed_interleave(w, LANES, 1))

    def start(self, index: int, channel: Value, pixels: int, size: int) -> Value:
        acc = self.k.local(pixels * size, "acc")
        for j in range(0, size, LANES):
            words = self.block_words(channel, j) + self.bias_words(index)
            bias = self.k.let(vector(self.table, words, LANES), "start", "int32x4")
            for p in range(pixels):
                put(self.k, acc, p * size + j, bias, LANES)
        return acc

    def _tap(self, acc: Value, at: Value, weights: Value, tap: Value, pixels: int, size: int) -> None:
        k, g = self.k, self.g
        ws = []
        for j in range(0, size, LANES):
            block = weights + j // LANES * (self.taps * LANES)
            ws.append(k.let(vector(self.w, block + tap * LANES, LANES).astype("int32x4"), "wv", "int32x4"))
        for p in range(pixels):
            x = k.let(self.x[at + p * g.strides[1] * g.channels].astype("int32"), "xv")
            for j, w in enumerate(ws):
                place = p * size + j * LANES
                put(k, acc, place, vector(acc, place, LANES) + splat(x) * w, LANES)

    def outputs(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        for p in range(pixels):
            for j in range(0, size, LANES):
                self.finish_lanes(vector(acc, p * size + j, LANES), x, channel, self.block_words(channel, j), p, j)


def lifts(weights: np.ndarray) -> np.ndarray:
    """Return for each output channel the number nearest 0 that moves the weights (at most nine bits, channels last)
    into int8.
    """
    flat = weights.reshape(-1, weights.shape[-1]).astype(np.int32)
    return (np.maximum(flat.max(0) - 127, 0) + np.minimum(flat.min(0) + 128, 0)).astype(np.int32)


DOT = Blocking(pixels=2, channels=LANES, unroll=4, step=3)
OUTER = Blocking(pixels=4, channels=LANES, unroll=9, step=4)
OTHER_DOTS = tuple(Blocking(p, LANES, unroll=n, step=n) for p, n in ((2, 6), (2, 2), (2, 1), (1, 2), (1, 1)))
OTHER_OUTERS = tuple(
    Blocking(pixels, LANES, unroll, step)
    for pixels, unroll, step in ((6, 9, 4), (5, 9, 4), (3, 9, 4), (4, 3, 3), (4, 1, 1), (2, 1, 1))
)


def conv_variants(conv: QuantizedConv, packs_weights: bool = False, coded: bool = False) -> list[Variant]:
    """List a convolution's variants, the default first; none if a group's output channels are no multiple of four.

    Dot products serve input channels in multiples of eight, else outer products, which cannot round once.
    """
    if conv.depthwise:
        return depthwise_variants(conv, packs_weights)
    in_lanes, once = conv.requantize.in_lanes, conv.requantize.once
    if conv.outputs // conv.groups % LANES or not (in_lanes or once):
        return []

    def listed(name: str, form: type[LaneOutputs], blockings: tuple[Blocking, ...]) -> list[Variant]:
        rows = max(conv.window.tile_rows, 1)
        made = (replace(b, coded=coded) for b in blockings)
        return [Variant(f"{name} {b.name}", lambda b=b: form(conv, b).build(), rows) for b in made]

    if packs_weights and not coded and of_four_bits(conv, 16):
        return listed("nibbles", NibbleDot, (DOT, *OTHER_DOTS))
    outers = listed("outer", Outer, (OUTER, *OTHER_OUTERS)) if in_lanes else []
    if not in_eights(conv) or (conv.dtype == "uint8" and conv.parts):
        return outers
    return listed("dot", Dot, (DOT, *OTHER_DOTS)) + (outers[:1] if conv.weights.shape[2] == 8 else [])


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the variants of an 8-bit convolution, dense layer or int8 element-wise operator on a core with MVE; else
    none.
    """
    if not target.vectors:
        return []
    conv = read_conv(spec) or read_dense(spec)
    return (
        vector_elementwise(spec) if conv is None else conv_variants(conv, target.packs_weights, is_coded(conv, target))
    )
