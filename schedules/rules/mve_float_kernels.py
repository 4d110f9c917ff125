"""Row kernels of float32 layers for the M-profile vector extension (Cortex-M55 and M85), through LLVM.

Lanes are four output channels. Convolutions add a single input value times four channels' weights to each pixel's sums;
depthwise convolutions add four inputs times their channels' weights. Sums are added up in the order of
`schedules.rules.fpu_float_kernels`, and LLVM joins products and sums in both, so they are rounded once: results are the same,
bit for bit, except for subnormal numbers, which vector instructions take for zero (as in LLVM's vectors elsewhere).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.rules import geometry
from tvm_cascade.schedules.rules.conv_row import Blocking, DepthwiseRow
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.rules.fpu_float_kernels import FLOAT, FloatLayer, biases_of
from tvm_cascade.schedules.rules.geometry import Columns, Run
from tvm_cascade.schedules.rules.lanes import LANES, put, splat, vector
from tvm_cascade.schedules.rules.opaque_loops import OuterProducts
from tvm_cascade.schedules.rules.packing import interleave
from tvm_cascade.schedules.rules.parts import Source
from tvm_cascade.schedules.tir import Value, i32, tirx

FOUR = f"{FLOAT}x{LANES}"
BLOCKING = Blocking(pixels=5, channels=LANES, unroll=4, step=4)
OTHERS = tuple(Blocking(p, LANES, unroll=n, step=n) for p, n in ((4, 4), (4, 2), (3, 4), (2, 4), (2, 1)))
DEPTHWISE_PIXELS = (3, 4)


class _Conv(OuterProducts):
    """Convolution by outer products: one input value times four output channels' weights at a time. If these are no
    whole vectors, zero weights and biases fill the last, and only real outputs are stored.
    """

    by_form = True
    conv: FloatLayer
    stored = 0  # channels of the current block that are outputs

    def pack_weights(self) -> np.ndarray:
        return self.arranged(lambda w: interleave(_filled(w), LANES, 1))

    def pack_table(self) -> np.ndarray:
        """Pack the loop counts, then the biases as bit patterns."""
        self.passes = self.pass_counts()
        self.head = -(-len(self.passes) // LANES) * LANES
        counts = np.array(self.passes + [0] * (self.head - len(self.passes)), np.int32)
        return np.concatenate([counts, _filled(biases_of(self.conv)).view(np.int32)])

    def _block(self, index: int, group: Columns, x: Value, pixels: int, channel: Value, size: int, nth: Value) -> None:
        self.stored = size
        super()._block(index, group, x, pixels, channel, -(-size // LANES) * LANES, nth)

    def bias_at(self, y: Value) -> Value:
        return 0

    def start(self, index: int, channel: Value, pixels: int, size: int) -> Value:
        return _zeros(self.k, pixels * size)

    def _tap(self, acc: Value, at: Value, weights: Value, tap: Value, pixels: int, size: int) -> None:
        k, g = self.k, self.g
        ws = [k.let(w, "wv", FOUR) for w in self.weights_of(weights, tap, size)]
        for p in range(pixels):
            x = k.let(self.x[at + p * g.strides[1] * g.channels], "xv", FLOAT)
            for j, w in enumerate(ws):
                place = p * size + j * LANES
                put(k, acc, place, vector(acc, place, LANES) + splat(x) * w, LANES)

    def weights_of(self, weights: Value, tap: Value, size: int) -> list[Value]:
        """Return a tap's weight vectors for the block's channels."""
        places = [self.place(weights, size, j, tap) for j in range(0, size, LANES)]
        return [vector(self.w, place, LANES) for place in places]

    def plane(self, index: Value) -> Value:
        """Load four floats that the table holds as bit patterns."""
        return self.k.let(tirx.reinterpret(FOUR, vector(self.table, index, LANES)), "plane", FOUR)

    def finish(self, channel: Value) -> Callable[[Value], Value]:
        """Load the biases of four channels. Return a function from four sums to the outputs: biases added, activation
        applied.
        """
        bias = self.plane(channel + self.head) if self.conv.bias is not None else None
        return lambda value: self.conv.finished(value, bias, LANES)

    def outputs(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        k = self.k
        for j in range(0, size, LANES):
            finished = self.finish(channel + j)
            for p in range(pixels):
                value = finished(vector(acc, p * size + j, LANES))
                place = (x + p) * self.conv.outputs + channel + j
                if self.stored >= j + LANES:
                    put(k, self.out, place, value, LANES)
                    continue
                four = k.let(value, "four", FOUR)
                for i in range(self.stored - j):
                    k.store(self.out, place + i, tirx.Shuffle([four], [i32(i)]))


class _Depthwise(DepthwiseRow):
    """Depthwise convolution, four channels at a time; their record is biases and, tap by tap, weights."""

    by_form = True
    conv: FloatLayer

    def biases(self) -> np.ndarray:
        return biases_of(self.conv)

    def pack(self, biases: np.ndarray) -> np.ndarray:
        taps = self.conv.weights.reshape(-1, self.conv.outputs)
        self.words = (1 + taps.shape[0]) * LANES
        rows = np.concatenate([biases[None], taps])
        return rows.reshape(len(rows), -1, LANES).transpose(1, 0, 2).ravel()

    def channels(self, run: Run, x: Value, source: Source, rows: list[Value]) -> None:
        k, g = self.k, self.g
        column = (x * g.strides[1] - g.padding[1]) * g.channels
        with k.loop(g.channels // LANES, "cb") as cb:
            acc = _zeros(k, len(run.taps) * LANES)
            for r in range(g.kernel[0]):
                with geometry.valid_row(k, g, r, self.r0, self.r1):
                    self._row(acc, rows[r] + column + cb * LANES, cb, r, run, source)
            finished = self.finish(cb)
            for p in range(len(run.taps)):
                value = finished(vector(acc, p * LANES, LANES))
                put(k, self.out, (x + p) * g.channels + cb * LANES, value, LANES)

    def weights_of(self, cb: Value, tap: int) -> Value:
        """Return the weights of four channels' tap."""
        return vector(self.w, cb * self.words + (1 + tap) * LANES, LANES)

    def finish(self, cb: Value) -> Callable[[Value], Value]:
        """Load the biases of four channels. Return a function from four sums to the outputs: biases added, activation
        applied.
        """
        biased = self.conv.bias is not None
        bias = self.k.let(vector(self.w, cb * self.words, LANES), "bias", FOUR) if biased else None
        return lambda value: self.conv.finished(value, bias, LANES)

    def _row(self, acc: Value, at: Value, cb: Value, row: int, run: Run, source: Source) -> None:
        k, g = self.k, self.g
        for kx in range(g.kernel[1]):
            w = k.let(self.weights_of(cb, row * g.kernel[1] + kx), "wv", FOUR)
            for p, (k0, k1) in enumerate(run.taps):
                if k0 <= kx < k1:
                    place = at + (p * g.strides[1] + kx * g.dilation[1]) * g.channels
                    product = vector(source.x, place, LANES) * w
                    put(k, acc, p * LANES, vector(acc, p * LANES, LANES) + product, LANES)


def _filled(values: np.ndarray) -> np.ndarray:
    """Pad channel values, the last axis, with zeros to whole vectors."""
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % LANES)])


def _zeros(k: KernelBuilder, count: int) -> Value:
    acc = k.local(count, "acc", FLOAT)
    for i in range(0, count, LANES):
        put(k, acc, i32(i), splat(tirx.const(0.0, FLOAT)), LANES)
    return acc


def convolution(layer: FloatLayer, blocking: Blocking) -> RowKernel:
    """Build a K x K or 1 x 1 convolution."""
    return _Conv(layer, blocking).build()


def depthwise(layer: FloatLayer, pixels: int) -> RowKernel:
    """Build a depthwise convolution with a multiple of four channels, in `pixels`-pixel blocks."""
    return _Depthwise(layer, pixels).build()
