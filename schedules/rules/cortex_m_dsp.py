"""Row kernels for Cortex-M4, M7 and M33 (DSP extension): two 16-bit products per `smlad` instruction.

Convolutions take 2 pixels x 2 channels at a time: four int8 of each are widened by `sxtb16` (bytes 0 and 2) and
`sxtb16 ror 8` (bytes 1 and 3) and multiplied by `smlad`; wider blocks spill on 14 registers. Depthwise ones are the
scalar kernels: without a reduction over channels the widening costs more than `smlabb` and `smlatt` save (3.3
instructions a product instead of 2.6 on 12x12x64).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules import cortex_m_scalar as scalar
from tvm_cascade.schedules.rules.clipped import Clipped, is_clipped
from tvm_cascade.schedules.rules.coded import is_coded
from tvm_cascade.schedules.rules.conv_row import Blocking, ConvRow
from tvm_cascade.schedules.rules.dense import read_dense
from tvm_cascade.schedules.rules.emit import best_step
from tvm_cascade.schedules.rules.few_taps import few_taps, has_few_taps
from tvm_cascade.schedules.rules.geometry import Columns
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.packing import PAIRED, interleave, nibbles, paired
from tvm_cascade.schedules.rules.quantized import QuantizedConv, of_four_bits, read_conv
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, address_of, i32, tirx

BLOCKING = Blocking(pixels=2, channels=2)
COLUMN = Blocking(pixels=1, channels=4, rows=True)  # for maps of one column
CLIPPED = Blocking(pixels=2, channels=2, unroll=12)  # no register is left for the counter of the loop over taps
CLIPPED_FEW = Blocking(pixels=2, channels=2, unroll=4, step=2)  # of weights in four bits, whose taps take more code
PAIRS = 256  # words of a table of pairs of 16 values
OTHERS = tuple(
    Blocking(pixels, channels, unroll=step, step=step)
    for pixels, channels, step in ((2, 2, 2), (2, 2, 8), (1, 4, 2), (2, 2, 1), (1, 2, 2), (1, 2, 1))
)
_WRITTEN_OUT = 12  # groups of four taps in the code of a window over a map of one column, at most


class Conv(ConvRow):
    group = 4
    by_form = True

    def row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        """Emit four taps at a time if the valid taps are aligned with the packed weights, single taps elsewhere."""
        lo, hi = group.k0 * self.depth, group.k1 * self.depth
        if lo % 4 or (hi % 4 and hi < self.whole):
            self.singles(acc, at, weights, range(lo, hi), lo, pixels, size)
            return
        words = (min(hi, self.whole) - lo) // 4
        if words:
            step = best_step(words, self.blocking.step, self.blocking.unroll)
            for i in self.k.unrolled(words // step, step):
                self.products(acc, at, weights, i, lo, pixels, size)
        self.singles(acc, at, weights, range(lo + words * 4, hi), lo, pixels, size)

    def products(self, acc: Value, at: Value, weights: Value, i: Value, lo: Value, pixels: int, size: int) -> None:
        """Emit the products for the four taps `i` in a row that begins at tap `lo`."""
        k, pairs = self.k, self.inputs(at + i * 4, pixels)
        for j in range(size):
            even, odd = self._weights(self.place(weights, size, j, i * 4 + lo))
            for p, (xa, xb) in enumerate(pairs):
                first = k.let(call("smlad", xa, even, acc[i32(p * size + j)]), "s")
                k.store(acc, p * size + j, call("smlad", xb, odd, first))

    def inputs(self, at: Value, pixels: int) -> list[tuple[Value, Value]]:
        """Load four inputs of each pixel as two words of int16 pairs: inputs 0 and 2, inputs 1 and 3."""
        k, g, pairs = self.k, self.g, []
        for p in range(pixels):
            word = k.let(call("ldr", address_of(self.x[at + p * g.strides[1] * g.channels])), "xw")
            pairs.append((k.let(self._widened_input("", word), "xa"), k.let(self._widened_input("_ror8", word), "xb")))
        return pairs

    def _widened_input(self, turned: str, word: Value) -> Value:
        kind = "u" if self.conv.dtype == "uint8" else "s"
        if not self.less_zero:
            return call(f"{kind}xtb16{turned}", word)
        low = -self.conv.input_zero_point & 0xFFFF
        return call(f"{kind}xtab16{turned}", i32((low << 16 | low) - (low >> 15 << 32)), word)

    def _weights(self, place: Value) -> tuple[Value, Value]:
        """Load the four weights from index `place` on as two words of int16 pairs: weights 0 and 2, weights 1 and 3."""
        word = self.k.let(call("ld32", address_of(self.w[place])), "ww")
        return self.k.let(call("sxtb16", word), "wa"), self.k.let(call("sxtb16_ror8", word), "wb")


class HalfwordConv(Conv):
    """Weights as int16: no widening, twice the flash. Required if weights less their zero point need nine bits; layers
    with uint8 weights in the file are all stored so.
    """

    def pack_weights(self) -> np.ndarray:
        return self.arranged(lambda w: interleave(paired(w.astype(np.int16)), self.blocking.channels, self.group))

    def single_place(self, weights: Value, size: int, j: int, tap: int) -> Value:
        moved = tap // 4 * 4 + PAIRED.index(tap % 4) if tap < self.whole else tap
        return super().single_place(weights, size, j, moved)

    def _weights(self, place: Value) -> tuple[Value, Value]:
        even = self.k.let(call("ld32", address_of(self.w[place])), "wa")
        return even, self.k.let(call("ld32", address_of(self.w[place + 2])), "wb")


class _Clipped(Clipped):
    less_zero = True


class _ClippedConv(_Clipped, Conv):
    pass


class _ClippedHalfwordConv(_Clipped, HalfwordConv):
    pass


class NibbleConv(Conv):
    """Weights of four bits, eight in a word: half the flash, and about as many instructions as bytes take.

    Four of them at a time are taken to the upper halves of bytes: sixteen times the weights. So all sums are sixteen times as
    large until they are requantized.
    """

    group = 8
    scale = 16  # of the sums
    stored_as = "4 bits"

    def __init__(self, conv: QuantizedConv, blocking: Blocking) -> None:
        super().__init__(conv, blocking)
        self.words = self.k.view(self.k.constants[0], "int32", "ww")
        self.taps, self.length = self.taps // self.group, self.length // self.group  # of weights, in words from here on

    def pack_weights(self) -> np.ndarray:
        return nibbles(super().pack_weights())

    def place(self, weights: Value, size: int, j: int, tap: Value) -> Value:
        packed = self.packed(size)
        return weights + j // packed * (self.taps * packed) + tap * packed + j % packed

    def start(self, index: int, channel: Value, pixels: int, size: int) -> Value:
        acc = super().start(index, channel, pixels, size)
        for i in range(pixels * size if self.scale > 1 else 0):
            self.k.store(acc, i, acc[i32(i)] * self.scale)
        return acc

    def outputs(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        for i in range(pixels * size if self.scale > 1 else 0):
            self.k.store(acc, i, tirx.shift_right(acc[i32(i)], i32(4)))
        super().outputs(acc, x, channel, pixels, size)

    def before(self, column: Value) -> Value:
        return column * (self.depth // self.group)

    def row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        lo, words = self.before(group.k0), self.before(group.k1 - group.k0)
        step, unroll = (max(taps * 4 // self.group, 1) for taps in (self.blocking.step, self.blocking.unroll))
        step = best_step(words, step, unroll)
        for i in self.k.unrolled(words // step, step):
            self.products(acc, at, weights, i, lo, pixels, size)

    def products(self, acc: Value, at: Value, weights: Value, i: Value, lo: Value, pixels: int, size: int) -> None:
        for half in range(self.group // 4):
            self._four(acc, at + i * self.group + half * 4, weights, i + lo, half, pixels, size)

    def _four(self, acc: Value, at: Value, weights: Value, i: Value, half: int, pixels: int, size: int) -> None:
        """Emit four taps' products, from `at` in `x` on: with the weights' whole group `i`, or half a group."""
        k, pairs = self.k, self.inputs(at, pixels)
        for j in range(size):
            even, odd = self._widened(self.place(weights, size, j, i), half)
            for p, (xa, xb) in enumerate(pairs):
                first = k.let(call("smlad", xa, even, acc[i32(p * size + j)]), "s")
                k.store(acc, p * size + j, call("smlad", xb, odd, first))

    def _widened(self, place: Value, half: int) -> tuple[Value, Value]:
        """Return four weights as two words of int16 pairs, times `scale`: weights 0 and 2, weights 1 and 3."""
        eight = self.k.let(call("ldr", address_of(self.words[place])), "ww")
        four = self.k.let(call("upper_nibbles" if half else "lower_nibbles", eight), "wn")
        return self.k.let(call("sxtb16", four), "wa"), self.k.let(call("sxtb16_ror8", four), "wb")


class _TableConv(NibbleConv):
    """Weights of at most 16 values as four-bit indices, behind a table of pairs: a byte, two indices, is the place of a
    word with two weights as int16. So two loads take the place of a load and widening.
    """

    group = 4
    scale = 1
    stored_as = "indices of 4 bits"

    def __init__(self, conv: QuantizedConv, blocking: Blocking) -> None:
        super().__init__(conv, blocking)
        self.codes = self.k.view(self.k.constants[0], "uint8", "codes")

    def pack_weights(self) -> np.ndarray:
        values, indices = np.unique(Conv.pack_weights(self), return_inverse=True)
        four = indices.astype(np.uint8).reshape(-1, 4)
        held = np.zeros(16, np.uint32)
        held[: values.size] = values.astype(np.int16).view(np.uint16)
        pairs = held[:, None] << 16 | held
        codes = (four[:, :2] | four[:, 2:] << 4).reshape(-1)
        return np.concatenate([pairs.reshape(-1).view(np.uint8), codes, np.zeros(-codes.size % 4, np.uint8)]).view(
            np.int32
        )

    def _widened(self, place: Value, half: int) -> tuple[Value, Value]:
        assert not half
        first = place * 2 + 4 * PAIRS
        even, odd = (self.words[self.codes[first + k].astype("int32")] for k in range(2))
        return self.k.let(even, "wa"), self.k.let(odd, "wb")


def conv2d(
    conv: QuantizedConv, blocking: Blocking = BLOCKING, halfwords: bool = False, clipped: bool = False
) -> RowKernel:
    """Build a K x K or 1 x 1 convolution; `halfwords` stores weights as int16, as for all weights that are uint8 in the
    file, `clipped` takes small code (`schedules.rules.clipped`).
    """
    if not blocking.coded and (halfwords or conv.unsigned or conv.weights.dtype == np.int16):
        build = _ClippedHalfwordConv if clipped else HalfwordConv
        return build(replace(conv, weights=conv.weights.astype(np.int16)), blocking).build()
    return (_ClippedConv if clipped else Conv)(conv, blocking).build()


class _ClippedNibbleConv(_Clipped, NibbleConv):
    pass


class _ClippedTableConv(_Clipped, _TableConv):
    pass


def four_bits(conv: QuantizedConv, blocking: Blocking = BLOCKING, clipped: bool = False) -> RowKernel:
    """Build K x K and 1 x 1 convolutions with weights of four bits (`of_four_bits`)."""
    return (_ClippedNibbleConv if clipped else NibbleConv)(conv, blocking).build()


def by_table(conv: QuantizedConv, blocking: Blocking = BLOCKING, clipped: bool = False) -> RowKernel:
    """Build K x K and 1 x 1 convolutions with weights of at most 16 values (`of_few_values`)."""
    return (_ClippedTableConv if clipped else _TableConv)(conv, blocking).build()


def of_few_values(conv: QuantizedConv) -> bool:
    """Return True for a layer that `by_table` takes: its weights have at most 16 values, its input channels are a multiple
    of four above four, and the table costs at most half of what indices save."""
    depth = conv.weights.shape[2]
    plain = not (conv.depthwise or conv.parts or conv.window.tile_rows) and depth > 4 and depth % _TableConv.group == 0
    return plain and conv.weights.size >= 16 * PAIRS and np.unique(conv.weights).size <= 16


def _is_small_column(conv: QuantizedConv) -> bool:
    """Return True for a window of several rows over a map of one column, whose kernel rows are few enough to write out."""
    height, words = conv.window.kernel[0], -(-conv.weights.shape[2] // 4)
    return conv.window.width == 1 and height > 1 and height * min(words, COLUMN.step) <= _WRITTEN_OUT


def conv_variants(
    conv: QuantizedConv, packs_weights: bool = False, coded: bool = False, small: bool = False
) -> list[Variant]:
    """List a convolution's variants, the default first, the smallest code last; all of them are small with `small`."""
    if conv.depthwise:
        return scalar.depthwise_variants(conv, packs_weights)
    clipped, rows = small and is_clipped(conv, Conv.group), max(conv.window.tile_rows, 1)
    usual, column, *others = (
        replace(b, narrow=small or coded) for b in (CLIPPED if clipped else BLOCKING, COLUMN, *OTHERS)
    )
    if coded:
        blockings = (replace(b, coded=True) for b in ([usual] if clipped else [usual, *others]))
        return [Variant(f"conv {b.name}", partial(conv2d, conv, b, clipped=clipped), rows) for b in blockings]
    fewer = [replace(CLIPPED_FEW, narrow=small)] if clipped else [*others, usual]
    if packs_weights and of_four_bits(conv, NibbleConv.group):
        return [Variant(f"nibbles {b.name}", partial(four_bits, conv, b, clipped)) for b in fewer]
    if packs_weights and of_few_values(conv):
        return [Variant(f"table {b.name}", partial(by_table, conv, b, clipped)) for b in fewer]
    if clipped:
        return [Variant(f"clipped {usual.name}", partial(conv2d, conv, usual, clipped=True), rows)]
    written = [replace(usual, rows=True)] if conv.window.kernel[0] > 1 else []
    blockings = [*([column] if _is_small_column(conv) else []), usual, *written, *others]
    made = [Variant("few taps", partial(few_taps, conv))] if has_few_taps(conv) else []
    return made + [Variant(f"conv {b.name}", partial(conv2d, conv, b), rows) for b in blockings]


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the variants of a convolution or dense layer on a core with the DSP extension; none for any other operator."""
    conv = read_conv(spec) or read_dense(spec)
    small = target.optimise == "size"
    return [] if conv is None else conv_variants(conv, target.packs_weights, is_coded(conv, target), small)
