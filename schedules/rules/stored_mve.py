"""Row kernels of float32 layers whose weights are stored as integers of 8 or 4 bits, or as floats of 16 or 8, for the
M-profile vector extension.

They are the kernels of `schedules.rules.mve_float_kernels`, which widen the numbers of four channels to a vector of floats, and
multiply each sum by its scale once: behind the last tap, or behind the last of a block of taps that share a scale. A byte
holds the weights of 4 bits of two neighbouring taps of a channel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.rules import mve_float_kernels
from tvm_cascade.schedules.rules.conv_row import Blocking
from tvm_cascade.schedules.rules.fpu_float_kernels import FLOAT, FloatLayer, StoredWeights, blocked
from tvm_cascade.schedules.rules.geometry import Columns, Run
from tvm_cascade.schedules.rules.lanes import LANES, put, splat, vector
from tvm_cascade.schedules.rules.mve_float_kernels import BLOCKING, DEPTHWISE_PIXELS, FOUR, OTHERS
from tvm_cascade.schedules.rules.packing import in_bytes, interleave
from tvm_cascade.schedules.rules.parts import Source
from tvm_cascade.schedules.rules.small_floats import BFLOAT16, FLOAT8_E4, FLOAT8_E5
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx

_WORDS = f"int32x{LANES}"
_LOWER_HALVES = "llvm.arm.mve.vcvt.widen"  # float16 in the lower halves of four words to float32


class _Conv(mve_float_kernels._Conv):
    """Convolution whose table holds, behind the loop counts, planes of a float per output channel (biases, scales by
    block), then the bytes of zero points.
    """

    @property
    def how(self) -> StoredWeights:
        assert self.conv.stored is not None
        return self.conv.stored

    def pack_weights(self) -> np.ndarray:
        filled = mve_float_kernels._filled(self.conv.weights)
        return _taps_together(self.arranged(lambda _: interleave(filled, LANES, 1)), self.how.bits)

    def pack_table(self) -> np.ndarray:
        how, layer = self.how, self.conv
        self.passes = self.pass_counts()
        self.head = -(-len(self.passes) // LANES) * LANES
        counts = np.array(self.passes + [0] * (self.head - len(self.passes)), np.int32)
        planes = mve_float_kernels._filled(
            np.array([*([] if layer.bias is None else [layer.bias]), *how.scale]).reshape(-1, layer.outputs)
        )
        self.width = planes.shape[1]
        self.first_scale = self.head + (0 if layer.bias is None else self.width)
        self.first_zero = 4 * (self.head + planes.size)
        zeros = np.zeros(0, np.int8) if how.zeros is None else mve_float_kernels._filled(how.zeros).ravel()
        return np.concatenate([counts, planes.astype(np.float32).ravel().view(np.int32), zeros.view(np.int32)])

    def pass_counts(self) -> list[int]:
        block, taps = self.how.block, self.taps
        if not block:
            return super().pass_counts()
        return sorted({n for n in (taps // block, self.split(block)[0], self.split(taps % block)[0]) if n > 1})

    def add(self, acc: Value, group: Columns, x: Value, pixels: int, channel: Value, size: int, nth: Value) -> None:
        self.channel = channel
        if not self.how.block:
            self._read_zeros(0, size)
        super().add(acc, group, x, pixels, channel, size, nth)

    def _read_zeros(self, block: Value, size: int) -> None:
        zeros, k, self.zeros = self.how.zeros, self.k, list[Value]()
        if zeros is None:
            return
        data = k.view(k.constants[1], str(zeros.dtype), "zeros")
        first = self.first_zero + block * self.width + self.channel
        for j in range(0, size, LANES):
            self.zeros.append(k.let(vector(data, first + j, LANES).astype(_WORDS).astype(FOUR), "zero", FOUR))

    def weights_of(self, weights: Value, tap: Value, size: int) -> list[Value]:
        places = [self.place(weights, size, j, tap) for j in range(0, size, LANES)]
        reals = [_numbers(self.w, self.how, place, tap) for place in places]
        return [r - z for r, z in zip(reals, self.zeros, strict=True)] if self.zeros else reals

    def place(self, weights: Value, size: int, j: int, tap: Value) -> Value:
        """Return the index of a tap's first weight; for 4-bit weights the byte's index."""
        if self.how.bits >= 8:
            return super().place(weights, size, j, tap)
        block = weights + j // LANES * (self.taps * LANES)
        return tirx.floordiv(i32(block), 2) + tirx.floordiv(i32(tap), 2) * LANES

    def row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        block, taps = self.how.block, self.taps
        if not block:
            super().row(acc, at, weights, group, pixels, size)
            return
        with self.loop(taps // block) as n:
            self._block_of_taps(acc, at, weights, n, block, pixels, size)
        if taps % block:
            self._block_of_taps(acc, at, weights, taps // block, taps % block, pixels, size)

    def _block_of_taps(
        self, acc: Value, at: Value, weights: Value, n: Value, count: int, pixels: int, size: int
    ) -> None:
        k, first = self.k, n * self.how.block
        self._read_zeros(n, size)
        part = mve_float_kernels._zeros(k, pixels * size)
        passes, step = self.split(count)
        with self.loop(passes) as i:
            for u in range(step):
                self._tap(part, at + first + i * step + u, weights, first + i * step + u, pixels, size)
        for j in range(0, size, LANES):
            scale = self._scale(n, j)
            for p in range(pixels):
                place = p * size + j
                put(k, acc, place, vector(acc, place, LANES) + vector(part, place, LANES) * scale, LANES)

    def _scale(self, block: Value, j: int) -> Value:
        return self.plane(self.first_scale + block * self.width + self.channel + j)

    def finish(self, channel: Value) -> Callable[[Value], Value]:
        bias = self.plane(channel + self.head) if self.conv.bias is not None else None
        if self.how.block:
            return lambda value: self.conv.finished(value, bias, LANES)
        if not self.how.scaled:
            return lambda value: self.conv.finished(value, bias, LANES)
        scale = self.plane(channel + self.first_scale)
        return lambda value: self.conv.finished(value * scale, bias, LANES)


class _Depthwise(mve_float_kernels._Depthwise):
    """Depthwise convolution whose constants are planes of a float per channel (biases, scales, zero points), then the
    weights of every four channels, tap by tap.
    """

    def pack(self, biases: np.ndarray) -> np.ndarray:
        how, layer = self.conv.stored, self.conv
        assert how is not None
        zeros = [] if how.zeros is None else [how.zeros[0]]
        planes = np.array([*([] if layer.bias is None else [biases]), *how.scale[:1], *zeros]).astype(np.float32)
        numbers = layer.weights.reshape(-1, layer.outputs)
        self.taps = -(-len(numbers) // how.together) * how.together
        filled = np.pad(numbers, [(0, self.taps - len(numbers)), (0, 0)])
        data = _taps_together(filled.reshape(self.taps, -1, LANES).transpose(1, 0, 2).ravel(), how.bits)
        self.first = 4 * planes.size // max(how.bits // 8, 1)
        return np.concatenate([planes.ravel().view(np.int32), data.view(np.int32)])

    def channels(self, run: Run, x: Value, source: Source, rows: list[Value]) -> None:
        self.floats = self.k.view(self.k.constants[0], FLOAT, "floats")
        super().channels(run, x, source, rows)

    def _plane(self, plane: int, cb: Value) -> Value:
        return self.k.let(vector(self.floats, cb * LANES + plane * self.conv.outputs, LANES), "plane", FOUR)

    def weights_of(self, cb: Value, tap: int) -> Value:
        how = self.conv.stored
        assert how is not None
        per = how.together
        place = self.first + cb * (self.taps // per * LANES) + tap // per * LANES
        real = _numbers(self.w, how, place, tap)
        return real if how.zeros is None else real - self._plane(1 + (self.conv.bias is not None), cb)

    def finish(self, cb: Value) -> Callable[[Value], Value]:
        biased = self.conv.bias is not None
        how, bias = self.conv.stored, self._plane(0, cb) if biased else None
        if how is not None and not how.scaled:
            return lambda value: self.conv.finished(value, bias, LANES)
        scale = self._plane(int(biased), cb)
        return lambda value: self.conv.finished(value * scale, bias, LANES)


def _taps_together(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Pack numbers in vectors of four channels, tap by tap, in bytes; 4-bit numbers of two taps share bytes."""
    if bits >= 8:
        return numbers
    pairs = numbers.reshape(-1, 2, LANES).swapaxes(1, 2)
    return in_bytes(pairs, bits).ravel().view(numbers.dtype)


def _numbers(w: Value, how: StoredWeights, place: Value, tap: Value) -> Value:
    """Read four stored numbers as floats, less the zero point of all, from the bytes at `place`."""
    numbers = vector(w, place, LANES).astype(_WORDS)
    if how.floats == BFLOAT16.name:
        return tirx.reinterpret(FOUR, numbers << splat(16))
    if how.floats:
        if how.floats == FLOAT8_E5.name:
            numbers = numbers << splat(8)
        elif how.floats == FLOAT8_E4.name:
            numbers = (numbers << splat(7)) & splat(0xBFFF)
        return tirx.call_llvm_pure_intrin(FOUR, _LOWER_HALVES, tirx.reinterpret("float16x8", numbers), i32(0))
    if how.bits == 4:
        shift = tirx.floormod(i32(tap), 2) * 4
        if str(w.dtype) == "int8":
            numbers = (numbers << splat(i32(28) - shift)) >> splat(28)
        else:
            numbers = (numbers >> splat(shift)) & splat(15)
    return (numbers - splat(how.zero) if how.zero else numbers).astype(FOUR)


def convolution(layer: FloatLayer, blocking: Blocking) -> RowKernel:
    """Build a K x K or 1 x 1 convolution."""
    return _Conv(layer, blocking).build()


def depthwise(layer: FloatLayer, pixels: int) -> RowKernel:
    """Build a depthwise convolution with a multiple of four channels, in `pixels`-pixel blocks."""
    return _Depthwise(layer, pixels).build()


def variants_of(layer: FloatLayer) -> list[Variant]:
    """List a layer's variants, the default first, the smallest code last.

    Kernel rows with an odd tap count are kept in bytes.
    """
    assert layer.stored is not None
    if not layer.depthwise and not layer.stored.floats and (layer.weights.shape[2] % 2 or layer.stored.block % 2):
        layer = replace(layer, stored=replace(layer.stored, bits=8))
    made = partial(depthwise, layer), DEPTHWISE_PIXELS, partial(convolution, layer), (BLOCKING, *OTHERS)
    return blocked(layer, *made)
