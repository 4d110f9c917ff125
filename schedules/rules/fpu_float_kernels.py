"""Row kernels of float32 layers for cores with a floating-point unit of 32 single-precision registers (Cortex-M4F and
up).

A layer is a convolution, depthwise convolution or product, with bias and activation (`passes.fuse_float_layers`).
Convolutions keep sixteen accumulators, 4 pixels x 4 channels: eight loads for sixteen products. Depthwise convolutions
take a few pixels of a channel at a time and load every input of the block once. Each sum is added up in the generic
kernel's order, from zero, tap by tap, the bias last: if the compiler does not contract products and sums, as C99 asks,
results equal the generic kernel's, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import isfinite, prod

import numpy as np

from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules import geometry
from tvm_cascade.schedules.rules.conv_row import Blocking, ConvRow, DepthwiseRow
from tvm_cascade.schedules.rules.emit import Builder, best_step
from tvm_cascade.schedules.rules.geometry import Columns, Run, Sliding
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.packing import from_bytes
from tvm_cascade.schedules.rules.parts import Source
from tvm_cascade.schedules.rules.quantized import Part, blank
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx

BLOCKING = Blocking(pixels=4, channels=4, step=4)
OTHERS = (Blocking(2, 8), Blocking(3, 4), Blocking(2, 4), Blocking(4, 2), Blocking(2, 2, unroll=1, step=1))
DEPTHWISE_PIXELS = (3, 4, 5, 6)
FLOAT = "float32"


@dataclass(frozen=True, eq=False)
class StoredWeights:
    """How a layer's weights `(number - zero point) * scale` are stored."""

    bits: int  # of a number in flash: 16, 8 or 4
    zero: int  # of all numbers; 0 with `zeros`
    zeros: np.ndarray | None  # int8 or uint8 [blocks, outputs]
    scale: np.ndarray  # [blocks, outputs]; no blocks for floats without scales
    block: int  # taps of a channel that share a scale; 0: one block
    floats: str = ""  # of `small_floats.KINDS`: what the numbers are; empty for integers

    @property
    def together(self) -> int:
        """Return the numbers that share a byte."""
        return max(8 // self.bits, 1)

    @property
    def scaled(self) -> bool:
        """Return True if weights have scales."""
        return self.scale.size > 0

    def without_values(self) -> StoredWeights:
        """Return the record with zeros for scales and zero points."""
        return replace(self, scale=blank(self.scale), zeros=None if self.zeros is None else blank(self.zeros))


@dataclass(frozen=True, eq=False)
class FloatLayer:
    """A float32 layer as a convolution, NHWC with batch 1; fields as in `quantized.QuantizedConv`."""

    window: Sliding
    weights: np.ndarray  # [kh, kw, inputs, outputs], 1 input for depthwise
    bias: np.ndarray | None  # [outputs]
    bounds: tuple[float, ...]  # smallest and largest output; infinite: unbounded
    depthwise: bool = False
    multiplier: int = 1
    dtype: str = FLOAT
    out_dtype: str = FLOAT
    parts: tuple[Part, ...] = ()
    groups: int = 1
    stored: StoredWeights | None = None  # how weights of small integers become floats; None for floats

    @property
    def non_contiguous(self) -> bool:
        return self.groups > 1 or self.window.dilation[1] > 1

    @property
    def outputs(self) -> int:
        return self.weights.shape[-1]

    def without_values(self) -> FloatLayer:
        """Return the layer with zeros for weights and biases, which take no memory."""
        stored = None if self.stored is None else self.stored.without_values()
        bias = None if self.bias is None else blank(self.bias)
        return replace(self, weights=blank(self.weights), bias=bias, stored=stored)

    @property
    def form(self) -> Hashable:
        """Return everything that distinguishes this layer, except the constants' values. For a layer without `parts`."""
        return _form(self), self.weights.dtype, None if self.stored is None else _form(self.stored)

    def finished(self, value: Value, bias: Value, lanes: int = 1) -> Value:
        """Compute the output from a sum of products, or `lanes` outputs from vectors."""
        value = value if self.bias is None else value + bias
        low, high = (tirx.const(b, FLOAT) for b in self.bounds)
        low, high = (b if lanes == 1 else tirx.Broadcast(b, lanes) for b in (low, high))
        if isfinite(self.bounds[1]):
            value = tirx.min(value, high)
        return tirx.max(value, low) if isfinite(self.bounds[0]) else value


def _form(record: FloatLayer | StoredWeights) -> Hashable:
    """Return a record's fields, shapes in place of arrays, without records."""
    given = [getattr(record, f.name) for f in fields(record)]
    return tuple(v.shape if isinstance(v, np.ndarray) else None if isinstance(v, StoredWeights) else v for v in given)


def read_layer(spec: OperatorSpec) -> FloatLayer | None:
    """Read a layer of `passes.fuse_float_layers`; None for any other operator and for forms unknown to the kernels."""
    bounds = spec.attributes.bounds
    if bounds is None or not spec.constants or {t.dtype for t in (*spec.inputs, spec.output)} != {FLOAT}:
        return None
    (weights, *biases), how, bias = spec.constants, None, None
    if spec.attributes.weight_bits is not None:
        read = _stored(spec)
        if read is None:
            return None
        weights, how, biases = read
    elif weights.dtype != np.float32:
        return None
    if biases:  # a value for each output, or a single one
        bias = np.broadcast_to(biases[0].ravel(), spec.output.shape[-1:]).copy()
    if spec.kind == "dense":
        if len(spec.output.shape) != 2:
            return None
        depth, units = weights.shape
        rows = prod(spec.output.shape) // units
        window = Sliding(1, rows, depth, 1, rows, (1, 1), (1, 1), (0, 0))
        return FloatLayer(window, weights.reshape(1, 1, depth, units), bias, bounds, stored=how)
    if how is not None and how.block:
        return None
    window = Sliding.of(spec, (weights.shape[0], weights.shape[1]))
    if not window.wraps_once or (window.rows_by_table and window.dilated_rows) or spec.inputs[0].shape[0] != 1:
        return None
    depthwise = spec.kind == "depthwise_conv2d"
    if depthwise:
        weights = weights.reshape(*weights.shape[:2], 1, -1)
    times = weights.shape[-1] // window.channels if depthwise else 1
    groups = 1 if depthwise else spec.attributes.groups or 1
    return FloatLayer(window, weights, bias, bounds, depthwise, times, groups=groups, stored=how)


def _stored(spec: OperatorSpec) -> tuple[np.ndarray, StoredWeights, list[np.ndarray]] | None:
    """Read the numbers of stored weights, one in each element, how they are stored, and the biases.

    Return None for forms unknown to the kernels. `passes.fuse_float_layers` has the order of the constants.
    """
    given, outputs = spec.attributes, spec.output.shape[-1]
    bits, zero, block = given.weight_bits or 8, given.weight_zero_point, given.weight_block or 0
    packed, *rest = spec.constants
    zeros = rest.pop(0) if zero is None else None
    scale = None if given.weight_scaled is False else rest.pop(0)
    kind = given.weight_floats or ""
    if (bits not in (4, 8) and not kind) or (block and packed.ndim != 2):
        return None
    blocks = -(-packed.shape[0] // block) if block else 1
    tables = [None if t is None else t.reshape(-1, t.shape[-1]) for t in (scale, zeros)]
    for table in tables:
        if table is None:
            continue
        if table.shape[0] not in (1, blocks) or table.shape[1] not in (1, outputs) or table.dtype.itemsize == 2:
            return None
    scale, zeros = (None if t is None else np.broadcast_to(t, (blocks, outputs)) for t in tables)
    scale = np.zeros((0, outputs), np.float32) if scale is None else scale
    numbers = packed if bits >= 8 else from_bytes(packed, bits, outputs)
    if zero is not None and not kind:
        centred = numbers.astype(np.int32) - zero
        if -(1 << bits - 1) <= centred.min() and centred.max() < 1 << bits - 1:
            numbers, zero = centred.astype(np.int8), 0
    return numbers, StoredWeights(bits, zero or 0, zeros, scale, block, kind), rest


class _Conv(ConvRow):
    group = 1
    by_form = True
    conv: FloatLayer

    def pack_table(self) -> np.ndarray:
        return biases_of(self.conv)

    def bias_at(self, y: Value) -> Value:
        return 0

    def start(self, index: int, channel: Value, pixels: int, size: int) -> Value:
        return _zeros(self.k, pixels * size)

    def row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        k = self.k
        lo, hi = group.k0 * self.depth, group.k1 * self.depth
        step = best_step(hi - lo, self.blocking.step, self.blocking.unroll)
        for tap in k.unrolled((hi - lo) // step, step):
            self.tap(acc, at + tap, weights, tap + lo, pixels, size)

    def tap(self, acc: Value, at: Value, weights: Value, tap: Value, pixels: int, size: int) -> None:
        """Emit the products of a tap, whose inputs begin at `at`."""
        k, g = self.k, self.g
        values = [k.let(value, "wv", FLOAT) for value in self.weights_of(weights, tap, size)]
        for p in range(pixels):
            x = k.let(self.x[at + p * g.strides[1] * g.channels], "xv", FLOAT)
            for j, value in enumerate(values):
                k.store(acc, p * size + j, call("mlaf", x, value, acc[i32(p * size + j)]))

    def weights_of(self, weights: Value, tap: Value, size: int) -> list[Value]:
        """Return a tap's weights of the block's channels."""
        return [self.w[self.place(weights, size, j, tap)] for j in range(size)]

    def outputs(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        k = self.k
        for j in range(size):
            bias = k.let(self.table[channel + j], "bias", FLOAT) if self.conv.bias is not None else None
            for p in range(pixels):
                place = (x + p) * self.conv.outputs + channel + j
                k.store(self.out, place, self.conv.finished(acc[i32(p * size + j)], bias))


class _Depthwise(DepthwiseRow):
    """Depthwise convolution, channel by channel; a channel's record is bias and weights."""

    by_form = True
    conv: FloatLayer

    def biases(self) -> np.ndarray:
        return biases_of(self.conv)

    def pack(self, biases: np.ndarray) -> np.ndarray:
        taps = self.conv.weights.reshape(-1, self.conv.outputs)
        self.words = 1 + taps.shape[0]
        return np.concatenate([biases[None], taps]).T.ravel()

    def channels(self, run: Run, x: Value, source: Source, rows: list[Value]) -> None:
        k, g, times = self.k, self.g, self.conv.multiplier
        column = (x * g.strides[1] - g.padding[1]) * g.channels
        with k.loop(g.channels, "c") as c, k.loop(times, "t") as t:
            channel = c * times + t
            acc = _zeros(k, len(run.taps))
            for r in range(g.kernel[0]):
                with geometry.valid_row(k, g, r, self.r0, self.r1):
                    values = [k.let(w, "wv", FLOAT) for w in self.weights_of(channel, r)]
                    self._row(acc, rows[r] + column + c, values, run, source)
            finished = self.finish(channel)
            for p in range(len(run.taps)):
                k.store(self.out, (x + p) * (g.channels * times) + channel, finished(acc[i32(p)]))

    def weights_of(self, channel: Value, row: int) -> list[Value]:
        """Return the weights of a channel's kernel row."""
        first = channel * self.words + (1 + row * self.g.kernel[1])
        return [self.w[first + kx] for kx in range(self.g.kernel[1])]

    def finish(self, channel: Value) -> Callable[[Value], Value]:
        """Load the bias of a channel. Return a function from a sum to the output: bias added, activation applied."""
        biased = self.conv.bias is not None
        bias = self.k.let(self.w[channel * self.words], "bias", FLOAT) if biased else None
        return lambda value: self.conv.finished(value, bias)

    def _row(self, acc: Value, at: Value, values: list[Value], run: Run, source: Source) -> None:
        """Emits the products of a kernel row, each input column loaded once."""
        k, g = self.k, self.g
        reads: dict[int, list[tuple[int, int]]] = {}  # by column: pixels and taps
        for p, (k0, k1) in enumerate(run.taps):
            for kx in range(k0, k1):
                reads.setdefault(p * g.strides[1] + kx * g.dilation[1], []).append((p, kx))
        for column, uses in sorted(reads.items()):
            x = k.let(source.x[at + column * g.channels], "xv", FLOAT)
            for p, kx in uses:
                k.store(acc, p, call("mlaf", x, values[kx], acc[i32(p)]))


def biases_of(layer: FloatLayer) -> np.ndarray:
    """Return a layer's biases, zeros for a layer without biases."""
    return np.zeros(layer.outputs, np.float32) if layer.bias is None else layer.bias


def _zeros(k: Builder, count: int) -> Value:
    acc = k.local(count, "acc", FLOAT)
    for i in range(count):
        k.store(acc, i, tirx.const(0.0, FLOAT))
    return acc


def convolution(layer: FloatLayer, blocking: Blocking) -> RowKernel:
    """Build a K x K or 1 x 1 convolution."""
    return _Conv(layer, blocking).build()


def depthwise(layer: FloatLayer, pixels: int) -> RowKernel:
    """Build a depthwise convolution with any channel multiplier, in blocks of `pixels` pixels."""
    return _Depthwise(layer, pixels).build()


def blocked(
    layer: FloatLayer,
    depthwise: Callable[[int], RowKernel],
    pixels: tuple[int, ...],
    convolution: Callable[[Blocking], RowKernel],
    blockings: Sequence[Blocking],
) -> list[Variant]:
    """List a layer's variants: depthwise in blocks of `pixels` or fewer, the width with fewest blocks first."""
    if layer.depthwise:
        width = layer.window.out_width
        usual = geometry.fewest_blocks(width, pixels)
        widths = [p for p in dict.fromkeys((usual, *pixels[::-1], 2, 1)) if p <= width or p == usual]
        return [Variant(f"depthwise {p}", partial(depthwise, p)) for p in widths]
    rows = max(layer.window.tile_rows, 1)
    return [Variant(f"conv {b.name}", partial(convolution, b), rows) for b in blockings]
