"""Row kernels of hybrid layers (activations stored as int8 while the network runs, float32 results), for every core.

The products are those of int8 layers, by the same builders: `sum W (q - z) = sum W q - z sum W`, so a channel's bias is
the negated sum of its weights, one for each set of valid taps, times the zero point that is known at run time. The sum
becomes a real number, is multiplied by the scales and gets its bias in the reference's order.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import isfinite, prod

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules import cortex_m_dsp as dsp
from tvm_cascade.schedules.rules import cortex_m_scalar as scalar
from tvm_cascade.schedules.rules import geometry, riscv
from tvm_cascade.schedules.rules.conv_row import Blocking, ConvRow, DepthwiseRow
from tvm_cascade.schedules.rules.emit import KernelBuilder, best_step
from tvm_cascade.schedules.rules.geometry import Columns, Sliding
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.quantized import Part, blank, of_four_bits
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, dtype_of, i32, tirx
from tvm_cascade.schedules.tir.stored_reals import INVERSE, SCALE, ZERO, Storing, factors, number

_FLOAT = "float32"
_FACTORS = 3  # of a part
_STEP = 4  # most elements in an iteration of a loop over activations
_DENSE, _CONV, _DEPTHWISE = "hybrid_dense", "hybrid_conv2d", "hybrid_depthwise_conv2d"


@dataclass(frozen=True, eq=False)
class HybridLayer:
    """A hybrid layer as a convolution, NHWC with batch 1; fields as in `quantized.QuantizedConv`.

    A product of rows is one row of pixels, each with factors of its own.
    """

    window: Sliding
    weights: np.ndarray  # [kh, kw, inputs, outputs]
    scales: np.ndarray  # float32: one, or one an output
    bias: np.ndarray  # float32 [outputs]
    in_turn: bool  # a sum is multiplied by the weights' scale, then by the input's; else by the product of both
    centred: bool  # the input's zero point is 0
    by_pixel: bool  # every pixel has factors of its own
    bounds: tuple[float, ...]  # smallest and largest output; infinite: unbounded
    dtype: str = "int8"
    out_dtype: str = _FLOAT
    depthwise: bool = False
    multiplier: int = 1
    parts: tuple[Part, ...] = ()
    groups: int = 1
    unsigned: bool = False

    @property
    def non_contiguous(self) -> bool:
        return self.groups > 1 or self.window.dilation[1] > 1

    @property
    def outputs(self) -> int:
        return self.weights.shape[-1]

    @property
    def by_channel(self) -> bool:
        """Return True if every output has a scale of its own."""
        return self.scales.size > 1

    def without_values(self) -> HybridLayer:
        """Return the layer with zeros for weights, scales and biases, which take no memory."""
        return replace(self, weights=blank(self.weights), scales=blank(self.scales), bias=blank(self.bias))

    @property
    def form(self) -> Hashable:
        """Return everything that distinguishes this layer, except the constants' values."""
        given = [getattr(self, f.name) for f in fields(self)]
        return tuple((v.shape, str(v.dtype)) if isinstance(v, np.ndarray) else v for v in given)

    def finished(self, value: Value, lanes: int = 1) -> Value:
        """Apply the activation, to `lanes` outputs in a vector."""
        return bounded(value, self.bounds, lanes)


def bounded(value: Value, bounds: tuple[float, ...], lanes: int = 1) -> Value:
    """Bound a float, or `lanes` floats; infinite bounds are none."""
    low, high = (tirx.const(b, _FLOAT) for b in bounds)
    low, high = (b if lanes == 1 else tirx.Broadcast(b, lanes) for b in (low, high))
    value = tirx.min(value, high) if isfinite(bounds[1]) else value
    return tirx.max(value, low) if isfinite(bounds[0]) else value


def read_hybrid(spec: OperatorSpec) -> HybridLayer | None:
    """Read a hybrid convolution or product; None for any other operator and for forms unknown to the kernels."""
    if spec.kind not in (_DENSE, _CONV, _DEPTHWISE) or len(spec.constants) != 3 or len(spec.inputs) != 2:
        return None
    weights, scales, bias = spec.constants
    given = spec.attributes
    if spec.kind == _DENSE:
        rows, (units, depth) = spec.output.shape[0], weights.shape
        window = Sliding(1, rows, depth, 1, rows, (1, 1), (1, 1), (0, 0))
        weights = np.ascontiguousarray(weights.T).reshape(1, 1, depth, units)
    else:
        window = Sliding.of(spec, (weights.shape[0], weights.shape[1]))
        if spec.inputs[0].shape[0] != 1 or not window.wraps_once or window.rows_by_table:
            return None
    bounds = given.bounds or (-np.inf, np.inf)
    in_turn, centred = bool(given.scales_in_turn), given.input_zero_point == 0
    depthwise, multiplier = spec.kind == _DEPTHWISE, 1
    if depthwise:
        multiplier, weights = weights.shape[3], weights.reshape(*weights.shape[:2], 1, -1)
    by_pixel = spec.inputs[1].shape[0] > 1
    layer = HybridLayer(window, weights, scales.ravel(), bias.ravel(), in_turn, centred, by_pixel, bounds)
    return replace(layer, depthwise=depthwise, multiplier=multiplier, groups=given.groups or 1)


@dataclass(frozen=True, slots=True)
class Activation:
    """A tensor of floats that is stored as int8: `rows` of `count` elements a call, in one part or in parts of a row."""

    rows: int
    count: int
    parts: int
    storing: Storing


_ROWS = {2: 1, 4: 2}  # by rank, the first axis within a row of what is stored


def read_stored(spec: OperatorSpec) -> Activation | None:
    """Read what `hybrid_quantize` stores, all rows of a matrix or a row of a map; None for any other operator."""
    shape, storing = spec.output.shape, spec.attributes.storing
    if (
        spec.kind != "hybrid_quantize"
        or storing is None
        or not (len(shape) == 2 or (len(shape) == 4 and shape[0] == 1))
    ):
        return None
    return Activation(shape[0], prod(shape[_ROWS[len(shape)] :]), spec.inputs[1].shape[0], Storing(storing))


def quantize(op: Activation) -> RowKernel:
    """Build the kernel that stores floats as int8."""
    k = KernelBuilder([_FLOAT, _FLOAT], (), ["int8"])
    x, factors = (k.view(given[0], _FLOAT, "xs") for given in k.inputs)
    out = k.view(k.outputs[0], "int8", "outs")
    whole = partial(call, "round_even" if op.storing is Storing.LINEAR else "round_away")

    def emit() -> None:
        first = k.let(k.row_offset(0, 0, op.rows * op.count), "first")
        with k.loop(op.rows, "n") as n:
            part = n * _FACTORS if op.parts > 1 else 0
            inverse, zero = (k.let(factors[i32(part + j)], "factor", _FLOAT) for j in (INVERSE, ZERO))
            start = k.let(first + n * op.count, "start")
            step = best_step(op.count, _STEP)
            for i in k.unrolled(op.count // step, step):
                real = k.let(x[start + i], "real", _FLOAT)
                held = call("ssat8", number(real, inverse, zero, op.storing, whole, partial(call, "alone")))
                if op.storing.lowest > -128:
                    held = tirx.max(k.let(held, "held"), i32(op.storing.lowest))
                k.store(out, n * op.count + i, held.astype("int8"))

    return k.kernel(emit, form=("hybrid_quantize", op))


@dataclass(frozen=True, slots=True)
class Range:
    """Parts of floats whose factors are found."""

    parts: int
    count: int  # elements of a part
    storing: Storing
    bits: bool  # floats are compared by their bits, in integers


def read_range(spec: OperatorSpec, bits: bool) -> Range | None:
    """Read what `hybrid_factors` reads; None for any other operator."""
    storing = spec.attributes.storing
    if spec.kind != "hybrid_factors" or storing is None:
        return None
    parts = spec.output.shape[0]
    return Range(parts, prod(spec.inputs[0].shape) // parts, Storing(storing), bits)


def find_factors(op: Range) -> RowKernel:
    """Build the kernel that finds scale, inverse and zero point of every part."""
    k = KernelBuilder([_FLOAT], (), [_FLOAT])
    kind = "int32" if op.bits else _FLOAT
    x, out = k.view(k.inputs[0][0], kind, "xs"), k.view(k.outputs[0], _FLOAT, "outs")

    def turned(bits: Value) -> Value:
        """Turn the bits of numbers below zero, so that integers have the order of floats; once more turns them back."""
        return tirx.bitwise_xor(bits, tirx.bitwise_and(tirx.shift_right(bits, i32(31)), i32(0x7FFFFFFF)))

    def ordered(i: Value) -> Value:
        value = k.let(x[i], "value", kind)
        return k.let(turned(value), "key") if op.bits else value

    def real(end: Value) -> Value:
        return call("real", turned(k.let(end, "key"))) if op.bits else end

    def emit() -> None:
        with k.loop(op.parts, "n") as n:
            start = k.let(n * op.count, "start")
            ends = k.local(2, "ends", kind)
            for i in range(2):
                k.store(ends, i, ordered(start))
            step = best_step(op.count, _STEP)
            for i in k.unrolled(op.count // step, step):
                value = ordered(start + i)
                k.store(ends, 0, tirx.min(ends[i32(0)], value))
                k.store(ends, 1, tirx.max(ends[i32(1)], value))
            low, high = (k.let(real(ends[i32(i)]), "end", _FLOAT) for i in range(2))
            terms = factors(low, high, op.storing, lambda term: k.let(term, "term", dtype_of(term)))
            for i, value in enumerate(terms):
                k.store(out, n * _FACTORS + i, value)

    return k.kernel(emit, form=("hybrid_factors", op))


class HybridRow(ConvRow):
    """The ends of hybrid kernels: sums of products from zero on, scales, biases. A class of products stands behind it.

    The table has a record for every channel: bias, scale (where channels have scales), then the negated sums of weights.
    """

    by_form = True
    conv: HybridLayer
    which: Value = 0  # the current sum of weights, in a record

    def input_types(self) -> list[str]:
        return [self.conv.dtype, _FLOAT]

    def pack_table(self) -> np.ndarray:
        words = self.records()
        self.width, self.whole_at = len(words), words.size
        return np.concatenate([words.T.ravel(), self.whole_scale()])

    def records(self) -> np.ndarray:
        """Return the channels' numbers, int32 [numbers, channels]."""
        conv = self.conv
        reals = [conv.bias, *([conv.scales] if conv.by_channel else [])]
        self.head = len(reals)
        words = [np.ascontiguousarray(r, np.float32).view(np.int32) for r in reals]
        if not conv.centred:
            words += list(geometry.folded_bias(self.g, conv.weights, np.zeros(1), 1).reshape(-1, conv.outputs))
        return np.stack(words)

    def whole_scale(self) -> np.ndarray:
        """Return the bits of the weights' single scale, int32 [1], or nothing."""
        conv = self.conv
        return (
            np.zeros(0, np.int32) if conv.by_channel else np.ascontiguousarray(conv.scales, np.float32).view(np.int32)
        )

    def bias_at(self, y: Value) -> Value:
        return 0 if self.conv.centred else geometry.bias_index(self.k, self.g, y)

    def _open(self) -> None:
        k = self.k
        self.reals = k.view(k.constants[1], _FLOAT, "reals")
        self.factors = k.view(k.inputs[1][0], _FLOAT, "factors")
        if not self.conv.by_pixel:
            self.ends = [self._factors(0)] * self.blocking.pixels * self.conv.outputs

    def _factors(self, part: Value) -> tuple[Value, Value]:
        """Bind factor and zero point of a part of the input; a single scale of the weights is in the factor."""
        k = self.k
        scale = self.factors[part * _FACTORS + SCALE]
        if not self.conv.by_channel:
            scale = scale * self.reals[i32(self.whole_at)]
        zero = 0 if self.conv.centred else k.let(self.factors[part * _FACTORS + ZERO].astype("int32"), "zero")
        return k.let(scale, "factor", _FLOAT), zero

    def window_sums(self, _group: Columns, x: Value, pixels: int, _nth: Value) -> Value:
        if self.conv.by_pixel:
            self.ends = [self._factors(x + p) for p in range(pixels)]

    def start(self, index: int, channel: Value, pixels: int, size: int) -> Value:
        self.which = self.bias + index
        acc = self.k.local(pixels * size, "acc")
        for i in range(pixels * size):
            self.k.store(acc, i, i32(0))
        return acc

    def outputs(self, acc: Value, x: Value, channel: Value, pixels: int, size: int) -> None:
        k, conv = self.k, self.conv
        for j in range(size):
            record = (channel + j) * self.width
            bias = k.let(self.reals[record], "bias", _FLOAT)
            own = k.let(self.reals[record + 1], "scale", _FLOAT) if conv.by_channel else None
            less = None if conv.centred else k.let(self.table[record + self.head + self.which], "less")
            for p in range(pixels):
                factor, zero = self.ends[p]
                total = acc[i32(p * size + j)]
                total = total if less is None else k.let(call("mla", zero, less, total), "total")
                real = total.astype(_FLOAT)
                if own is None:
                    real = real * factor
                elif conv.in_turn:
                    real = real * own * factor
                else:
                    real = real * (factor * own)
                k.store(self.out, (x + p) * conv.outputs + channel + j, conv.finished(call("alone", real) + bias))


class _Depthwise(scalar.Depthwise):
    """A depthwise layer, a channel at a time: its record is bias, scale and the negated sum of its weights, which stand in
    front of all taps. Padding counts as the zero point.
    """

    conv: HybridLayer

    def input_types(self) -> list[str]:
        return [self.conv.dtype, _FLOAT]

    def biases(self) -> np.ndarray:
        return geometry.whole_bias(self.conv.weights, np.zeros(1), 1)

    def pack(self, biases: np.ndarray) -> np.ndarray:
        conv = self.conv
        scales = np.broadcast_to(conv.scales, (conv.outputs,))
        reals = np.stack([conv.bias, scales]).astype(np.float32)
        words = np.concatenate([reals.view(np.int32), biases.astype(np.int32)]).T.ravel()
        return self.with_weights(words)

    def without_values(self) -> HybridLayer:
        return self.conv.without_values()

    def _emit(self) -> None:
        k = self.k
        factors = k.view(k.inputs[1][0], _FLOAT, "factors")
        self.reals = k.view(k.constants[0], _FLOAT, "reals")
        self.factor = k.let(factors[i32(SCALE)], "factor", _FLOAT)
        self._zero = k.let(factors[i32(ZERO)].astype("int32"), "zero")
        DepthwiseRow._emit(self)

    @property
    def zero(self) -> Value:
        return self._zero

    def start(self, channel: Value) -> Value:
        return self.k.let(self.record[channel * 3 + 2] * self._zero, "start")

    def finished(self, channel: Value, sums: list[Value]) -> list[Value]:
        k = self.k
        bias, scale = (k.let(self.reals[channel * 3 + i], name, _FLOAT) for i, name in enumerate(("bias", "scale")))
        scale = k.let(self.factor * scale, "scale", _FLOAT)
        return [self.conv.finished(call("alone", total.astype(_FLOAT) * scale) + bias) for total in sums]


class _NibbleDepthwise(scalar.NibbleDepthwise, _Depthwise):
    """Weights of four bits."""


def depthwise(layer: HybridLayer, pixels: int, nibbles: bool = False) -> RowKernel:
    """Build a depthwise kernel, in blocks of `pixels` pixels; `nibbles` stores weights in four bits."""
    return (_NibbleDepthwise if nibbles else _Depthwise)(layer, pixels).build()


class _Pairs(HybridRow, dsp.Conv):
    """Two products per `smlad`."""


class _Halves(HybridRow, dsp.HalfwordConv):
    """Two products per `smlad`, of weights that need nine bits."""


class _Singles(HybridRow, scalar.Conv):
    """A product per multiplication."""


class _PairNibbles(dsp.NibbleConv, HybridRow):
    """Two products per `smlad`, of weights of four bits."""


class _SingleNibbles(scalar.NibbleConv, HybridRow):
    """A product per multiplication, of weights of four bits."""


def built(form: type[HybridRow], layer: HybridLayer, blocking: Blocking) -> RowKernel:
    return form(layer, blocking).build()


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the variants of a hybrid layer; none for any other operator."""
    if (activation := read_stored(spec)) is not None:
        return [Variant("quantize", partial(quantize, activation))]
    if (found := read_range(spec, bits=not target.core.fpu)) is not None:
        return [Variant(f"factors {found.storing.value}", partial(find_factors, found))]
    layer = read_hybrid(spec)
    if layer is None:
        return []
    if layer.depthwise:
        widths = scalar.depthwise_widths(layer.window.out_width)
        nibbles = target.packs_weights and scalar.packs_depthwise(layer)
        name = "depthwise nibbles" if nibbles else "depthwise"
        return [Variant(f"{name} {p}", partial(depthwise, layer, p, nibbles)) for p in widths]
    form, blockings = _pairs(layer, target) if target.dsp else _singles(layer, target)
    name = "nibbles" if form.stored_as else "conv"
    return [Variant(f"{name} {b.name}", partial(built, form, layer, b)) for b in dict.fromkeys(blockings)]


def _pairs(layer: HybridLayer, target: KernelTarget) -> tuple[type[HybridRow], Sequence[Blocking]]:
    """Return the class of a layer's kernels, and their blockings, on a core with the DSP extension."""
    if target.packs_weights and of_four_bits(layer, dsp.NibbleConv.group):
        return _PairNibbles, [*dsp.OTHERS, dsp.BLOCKING]
    return _Pairs if layer.weights.dtype == np.int8 else _Halves, [dsp.BLOCKING, *dsp.OTHERS]


def _singles(layer: HybridLayer, target: KernelTarget) -> tuple[type[HybridRow], Sequence[Blocking]]:
    """Return the class of a layer's kernels, and their blockings, on other cores."""
    usual, nibbles = (riscv.BLOCKING,) * 2 if "riscv" in target.core.rules else (scalar.BLOCKING, scalar.NIBBLES)
    if target.packs_weights and scalar.packs(layer):
        return _SingleNibbles, [nibbles, *scalar.OTHERS]
    return _Singles, [
        scalar.LLVM_BLOCKING if target.backend == "llvm" else usual,
        scalar.BLOCKING,
        *scalar.OTHERS,
    ]
