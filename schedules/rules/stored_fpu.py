"""Row kernels of float32 layers whose weights are stored as integers of 8 or 4 bits, or as floats of 16 or 8, for scalar
floating-point units.

They are the kernels of `schedules.rules.fpu_float_kernels`, which read a weight as such a number, and multiply each sum by its
scale once: behind the last tap, or behind the last of a block of taps that share a scale.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.rules import fpu_float_kernels
from tvm_cascade.schedules.rules.conv_row import Blocking
from tvm_cascade.schedules.rules.emit import best_step
from tvm_cascade.schedules.rules.fpu_float_kernels import FLOAT, FloatLayer, StoredWeights, blocked
from tvm_cascade.schedules.rules.geometry import Columns, Run
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.packing import in_bytes
from tvm_cascade.schedules.rules.parts import Source
from tvm_cascade.schedules.rules.small_floats import FLOAT16, KINDS
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx

BLOCKINGS = (Blocking(10, 2), Blocking(8, 2), Blocking(6, 3), Blocking(4, 4), Blocking(2, 8), Blocking(4, 2))
SMALLEST = Blocking(2, 2, unroll=1, step=1)
_LOAD = 3  # instructions that load a weight and make it a float
DEPTHWISE_PIXELS = (3, 4, 5, 6)


class _Conv(fpu_float_kernels._Conv):
    """Convolution whose table holds planes of a value per output channel: biases, scales by block, zero points."""

    floats: Value  # the table as floats
    bytes: Value  # the table as bytes of zero points

    @property
    def how(self) -> StoredWeights:
        assert self.conv.stored is not None
        return self.conv.stored

    def pack_weights(self) -> np.ndarray:
        return _in_bytes(super().pack_weights(), self.how)

    def pack_table(self) -> np.ndarray:
        """Pack the planes of floats as bit patterns, then the zero points, four in a word."""
        how, layer = self.how, self.conv
        planes = [*([] if layer.bias is None else [layer.bias]), *how.scale]
        floats = np.array(planes).astype(np.float32).ravel().view(np.int32)
        zeros = np.zeros(0, np.int8) if how.zeros is None else how.zeros.ravel()
        return np.concatenate([floats, np.pad(zeros, (0, -zeros.size % 4)).view(np.int32)])

    def _open(self) -> None:
        super()._open()
        how, outputs = self.how, self.conv.outputs
        self.floats = self.k.view(self.k.constants[1], FLOAT, "scales")
        if how.bits == 16:
            self.floats_of_16 = self.k.view(self.k.constants[0], FLOAT, "pairs")
            self.words = self.k.view(self.k.constants[0], "int32", "words")
        if how.zeros is not None:
            self.bytes = self.k.view(self.k.constants[1], str(how.zeros.dtype), "zeros")
        self.first_scale = 0 if self.conv.bias is None else outputs
        self.first_zero = 4 * (self.first_scale + how.scale.size)

    def add(self, acc: Value, group: Columns, x: Value, pixels: int, channel: Value, size: int, nth: Value) -> None:
        """Add an output block's products, and multiply by the scales, by tap block or at the end."""
        self.channel = channel
        if not self.how.block:
            self._read_zeros(0, size)
        super().add(acc, group, x, pixels, channel, size, nth)

    def _read_zeros(self, block: Value, size: int) -> None:
        zeros = self.how.zeros
        self.zeros = []
        if zeros is not None:
            first = self.first_zero + block * self.conv.outputs + self.channel
            places = [self.bytes[i32(first + j)] for j in range(size)]
            self.zeros = [self.k.let(p.astype("int32").astype(FLOAT), "zero", FLOAT) for p in places]

    def row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        block, taps = self.how.block, self.taps
        if not block:
            super().row(acc, at, weights, group, pixels, size)
            return
        with self.k.loop(taps // block, "block") as n:
            self._block_of_taps(acc, at, weights, n, block, pixels, size)
        if taps % block:
            self._block_of_taps(acc, at, weights, taps // block, taps % block, pixels, size)

    def _block_of_taps(
        self, acc: Value, at: Value, weights: Value, n: Value, count: int, pixels: int, size: int
    ) -> None:
        k, first = self.k, n * self.how.block
        self._read_zeros(n, size)
        part = fpu_float_kernels._zeros(k, pixels * size)
        step = best_step(count, self.blocking.step, self.blocking.unroll)
        for tap in k.unrolled(count // step, step):
            self.tap(part, at + first + tap, weights, first + tap, pixels, size)
        for j in range(size):
            scale = k.let(self._scale(n, j), "scale", FLOAT)
            for p in range(pixels):
                place = i32(p * size + j)
                k.store(acc, place, call("mlaf", part[place], scale, acc[place]))

    def _scale(self, block: Value, j: int) -> Value:
        return self.floats[i32(self.first_scale + block * self.conv.outputs + self.channel + j)]

    def weights_of(self, weights: Value, tap: Value, size: int) -> list[Value]:
        places = [self.place(weights, size, j, tap) for j in range(size)]
        if self.how.floats:
            return self._small_floats(places)
        even = self.packed(size) % 2 == 0
        reals = [_number(self.w, self.how, place, j % 2 if even else None) for j, place in enumerate(places)]
        return [r - z for r, z in zip(reals, self.zeros, strict=True)] if self.zeros else reals

    def _small_floats(self, places: list[Value]) -> list[Value]:
        """Decode neighbours; an even number of 16 bits begin at a word, and two are loaded at once."""
        k, kind = self.k, self.how.floats
        if self.how.bits == 8 or len(places) % 2:
            return [_number(self.w, self.how, place) for place in places]
        pairs = [tirx.floordiv(i32(place), 2) for place in places[::2]]
        if kind == FLOAT16.name:
            words = [k.let(self.floats_of_16[pair], "pair", FLOAT) for pair in pairs]
            return [call(half, word) for word in words for half in ("half_low", "half_high")]
        words = [k.let(self.words[pair], "pair") for pair in pairs]
        upper = i32(-(1 << 16))
        return [call("real", half) for word in words for half in (word << i32(16), word & upper)]

    def outputs(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        k = self.k
        for j in range(size):
            scale = None if self.how.block or not self.how.scaled else k.let(self._scale(0, j), "scale", FLOAT)
            bias = k.let(self.floats[channel + j], "bias", FLOAT) if self.conv.bias is not None else None
            for p in range(pixels):
                value = acc[i32(p * size + j)]
                value = value if scale is None else value * scale
                k.store(self.out, (x + p) * self.conv.outputs + channel + j, self.conv.finished(value, bias))


class _Depthwise(fpu_float_kernels._Depthwise):
    """Depthwise convolution whose constants are planes of a float per channel (biases, scales, zero points), then the
    weights channel by channel, in whole bytes.
    """

    floats: Value

    def pack(self, biases: np.ndarray) -> np.ndarray:
        how, layer = self.conv.stored, self.conv
        assert how is not None
        numbers = layer.weights.reshape(-1, layer.outputs).T
        per = max(8 // how.bits, 1)
        self.taps = -(-numbers.shape[1] // per) * per  # of a channel, with filler
        packed = _in_bytes(np.pad(numbers, [(0, 0), (0, self.taps - numbers.shape[1])]), how).ravel()
        zeros = [] if how.zeros is None else [how.zeros[0]]
        planes = np.array([*([] if layer.bias is None else [biases]), *how.scale[:1], *zeros]).astype(np.float32)
        self.first = 4 * planes.size * 8 // how.bits
        filled = np.pad(packed, (0, -packed.size % 4)).view(np.int32)
        return np.concatenate([planes.ravel().view(np.int32), filled])

    def channels(self, run: Run, x: Value, source: Source, rows: list[Value]) -> None:
        self.floats = self.k.view(self.k.constants[0], FLOAT, "floats")
        super().channels(run, x, source, rows)

    def _plane(self, plane: int, channel: Value) -> Value:
        return self.k.let(self.floats[channel + plane * self.conv.outputs], "plane", FLOAT)

    def weights_of(self, channel: Value, row: int) -> list[Value]:
        how, width = self.conv.stored, self.g.kernel[1]
        assert how is not None
        biased, first = self.conv.bias is not None, channel * self.taps + self.first
        taps = range(row * width, (row + 1) * width)
        reals = [_number(self.w, how, first + tap, tap % 2) for tap in taps]
        if how.zeros is None:
            return reals
        zero = self._plane(1 + biased, channel)
        return [r - zero for r in reals]

    def finish(self, channel: Value) -> Callable[[Value], Value]:
        biased = self.conv.bias is not None
        how, bias = self.conv.stored, self._plane(0, channel) if biased else None
        if how is not None and not how.scaled:
            return lambda value: self.conv.finished(value, bias)
        scale = self._plane(int(biased), channel)
        return lambda value: self.conv.finished(value * scale, bias)


def _in_bytes(numbers: np.ndarray, how: StoredWeights) -> np.ndarray:
    """Pack numbers along the last axis in bytes; floats remain as they are."""
    return np.ascontiguousarray(numbers) if how.floats else in_bytes(numbers, how.bits)


def _number(w: Value, how: StoredWeights, place: Value, half: int | None = None) -> Value:
    """Read a stored number, less the zero point of all, as float32.

    `place` counts numbers from the start of `w`; `half` is the half of its byte, None if it follows from `place`.
    """
    if how.floats:
        return KINDS[how.floats].bits_32(w[i32(place)].astype("int32"))
    signed = str(w.dtype) == "int8"
    if how.bits == 8:
        number = w[i32(place)].astype("int32")
    else:
        byte = w[tirx.floordiv(i32(place), 2)].astype("int32")
        shift = i32(4 * half) if half is not None else tirx.floormod(i32(place), 2) * 4
        number = ((byte << (i32(28) - shift)) >> 28) if signed else ((byte >> shift) & 15)
    return (number - how.zero if how.zero else number).astype(FLOAT)


def convolution(layer: FloatLayer, blocking: Blocking) -> RowKernel:
    """Build a K x K or 1 x 1 convolution."""
    return _Conv(layer, blocking).build()


def depthwise(layer: FloatLayer, pixels: int) -> RowKernel:
    """Build a depthwise convolution with any channel multiplier, in blocks of `pixels` pixels."""
    return _Depthwise(layer, pixels).build()


def variants_of(layer: FloatLayer) -> list[Variant]:
    """List a layer's variants, the default first, the smallest code last."""
    widths = [group.stop - group.start for group in layer.window.column_groups()]
    usual = sorted(BLOCKINGS, key=lambda blocking: sum(_instructions(blocking, width) for width in widths))
    made = partial(depthwise, layer), DEPTHWISE_PIXELS, partial(convolution, layer), (*usual, SMALLEST)
    return blocked(layer, *made)


def _instructions(blocking: Blocking, width: int) -> float:
    """Estimate a tap's and channel's instructions for `width` pixels in a row."""
    total, room = 0.0, blocking.pixels * blocking.channels
    for pixels, count in ((blocking.pixels, width // blocking.pixels), (width % blocking.pixels, 1)):
        if pixels and count:
            channels = max(room // pixels // blocking.channels, 1) * blocking.channels
            total += count * (_LOAD + pixels / channels + pixels)
    return total
