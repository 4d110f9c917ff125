"""Row kernels for Cortex-M55 and M85: the M-profile vector extension, through LLVM.

- Convolutions whose input channels are a multiple of eight: 2 pixels x 4 channels, sixteen (or eight widened) products
  per `vmladava`. Remainders of eight use int16 lanes, so nothing is read beyond the row.
- First layers and other channel counts: lanes over four output channels, one input value times a vector at a time.
- Depthwise: lanes over eight channels. The sum of two products fits int16 (weights are at least -127, checked per
  layer), so taps are taken in pairs and their sums widened into the accumulators of even and odd channels.

The accumulators of two pixels by four channels take eight even registers, lr among them: LLVM must not turn these loops
into low-overhead loops (`-disable-arm-loloops`; the feature `lob` has to stay on, or LLVM 22 drops vector copies).
Requantization: `schedules.rules.lanes`. The C back end cannot print TIR vectors: there this core uses the DSP kernels.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.conv_row import Blocking, ConvRow, DepthwiseRow
from tvm_cascade.schedules.rules.dense import read_dense
from tvm_cascade.schedules.rules.elementwise_mve import vector_elementwise
from tvm_cascade.schedules.rules.emit import best_step
from tvm_cascade.schedules.rules.geometry import Columns, Run, folded_bias, valid_row
from tvm_cascade.schedules.rules.lanes import LANES, put, requantize_lanes, splat, vector
from tvm_cascade.schedules.rules.packing import lane_records, lane_table, tailed_interleave
from tvm_cascade.schedules.rules.parts import Source, in_eights, tables_of
from tvm_cascade.schedules.rules.quantized import QuantizedConv, read_conv
from tvm_cascade.schedules.rules.requantize import emit_requantize
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx


class _LaneOutputs(ConvRow):
    """Output channels in groups of four: a table of vectors `[m][shift][biases...]` for each four channels."""

    def pack_table(self) -> np.ndarray:
        conv = self.conv
        folded = folded_bias(self.g, conv.weights, conv.bias, conv.input_zero_point)
        self.words = LANES * (2 + folded.shape[0] * folded.shape[1])
        self.passes = self.pass_counts()
        head = [*self.passes, conv.requantize.zero_point]
        self.head = -(-len(head) // LANES) * LANES
        head = np.array(head + [0] * (self.head - len(head)), np.int32)
        return np.concatenate([head, lane_table(conv.requantize.table, folded.reshape(-1, conv.outputs))])

    def pass_counts(self) -> list[int]:
        """Trip counts of the loops over a kernel row that LLVM must not unroll.

        They are loaded from the table, so that LLVM does not know them: it would unroll the loops, hoist the loads of all
        iterations and spill registers.
        """
        rows = [t.split(taps) for t in self.part_kernels for taps in t.run_lengths()]
        return sorted({n for n, _ in rows if n > 1})

    def split(self, taps: int) -> tuple[int, int]:
        """Iterations, and steps of `group` taps per iteration, of the loop over `taps` taps of a kernel row."""
        count = taps // self.group
        step = best_step(count, self.blocking.step, self.blocking.unroll)
        return (count // step, step) if count else (0, 0)

    def opaque(self, passes: int) -> Value:
        return self.k.let(self.table[i32(self.passes.index(passes))], "passes") if passes > 1 else passes

    def block_words(self, channel: Value, j: int) -> Value:
        """Index in the table of the entry of the four channels from `channel + j` on."""
        first = channel // LANES if isinstance(channel, int) else tirx.truncdiv(channel, i32(LANES))
        return first * self.words + (j // LANES * self.words + self.head)

    def bias_words(self, index: int) -> Value:
        """Offset in an entry of the bias vector for the current row and column group `index` (`bias_index` starts at 3)."""
        return (self.bias + (index - 1)) * LANES

    def finish_lanes(self, acc: Value, x: Value, channel: Value, words: Value, p: int, j: int) -> None:
        m, shift = vector(self.table, words, LANES), vector(self.table, words + LANES, LANES)
        zero = self.table[i32(len(self.passes))]
        value = requantize_lanes(self.k, self.conv.requantize, acc, m, shift, zero)
        put(self.k, self.out, (x + p) * self.conv.outputs + channel + j, value.astype("int8x4"), LANES)


class _Dot(_LaneOutputs):
    """Convolution by dot products: sixteen products at a time along a kernel row."""

    group = 16

    def __init__(self, conv: QuantizedConv, blocking: Blocking) -> None:
        super().__init__(conv, blocking)
        self.words_of_w = self.k.view(self.k.constants[0], "int32", "ww")

    def pack_weights(self) -> np.ndarray:
        conv = self.conv
        aligned = conv.non_contiguous or self.depth % 16 == 0 or len(conv.window.column_groups()) == 1
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
        k = self.k
        lo, hi = group.k0 * self.depth, group.k1 * self.depth
        passes, step = self.split(hi - lo)
        if passes:
            for i in k.unrolled(self.opaque(passes), step):
                self._dot(acc, at, weights, i * self.group, lo, self.group, pixels, size)
        if hi > self.whole:
            self._dot(acc, at, weights, i32(passes * step * self.group), lo, 8, pixels, size)

    def _dot(
        self, acc: Value, at: Value, weights: Value, tap: Value, lo: int, lanes: int, pixels: int, size: int
    ) -> None:
        k, g = self.k, self.g
        wide = {16: "int8x16", 8: "int16x8"}[lanes]
        xs = [
            k.let(vector(self.x, at + tap + p * g.strides[1] * g.channels, lanes).astype(wide), "xv", wide)
            for p in range(pixels)
        ]
        for j in range(size):
            block = weights + j // LANES * (self.taps * LANES)
            place = block + (tap + lo) * LANES + j % LANES * lanes
            w = k.let(self._weights(place) if lanes == 16 else vector(self.w, place, lanes).astype(wide), "wv", wide)
            for p, x in enumerate(xs):
                value = acc[i32(p * size + j)]
                total = tirx.call_llvm_pure_intrin("int32", "llvm.arm.mve.vmldava", 0, 0, 0, value, x, w)
                k.store(acc, p * size + j, total)

    def _weights(self, place: Value) -> Value:
        """Sixteen weights, loaded as words (flash is aligned), which have four times the range of immediate offsets."""
        words = vector(self.words_of_w, place // 4 if isinstance(place, int) else tirx.truncdiv(place, i32(4)), LANES)
        return tirx.reinterpret("int8x16", words)

    def outputs(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        if not self.conv.requantize.short:
            self._singly(acc, x, channel, pixels, size)
            return
        lanes = [i32(i) for i in range(LANES)]
        for p in range(pixels):
            for j in range(0, size, LANES):
                values = [acc[i32(p * size + j + i)] for i in range(LANES)]
                four = self.k.let(tirx.Shuffle(values, lanes), "four", "int32x4")
                self.finish_lanes(four, x, channel, self.block_words(channel, j), p, j)

    def _singly(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        """Requantizes outputs one by one: lanes cannot do the form that rounds once."""
        k, q = self.k, self.conv.requantize
        for j in range(size):
            words = self.block_words(channel, j) + j % LANES
            m, e = k.let(self.table[words], "m"), k.let(0 - self.table[words + LANES], "e")
            addend = k.let(tirx.shift_left(i32(1), e - 1), "r")
            for p in range(pixels):
                value = emit_requantize(k, q, acc[i32(p * size + j)], m, addend, e)
                k.store(self.out, (x + p) * self.conv.outputs + channel + j, value.astype("int8"))


class _Outer(_LaneOutputs):
    """Convolution by outer products: one input value times the weights of four output channels at a time."""

    group = 1

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

    def row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        k = self.k
        lo, hi = group.k0 * self.depth, group.k1 * self.depth
        passes, step = self.split(hi - lo)
        with k.loop(self.opaque(passes), "i") as i:
            for u in range(step):
                self._tap(acc, at + i * step + u, weights, i * step + u + lo, pixels, size)

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


DOT = Blocking(pixels=2, channels=LANES, unroll=4, step=3)
OUTER = Blocking(pixels=4, channels=LANES, unroll=9, step=4)
_OTHER_DOTS = tuple(Blocking(p, LANES, unroll=n, step=n) for p, n in ((2, 6), (2, 2), (2, 1), (1, 2), (1, 1)))
_OTHER_OUTERS = tuple(
    Blocking(pixels, LANES, unroll, step)
    for pixels, unroll, step in ((6, 9, 4), (5, 9, 4), (3, 9, 4), (4, 3, 3), (4, 1, 1), (2, 1, 1))
)


def conv_variants(conv: QuantizedConv) -> list[Variant]:
    """Variants of a convolution, the default first; none where a group's output channels are no multiple of four.

    By dot products where input channels are a multiple of eight, else by outer products, which cannot round once.
    """
    if conv.depthwise:
        return depthwise_variants(conv)
    short, once = conv.requantize.short, conv.requantize.once
    if conv.outputs // conv.groups % LANES or not (short or once):
        return []

    def listed(name: str, form: type[_LaneOutputs], blockings: tuple[Blocking, ...]) -> list[Variant]:
        rows = max(conv.window.tile_rows, 1)
        return [Variant(f"{name} {b.name}", lambda b=b: form(conv, b).build(), rows) for b in blockings]

    outers = listed("outer", _Outer, (OUTER, *_OTHER_OUTERS)) if short else []
    if not in_eights(conv):
        return outers
    return listed("dot", _Dot, (DOT, *_OTHER_DOTS)) + (outers[:1] if conv.weights.shape[2] == 8 else [])


def depthwise_variants(conv: QuantizedConv) -> list[Variant]:
    """Variants of a depthwise convolution by pixels a block, the default first.

    They need a multiple of eight channels, multiplier 1, the short requantization, weights of at least -127, and no parts
    that a table requantizes.
    """
    lanes = in_eights(conv) and conv.multiplier == 1 and conv.requantize.short
    if not lanes or tables_of(conv) or conv.weights.min() < -127:
        return []
    return [Variant(f"depthwise {p}", lambda p=p: _Depthwise(conv, p).build()) for p in (2, 1, 3, 4)]


class _Depthwise(DepthwiseRow):
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
                place = words + (4 + odd) * LANES + self.bias * (2 * LANES)
                start = k.let(vector(self.record, place, LANES), "start", "int32x4")
                for p in pixels:
                    put(k, acc, p * 8 + odd * LANES, start, LANES)
            self._pad(acc, words, run)
            for r in range(g.kernel[0]):
                with valid_row(k, g, r, self.r0, self.r1):
                    self._row(acc, rows[r] + column + block * 8, self._weights(words, r), run, source)
            self._outputs(acc, x, cb, words, len(pixels))

    def _weights(self, words: Value, r: int) -> Value:
        return (words + self.weights_at) * 4 + r * (self.g.kernel[1] * 8)

    def _pad(self, acc: Value, words: Value, run: Run) -> None:
        """Adds `weight * zero point` for the taps in padding columns, in every kernel row that lies inside the input."""
        k, g = self.k, self.g
        missing = [(p, kx) for p, (k0, k1) in enumerate(run.taps) for kx in (*range(k0), *range(k1, g.kernel[1]))]
        if not missing or not self.conv.input_zero_point:
            return
        for r in range(g.kernel[0]):
            with valid_row(k, g, r, self.r0, self.r1):
                for p, kx in missing:
                    w = vector(self.w, self._weights(words, r) + kx * 8, 8).astype("int16x8")
                    z = tirx.const(self.conv.input_zero_point, "int16")
                    self._widen(acc, p, k.let(w * splat(z, 8), "pad", "int16x8"))

    def _row(self, acc: Value, at: Value, weights: Value, run: Run, source: Source) -> None:
        """Emits the products of a kernel row: taps in pairs, whose products are summed in int16."""
        k, g = self.k, self.g
        for first in range(0, g.kernel[1], 2):
            taps = range(first, min(first + 2, g.kernel[1]))
            ws = {kx: k.let(vector(self.w, weights + kx * 8, 8).astype("int16x8"), "wv", "int16x8") for kx in taps}
            for p, (k0, k1) in enumerate(run.taps):
                products = []
                for kx in taps:
                    if k0 <= kx < k1:
                        place = at + (kx * g.dilation[1] + p * g.strides[1]) * source.window.channels
                        products.append(vector(source.x, place, 8).astype("int16x8") * ws[kx])
                if products:
                    self._widen(acc, p, k.let(sum(products[1:], products[0]), "two", "int16x8"))

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
            put(k, self.out, (x + p) * self.g.channels + cb * 8, both.astype("int8x8"), 8)


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """Variants of an int8 convolution, dense layer or element-wise operator on a core with MVE; else none."""
    if not target.vectors:
        return []
    conv = read_conv(spec) or read_dense(spec)
    if conv is not None and conv.dtype != "int8":
        return []
    return vector_elementwise(spec) if conv is None else conv_variants(conv)
