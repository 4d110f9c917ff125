"""Row kernels for scalar cores, with at most one multiply-accumulate per instruction: Cortex-M0+ and M3, RISC-V.

Convolutions keep eight accumulators, 4 pixels x 2 channels: six loads for eight products. Depthwise convolutions take 3
to 7 pixels of a channel at a time and load every input of the block once. The zero point is folded into the bias; a
depthwise edge adds it back tap by tap.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules import geometry
from tvm_cascade.schedules.rules.channel_table import ChannelTable
from tvm_cascade.schedules.rules.clipped import Clipped, is_clipped
from tvm_cascade.schedules.rules.coded import is_coded
from tvm_cascade.schedules.rules.conv_row import Blocking, ConvRow, DepthwiseRow, Layer
from tvm_cascade.schedules.rules.dense import read_dense
from tvm_cascade.schedules.rules.elementwise import scalar_elementwise
from tvm_cascade.schedules.rules.emit import best_step
from tvm_cascade.schedules.rules.geometry import Columns, Run
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.packing import tap_nibbles
from tvm_cascade.schedules.rules.parts import Source
from tvm_cascade.schedules.rules.quantized import QuantizedConv, in_four_bits, of_four_bits, read_conv
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx

BLOCKING = Blocking(pixels=4, channels=2, unroll=9)
NIBBLES = Blocking(pixels=3, channels=2)  # of weights in four bits, whose halves take registers
LLVM_BLOCKING = Blocking(2, 2)  # LLVM keeps fewer accumulators and addresses in registers than GCC does
_SMALL = tuple(Blocking(pixels, 2, unroll=1, step=2) for pixels in (4, 2, 1))
OTHERS = (Blocking(4, 2), Blocking(2, 4, unroll=9), Blocking(3, 2, unroll=9), Blocking(2, 2), *_SMALL)
DEPTHWISE_PIXELS = (3, 4, 5, 6, 7)
_DEPTH_OF_NIBBLES = 8  # input channels of layers with weights of four bits: a multiple of it, so padding has biases
_WORTH_DEPTHWISE = 256  # weights of a depthwise layer, at least, that takes four bits: the kernel's code is larger
_WORTH_NIBBLES = 1024  # weights of such a layer, at least: the kernel's code is larger


class Conv(ConvRow):
    group = 1
    by_form = True

    def row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        lo, hi = group.k0 * self.depth, group.k1 * self.depth
        step = best_step(hi - lo, self.blocking.step, self.blocking.unroll)
        for tap in self.k.unrolled((hi - lo) // step, step):
            self.products(acc, at, weights, tap, lo, pixels, size)

    def products(self, acc: Value, at: Value, weights: Value, i: Value, lo: Value, pixels: int, size: int) -> None:
        """Emit the products for tap `i` in a row that begins at tap `lo`."""
        k, g = self.k, self.g
        values = [k.let(self.w[self.place(weights, size, j, i + lo)].astype("int32"), "wv") for j in range(size)]
        for p in range(pixels):
            x = k.let(self.x[at + i + p * g.strides[1] * g.channels].astype("int32"), "xv")
            for j, value in enumerate(values):
                k.store(acc, p * size + j, call("mla", x, value, acc[i32(p * size + j)]))

    def add_zeros(self, sums: Value, weights: Value, taps: int, size: int) -> None:
        with self.k.loop(i32(taps), "i") as i:
            for j in range(size):
                weight = self.w[self.place(weights, size, j, i)].astype("int32")
                self.k.store(sums, j, call("mla", weight, i32(self.conv.input_zero_point), sums[i32(j)]))


class _ClippedConv(Clipped, Conv):
    pass


class NibbleConv(Conv):
    """Weights of four bits, two in a byte: the first in the lower half, the second in the upper half."""

    group = 2
    stored_as = "4 bits"

    def __init__(self, conv: QuantizedConv, blocking: Blocking) -> None:
        super().__init__(conv, blocking)
        self.taps, self.length = self.taps // self.group, self.length // self.group  # of weights, in bytes from here on

    def pack_weights(self) -> np.ndarray:
        return tap_nibbles(super().pack_weights())

    def place(self, weights: Value, size: int, j: int, tap: Value) -> Value:
        packed = self.packed(size)
        return weights + j // packed * (self.taps * packed) + tap * packed + j % packed

    def before(self, column: Value) -> Value:
        return column * (self.depth // self.group)

    def row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        lo, count = self.before(group.k0), self.before(group.k1 - group.k0)
        step = best_step(count, max(self.blocking.step // 2, 1), max(self.blocking.unroll // 2, 1))
        for i in self.k.unrolled(count // step, step):
            self.products(acc, at, weights, i, lo, pixels, size)

    def products(self, acc: Value, at: Value, weights: Value, i: Value, lo: Value, pixels: int, size: int) -> None:
        """Emit the products for the two taps in byte `i` of a run whose first byte is `lo`."""
        k, g = self.k, self.g
        held = [k.let(self.w[self.place(weights, size, j, i + lo)].astype("int32"), "ww") for j in range(size)]
        for half in range(self.group):
            values = [k.let(_nibble(b, half), "wv") for b in held]
            for p in range(pixels):
                x = k.let(self.x[at + i * 2 + half + p * g.strides[1] * g.channels].astype("int32"), "xv")
                for j, value in enumerate(values):
                    k.store(acc, p * size + j, call("mla", x, value, acc[i32(p * size + j)]))


def conv2d(conv: QuantizedConv, blocking: Blocking = BLOCKING, clipped: bool = False) -> RowKernel:
    """Build a K x K or 1 x 1 convolution; `clipped` takes small code (`schedules.rules.clipped`)."""
    return (_ClippedConv if clipped else Conv)(conv, blocking).build()


def four_bits(conv: QuantizedConv, blocking: Blocking) -> RowKernel:
    """Build a K x K or 1 x 1 convolution with weights of four bits (`of_four_bits`)."""
    return NibbleConv(conv, blocking).build()


def depthwise(conv: QuantizedConv, pixels: int | None = None) -> RowKernel:
    """Build a depthwise convolution with any channel multiplier; `pixels` per block, by default for the fewest blocks
    per row.
    """
    return Depthwise(conv, pixels or geometry.fewest_blocks(conv.window.out_width, DEPTHWISE_PIXELS)).build()


class Depthwise(DepthwiseRow):
    """Depthwise convolution one channel at a time; its constants are a `ChannelTable`, then the taps of each channel.

    Padding taps count as the zero point, so a single bias serves all of a channel's windows.
    """

    by_form = True

    def biases(self) -> np.ndarray:
        return geometry.whole_bias(self.conv.weights, self.conv.bias, self.conv.input_zero_point)

    def pack(self, biases: np.ndarray) -> np.ndarray:
        self.numbers = ChannelTable(self.conv.requantize, biases)
        self.layout = self.numbers.layout
        return self.with_weights(self.numbers.words)

    def with_weights(self, words: np.ndarray) -> np.ndarray:
        """Return the table `words`, and behind it the weights of each channel."""
        taps = self.packed(self.conv.weights.reshape(-1, self.conv.outputs))
        self.taps, self.weights_at, self.held = len(taps), words.nbytes // taps.itemsize, taps.nbytes
        filled = np.zeros(-(-taps.nbytes // 4) * 4 // taps.itemsize, taps.dtype)
        filled[: taps.size] = taps.T.ravel()
        return np.concatenate([words, filled.view(np.int32)])

    def packed(self, taps: np.ndarray) -> np.ndarray:
        """Return the weights, [taps, channels], as they are stored."""
        return taps

    def kernel_row(self, weights: Value, r: int) -> list[Value]:
        """Return the weights in row `r` of a channel's window; `weights` is the place of the first one."""
        return [self.w[weights + (r * self.g.kernel[1] + kx)].astype("int32") for kx in range(self.g.kernel[1])]

    def without_values(self) -> QuantizedConv:
        padded = len(self.g.row_variants()) > 1 or any(
            (k0, k1) != (0, self.g.kernel[1]) for run in self.g.runs(self.pixels) for k0, k1 in run.taps
        )
        zero = self.conv.input_zero_point if padded else 0  # `_row` and `_padding_row` write it
        return replace(self.conv.without_values(), input_zero_point=zero)

    def _emit(self) -> None:
        self.numbers.open(self.k, self.record)
        super()._emit()

    def channels(self, run: Run, x: Value, source: Source, rows: list[Value]) -> None:
        k, g, times = self.k, self.g, self.conv.multiplier
        pixels = range(len(run.taps))
        column = (x * g.strides[1] - g.padding[1]) * source.window.channels
        with k.loop(source.window.channels, "c") as c, k.loop(times, "t") as t:
            channel = (c + source.first) * times + t
            acc = k.local(len(pixels), "acc")
            start = self.start(channel)
            for p in pixels:
                k.store(acc, p, start)
            for r in range(g.kernel[0]):
                weights = channel * self.taps + self.weights_at
                with geometry.valid_row(k, g, r, self.r0, self.r1):
                    self._row(acc, rows[r] + column + c, self.kernel_row(weights, r), run, source)
                inside = geometry.row_test(g, r, self.r0, self.r1)
                if inside is not None:
                    with k.when(tirx.Not(inside)):
                        self._padding_row(acc, self.kernel_row(weights, r), len(pixels))
            sums = [acc[i32(p)] for p in pixels]
            for p, value in enumerate(self.finished(channel, sums)):
                k.store(self.out, (x + p) * (g.channels * times) + channel, value.astype(self.conv.out_dtype))

    @property
    def zero(self) -> Value:
        """Return the input's zero point."""
        return self.conv.input_zero_point

    def start(self, channel: Value) -> Value:
        """Return a channel's sum before the first tap."""
        return self.numbers.bias(self.k, channel, 0)

    def finished(self, channel: Value, sums: list[Value]) -> list[Value]:
        """Return a channel's outputs from its sums."""
        return self.numbers.requantized(self.k, self.conv.requantize, channel, sums)

    def _padding_row(self, acc: Value, weights: list[Value], pixels: int) -> None:
        """Add the products of the zero point in a kernel row that is padding."""
        more = self.k.let(sum(weights, i32(0)) * self.zero, "more")
        for p in range(pixels):
            self.k.store(acc, p, acc[i32(p)] + more)

    def _row(self, acc: Value, at: Value, weights: list[Value], run: Run, source: Source) -> None:
        """Emits the products of a kernel row, each input column loaded once; padding columns count as the zero point."""
        k, g = self.k, self.g
        kw, stride, hop = g.kernel[1], g.strides[1], g.dilation[1]
        values = [k.let(weight, "wv") for weight in weights]
        for p, (k0, k1) in enumerate(run.taps):
            for kx in (*range(k0), *range(k1, kw)):
                k.store(acc, p, acc[i32(p)] + values[kx] * self.zero)
        reads: dict[int, list[tuple[int, int]]] = {}  # by column: pixels and taps
        for p, (k0, k1) in enumerate(run.taps):
            for kx in range(k0, k1):
                reads.setdefault(p * stride + kx * hop, []).append((p, kx))
        for column, uses in sorted(reads.items()):
            x = k.let(source.load(at + column * source.window.channels), "xv")
            for p, kx in uses:
                k.store(acc, p, call("mla", x, values[kx], acc[i32(p)]))


class NibbleDepthwise(Depthwise):
    """Weights of four bits: two taps of a channel in a byte. A channel begins with a byte."""

    stored_as = "4 bits"

    def packed(self, taps: np.ndarray) -> np.ndarray:
        return tap_nibbles(taps)

    def kernel_row(self, weights: Value, r: int) -> list[Value]:
        taps = range(r * self.g.kernel[1], (r + 1) * self.g.kernel[1])
        pairs = {i: self.k.let(self.w[weights + i].astype("int32"), "ww") for i in dict.fromkeys(t // 2 for t in taps)}
        return [_nibble(pairs[t // 2], t % 2) for t in taps]


def _nibble(byte: Value, upper: int) -> Value:
    """Return a weight in the lower or upper half of a byte that was loaded with its sign."""
    return tirx.shift_right(byte, i32(4)) if upper else call("low_nibble", byte)


def packs(conv: Layer) -> bool:
    """Return True for a layer that `four_bits` takes, and whose weights outweigh the larger code."""
    return conv.weights.size >= _WORTH_NIBBLES and of_four_bits(conv, _DEPTH_OF_NIBBLES)


def conv_variants(
    conv: QuantizedConv, usual: Blocking = BLOCKING, coded: bool = False, small: bool = False
) -> list[Variant]:
    """List a convolution's variants, the default first, with blocks of `usual`, and the smallest code last; all of them are
    small with `small`.
    """
    clipped, rows_a_call = small and is_clipped(conv, Conv.group), max(conv.window.tile_rows, 1)
    rows = [replace(b, rows=True) for b in (BLOCKING, OTHERS[0])] if conv.window.kernel[0] > 1 else []
    blockings = [usual, BLOCKING, *rows, *OTHERS]
    if coded:
        blockings = [replace(b, coded=True) for b in (usual, *_SMALL)]
    elif clipped:
        blockings = [replace(usual, unroll=usual.step)]
    made, kind = dict.fromkeys(replace(b, narrow=small or coded) for b in blockings), "clipped" if clipped else "conv"
    return [Variant(f"{kind} {b.name}", partial(conv2d, conv, b, clipped=clipped), rows_a_call) for b in made]


def packs_depthwise(conv: Layer) -> bool:
    """Return True for a depthwise layer that `NibbleDepthwise` takes, and whose weights outweigh the larger code."""
    return conv.weights.size >= _WORTH_DEPTHWISE and in_four_bits(conv.weights)


def depthwise_variants(conv: QuantizedConv, packs_weights: bool = False) -> list[Variant]:
    """List a depthwise convolution's variants by pixels per block, the default first."""
    widths = depthwise_widths(conv.window.out_width)
    if not (packs_weights and packs_depthwise(conv)):
        return [Variant(f"depthwise {p}", partial(depthwise, conv, p)) for p in widths]
    return [Variant(f"depthwise nibbles {p}", lambda p=p: NibbleDepthwise(conv, p).build()) for p in widths]


def depthwise_widths(out_width: int) -> list[int]:
    """List the pixels per block of a depthwise convolution's variants, the default first: the fewest blocks per row."""
    usual = geometry.fewest_blocks(out_width, DEPTHWISE_PIXELS)
    return sorted({usual, *(min(p, out_width) for p in (1, 2, *DEPTHWISE_PIXELS))}, key=lambda p: (p != usual, p))


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the variants of a convolution, dense layer or element-wise operator in plain scalar arithmetic."""
    return scalar_variants(spec, target, LLVM_BLOCKING if target.backend == "llvm" else BLOCKING)


def scalar_variants(
    spec: OperatorSpec, target: KernelTarget, usual: Blocking, nibbles: Blocking = NIBBLES
) -> list[Variant]:
    """List the scalar variants for a core with convolutions in blocks of `usual` by default, of `nibbles` with weights of
    four bits.
    """
    conv = read_conv(spec) or read_dense(spec)
    small, coded = target.optimise == "size", conv is not None and is_coded(conv, target)
    if conv is None:
        return scalar_elementwise(spec, small)
    if conv.depthwise:
        return depthwise_variants(conv, target.packs_weights)
    if target.packs_weights and not coded and packs(conv):
        blockings = dict.fromkeys(replace(b, narrow=small) for b in (nibbles, *OTHERS))
        return [Variant(f"nibbles {b.name}", partial(four_bits, conv, b)) for b in blockings]
    return conv_variants(conv, usual, coded, small)
