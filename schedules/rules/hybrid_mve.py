"""Row kernels of hybrid products (float activations stored as int8, int8 weights) for the M-profile vector extension.

Activations are stored four at a time; `vcvta` rounds half away from zero. A product's lanes belong to a single unit:
`sum W (q - z) = sum W q - z sum W`, so the weights' sums are a constant and the zero point is subtracted once per unit.
A row's last vector overlaps the previous vector, with zero weights there. The loop count is read from a table: if LLVM
knew the count, it would decide by it whether to vectorize the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.kernels.storage import Storage
from tvm_cascade.schedules.rules import cortex_m_mve as mve
from tvm_cascade.schedules.rules import depthwise_mve
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.rules.geometry import folded_bias
from tvm_cascade.schedules.rules.hybrid import (
    Activation,
    HybridLayer,
    HybridRow,
    Range,
    bounded,
    built,
    read_hybrid,
    read_range,
    read_stored,
)
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.lanes import LANES, each_vector, put, splat, vector
from tvm_cascade.schedules.rules.packing import lane_records
from tvm_cascade.schedules.rules.quantized import in_four_bits, of_four_bits
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx
from tvm_cascade.schedules.tir.rounded_products import fenced
from tvm_cascade.schedules.tir.stored_reals import INVERSE, SCALE, ZERO, Storing, factors

_LANES = (16, 8, 4)  # products of an instruction: of bytes, or of bytes that are widened as they are loaded
_UNITS = 4  # units at a time
UNBOUNDED = -inf, inf
_FLOAT = "float32"
_FOUR = f"{_FLOAT}x{LANES}"
_SIXTEEN = "int8x16"
_MOST_OF_NIBBLES = 1 << 17  # inputs of a unit whose weights are in [-8, 8): sixteen times the sum has 32 bits


@dataclass(frozen=True, slots=True, eq=False)
class HybridDense:
    """A product of rows by int8 weights [units, depth], with a single scale or one per unit, and a bias. A call
    computes all rows.
    """

    rows: int
    weights: np.ndarray
    scales: np.ndarray
    bias: np.ndarray
    parts: int  # of the input, each with factors of its own: the rows, or one
    bounds: tuple[float, ...] = UNBOUNDED  # smallest and largest output
    in_halves: bool = False  # whether bytes hold weights of two units

    @property
    def lanes(self) -> int:
        return next(n for n in _LANES if n <= self.weights.shape[1])

    @property
    def passes(self) -> int:
        return -(-self.weights.shape[1] // self.lanes)

    def packed(self) -> np.ndarray:
        """Return the weights, unit by unit and pass by pass; the last pass ends with the row."""
        units, depth = self.weights.shape
        again = self.passes * self.lanes - depth
        whole, last = np.split(self.weights, [depth - self.lanes + again], axis=1)
        rows = np.concatenate([whole, np.zeros((units, again), np.int8), last], axis=1)
        return mve.in_halves(rows.reshape(units // 2, 2, -1)) if self.in_halves else rows.ravel()

    def table(self) -> np.ndarray:
        """Return the loop count, then the negated sums of weights."""
        return np.concatenate([[self.passes - 1], -self.weights.astype(np.int32).sum(1)]).astype(np.int32)


def read_hybrid_dense(spec: OperatorSpec) -> HybridDense | None:
    """Read a hybrid product with a depth of four or more; None for any other operator."""
    if spec.kind != "hybrid_dense" or len(spec.constants) != 3 or spec.constants[0].shape[1] < _LANES[-1]:
        return None
    if spec.constants[0].dtype != np.int8:
        return None
    parts, bounds = spec.inputs[1].shape[0], spec.attributes.bounds or UNBOUNDED
    return HybridDense(spec.output.shape[0], *spec.constants, parts, bounds)


class _Dot:
    def __init__(self, op: HybridDense) -> None:
        self.op, (self.units, self.depth) = op, op.weights.shape
        constants = (op.packed(), op.scales, op.bias, op.table())
        self.k = k = KernelBuilder(["int8", _FLOAT], constants, [_FLOAT])
        self.x, self.factors = (k.view(given[0], t, "xs") for given, t in zip(k.inputs, ("int8", _FLOAT), strict=True))
        types = ("int8", _FLOAT, _FLOAT, "int32")
        self.w, self.scales, self.bias, self.sums = (
            k.view(c, t, "ws") for c, t in zip(k.constants, types, strict=True)
        )
        self.out = k.view(k.outputs[0], _FLOAT, "outs")

    def build(self) -> RowKernel:
        return self.k.kernel(self._emit)

    def _emit(self) -> None:
        k, rows = self.k, self.op.rows
        first, parts = (k.let(k.row_offset(i, 0, rows * size), "first") for i, size in enumerate((self.depth, 3)))
        with k.loop(rows, "n") as n:
            self.at = k.let(first + n * self.depth, "at")
            part = k.let(parts + n * 3, "part") if self.op.parts > 1 else i32(0)
            scale = self.factors[part]
            self.scale = k.let(scale if self.op.scales.size > 1 else scale * self.scales[i32(0)], "scale", _FLOAT)
            self.zero = k.let(self.factors[part + 2].astype("int32"), "zero")
            to = k.let(n * self.units, "to") if rows > 1 else 0
            if self.units >= _UNITS:
                with k.loop(self.units // _UNITS, "ub") as ub:
                    self._block(ub * _UNITS, _UNITS, to)
            if rest := self.units % _UNITS:
                self._block(i32(self.units - rest), rest, to)

    def _block(self, unit: Value, count: int, to: Value) -> None:
        k, op = self.k, self.op
        acc = k.local(count, "acc")
        for j in range(count):
            k.store(acc, j, i32(0))
        if op.passes > 1:
            with k.loop(k.let(self.sums[i32(0)], "passes"), "i", passes=op.passes - 1) as i:
                self._products(acc, unit, self.at + i * op.lanes, i * op.lanes, count)
        last = (op.passes - 1) * op.lanes
        self._products(acc, unit, self.at + (self.depth - op.lanes), i32(last), count)
        for j in range(count):
            factor = self.scale
            if op.scales.size > 1:
                factor = k.let(factor * self.scales[unit + j], "factor", _FLOAT)
            total = k.let(call("mla", self.zero, self.sums[unit + (j + 1)], self._sum(acc, j)), "total")
            real = call("alone", total.astype(_FLOAT) * factor) + self.bias[unit + j]
            k.store(self.out, to + unit + j, bounded(real, op.bounds))

    def _sum(self, acc: Value, j: int) -> Value:
        """Return the sum of a unit's products."""
        return acc[i32(j)]

    def _products(self, acc: Value, unit: Value, at: Value, tap: Value, count: int) -> None:
        k, lanes, row = self.k, self.op.lanes, self.op.passes * self.op.lanes
        kind = f"int{128 // lanes}x{lanes}"
        x = k.let(vector(self.x, at, lanes).astype(kind), "xv", kind)
        for j in range(count):
            w = vector(self.w, (unit + j) * row + tap, lanes).astype(kind)
            dot = "llvm.arm.mve.vmldava"
            k.store(acc, j, tirx.call_llvm_pure_intrin("int32", dot, 0, 0, 0, acc[i32(j)], x, w))


class _NibbleDot(_Dot):
    """Weights of four bits: vectors of sixteen bytes hold those of two units, in their lower and upper halves.

    Both are taken to the upper halves, sixteen times the weights: so are sums until they become real numbers.
    """

    stored_as = "4 bits"

    def __init__(self, op: HybridDense) -> None:
        super().__init__(replace(op, in_halves=True))
        self.saved = op.weights.size - self.k.arrays[0].nbytes

    def build(self) -> RowKernel:
        return replace(super().build(), storage=Storage(self.stored_as, self.saved))

    def _sum(self, acc: Value, j: int) -> Value:
        return self.k.let(tirx.shift_right(super()._sum(acc, j), i32(4)), "sum")

    def _products(self, acc: Value, unit: Value, at: Value, tap: Value, count: int) -> None:
        k, row = self.k, self.op.passes * _LANES[0]
        x = k.let(vector(self.x, at, _LANES[0]), "xv", _SIXTEEN)
        for j in range(0, count, 2):
            both = k.let(vector(self.w, (unit + j) * (row // 2) + tap, _LANES[0]), "wv", _SIXTEEN)
            for i, half in enumerate(mve.upper_halves(both)):
                w, dot = k.let(half, "wn", _SIXTEEN), "llvm.arm.mve.vmldava"
                k.store(acc, j + i, tirx.call_llvm_pure_intrin("int32", dot, 0, 0, 0, acc[i32(j + i)], x, w))


def _packs(op: HybridDense) -> bool:
    """Return True for a product that `_NibbleDot` takes."""
    units, depth = op.weights.shape
    return units % 2 == 0 and depth >= _LANES[0] and in_four_bits(op.weights) and depth <= _MOST_OF_NIBBLES


class _LaneEnds(HybridRow, mve.LaneOutputs):
    """The ends of hybrid kernels on lanes of four outputs: the table has vectors for each four channels."""

    def pack_table(self) -> np.ndarray:
        words, self.passes = self.records(), self.pass_counts()
        self.words, self.first = LANES * len(words), self.head  # `head` is of the table from here on
        self.head = -(-len(self.passes) // LANES) * LANES
        counts = np.array(self.passes + [0] * (self.head - len(self.passes)), np.int32)
        packed = words.reshape(len(words), -1, LANES).transpose(1, 0, 2).ravel()
        self.whole_at = counts.size + packed.size
        return np.concatenate([counts, packed, self.whole_scale()])

    def finished_lanes(self, total: Value, x: Value, channel: Value, p: int, j: int) -> None:
        """Emit the outputs of four sums."""
        k, conv, words = self.k, self.conv, self.block_words(channel, j)
        factor, zero = self.ends[p]
        if not conv.centred:
            less = vector(self.table, words + (self.which + self.first) * LANES, LANES)
            total = k.let(total + less * splat(zero), "total", "int32x4")
        real, own = total.astype(_FOUR), vector(self.reals, words + LANES, LANES)
        if not conv.by_channel:
            real = real * splat(factor)
        elif conv.in_turn:
            real = real * own * splat(factor)
        else:
            real = real * (splat(factor) * own)
        value = conv.finished(fenced(real) + vector(self.reals, words, LANES), LANES)
        put(k, self.out, (x + p) * conv.outputs + channel + j, value, LANES)


class _ConvDot(_LaneEnds, mve.Dot):
    """Sixteen or eight products an instruction, along a kernel row."""

    def outputs(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        lanes = [i32(i) for i in range(LANES)]
        for p in range(pixels):
            for j in range(0, size, LANES):
                values = [acc[i32(p * size + j + i)] for i in range(LANES)]
                four = self.k.let(tirx.Shuffle(values, lanes), "four", "int32x4")
                if self.sixteenfold:
                    four = self.k.let(tirx.shift_right(four, splat(i32(4))), "four", "int32x4")
                self.finished_lanes(four, x, channel, p, j)


class _ConvNibbles(_ConvDot, mve.NibbleDot):
    """Weights of four bits."""


class _ConvOuter(_LaneEnds, mve.Outer):
    """An input value times the weights of four outputs at a time."""

    def start(self, index: int, channel: Value, pixels: int, size: int) -> Value:
        self.which = self.bias + index
        acc = self.k.local(pixels * size, "acc")
        for place in range(0, pixels * size, LANES):
            put(self.k, acc, place, splat(i32(0)), LANES)
        return acc

    def outputs(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        for p in range(pixels):
            for j in range(0, size, LANES):
                self.finished_lanes(vector(acc, p * size + j, LANES), x, channel, p, j)


class _Depthwise(depthwise_mve.Depthwise):
    """Eight channels at a time."""

    conv: HybridLayer

    @property
    def pads(self) -> bool:
        return True

    def input_types(self) -> list[str]:
        return [self.conv.dtype, _FLOAT]

    def biases(self) -> np.ndarray:
        """Return the negated weight sum for each row variant and channel."""
        conv = self.conv
        return folded_bias(self.g, conv.weights, np.zeros(conv.outputs), 1, every_column=True)[:, 0]

    def pack(self, biases: np.ndarray) -> np.ndarray:
        conv = self.conv
        scales = np.broadcast_to(conv.scales, (conv.outputs,)).copy()
        bias, scale = (np.asarray(v, np.float32).view(np.int32) for v in (conv.bias, scales))
        table = np.stack([bias, np.zeros_like(bias), -scale], axis=1)
        records, self.words = lane_records(self.packed_weights(), biases, table)
        self.weights_at = (4 + 2 * biases.shape[0]) * LANES
        return np.concatenate([np.zeros(LANES, records.dtype), records])

    def _emit(self) -> None:
        k = self.k
        factors = k.view(k.inputs[1][0], _FLOAT, "factors")
        self.reals = k.view(k.constants[0], _FLOAT, "reals")
        self.factor = k.let(factors[i32(SCALE)], "factor", _FLOAT)
        self.whole = k.let(factors[i32(ZERO)].astype("int32"), "zero")
        self.half = k.let(self.whole.astype("int16"), "half", "int16")
        super()._emit()

    @property
    def zero(self) -> Value:
        return self.half

    def start(self, words: Value, odd: int) -> Value:
        return super().start(words, odd) * splat(self.whole)

    def _outputs(self, acc: Value, x: Value, cb: Value, words: Value, pixels: int) -> None:
        k, conv = self.k, self.conv
        order = [i32(i // 2 + i % 2 * LANES) for i in range(8)]
        for p in range(pixels):
            halves = []
            for odd in range(2):
                bias, scale = (vector(self.reals, words + (2 * i + odd) * LANES, LANES) for i in range(2))
                real = vector(acc, p * 8 + odd * LANES, LANES).astype(_FOUR) * (splat(self.factor) * scale)
                halves.append(k.let(conv.finished(fenced(real) + bias, LANES), "half", _FOUR))
            put(k, self.out, (x + p) * self.g.channels + cb * 8, tirx.Shuffle(halves, order), 8)


class _NibbleDepthwise(depthwise_mve.NibbleDepthwise, _Depthwise):
    """Weights of four bits."""


def _depthwise(layer: HybridLayer, packs_weights: bool) -> list[Variant]:
    """List a depthwise layer's variants by pixels per block; none unless channels are a multiple of eight."""
    if layer.window.channels % 8 or layer.multiplier > 1:
        return []
    nibbles = packs_weights and depthwise_mve.packs(layer)
    form, name = (_NibbleDepthwise, "depthwise nibbles") if nibbles else (_Depthwise, "depthwise")
    return [Variant(f"{name} {p}", lambda p=p: form(layer, p).build()) for p in (2, 1, 3, 4)]


def _convolution(spec: OperatorSpec, packs_weights: bool) -> list[Variant]:
    """List a hybrid convolution's variants; none if a group's outputs are no multiple of four."""
    layer = read_hybrid(spec) if spec.kind != "hybrid_dense" else None
    if layer is not None and layer.depthwise and layer.weights.dtype == np.int8:
        return _depthwise(layer, packs_weights)
    if layer is None or layer.outputs // layer.groups % LANES or layer.weights.dtype != np.int8:
        return []
    if packs_weights and of_four_bits(layer, _LANES[0]):
        return [
            Variant(f"nibbles {b.name}", partial(built, _ConvNibbles, layer, b)) for b in (mve.DOT, *mve.OTHER_DOTS)
        ]
    eights = layer.weights.shape[2] % 8 == 0
    dots = [Variant(f"dot {b.name}", partial(built, _ConvDot, layer, b)) for b in (mve.DOT, *mve.OTHER_DOTS) if eights]
    outers = (mve.OUTER, *mve.OTHER_OUTERS)
    return dots or [Variant(f"outer {b.name}", partial(built, _ConvOuter, layer, b)) for b in outers]


def quantize(op: Activation) -> RowKernel:
    """Build the kernel that stores floats as int8, four at a time."""
    k = KernelBuilder([_FLOAT, _FLOAT], (), ["int8"])
    x, held = (k.view(given[0], _FLOAT, "xs") for given in k.inputs)
    out, count = k.view(k.outputs[0], "int8", "outs"), op.count
    linear = op.storing is Storing.LINEAR

    def emit() -> None:
        first = k.let(k.row_offset(0, 0, op.rows * count), "first")
        with k.loop(op.rows, "n") as n:
            part = n * 3 if op.parts > 1 else 0
            inverse, zero = (k.let(held[i32(part + j)], "factor", _FLOAT) for j in (INVERSE, ZERO))

            def value(i: Value) -> Value:
                real = vector(x, first + n * count + i, LANES)
                real = real / splat(inverse) if linear else fenced(real * splat(inverse)) + splat(zero)
                rounds = "llvm.arm.mve.vcvtn" if linear else "llvm.arm.mve.vcvta"
                near = tirx.call_llvm_pure_intrin("int32x4", rounds, 0, k.let(real, "real", _FOUR))
                near = near + splat(zero.astype("int32")) if linear else near
                return tirx.max(tirx.min(near, splat(127)), splat(op.storing.lowest)).astype("int8x4")

            each_vector(k, out, count, "int8", value, start=n * count)

    return k.kernel(emit)


def find_factors(op: Range) -> RowKernel:
    """Build the kernel that finds scale, inverse and zero point of every part; extremes are of four lanes."""
    k = KernelBuilder([_FLOAT], (), [_FLOAT])
    x, out = k.view(k.inputs[0][0], _FLOAT, "xs"), k.view(k.outputs[0], _FLOAT, "outs")
    names = "llvm.minnum", "llvm.maxnum"

    def emit() -> None:
        with k.loop(op.parts, "n") as n:
            start, ends = k.let(n * op.count, "start"), k.local(2 * LANES, "ends", _FLOAT)

            def widen(place: Value) -> None:
                value = k.let(vector(x, place, LANES), "value", _FOUR)
                for i, name in enumerate(names):
                    both = tirx.call_llvm_pure_intrin(_FOUR, name, vector(ends, i * LANES, LANES), value)
                    put(k, ends, i * LANES, both, LANES)

            first = k.let(vector(x, start + (op.count - LANES), LANES), "first", _FOUR)
            for i in range(2):
                put(k, ends, i * LANES, first, LANES)
            with k.loop(op.count // LANES, "i") as i:
                widen(start + i * LANES)
            extremes: list[Value] = []
            for i, choose in enumerate((tirx.min, tirx.max)):
                a, b, c, d = (ends[i32(i * LANES + j)] for j in range(LANES))
                extremes.append(k.let(choose(choose(a, b), choose(c, d)), "end", _FLOAT))
            for i, value in enumerate(factors(extremes[0], extremes[1], op.storing)):
                k.store(out, n * 3 + i, value)

    return k.kernel(emit)


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the kernel for a hybrid product, or for its stored activations; none for any other operator."""
    if not target.vectors:
        return []
    if (activation := read_stored(spec)) is not None:
        return [Variant("quantize", partial(quantize, activation))] if activation.count >= LANES else []
    if (found := read_range(spec, bits=False)) is not None:
        return [Variant(f"factors {found.storing.value}", partial(find_factors, found))] if found.count >= LANES else []
    op = read_hybrid_dense(spec)
    if op is None:
        return _convolution(spec, target.packs_weights)
    nibbles = target.packs_weights and _packs(op)
    return [Variant("nibbles", _NibbleDot(op).build) if nibbles else Variant("dot", _Dot(op).build)]
