"""Lowering of add, sub, mul (broadcasting), sums of several tensors and the relu family.

Multipliers as the reference prepares them: add and sub in double from `t = 2 max(s1, s2)` with 20 bits of head room (15
for int16), mul and relu with their ratio in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_cascade.passes.integer import convolution, dense
from tvm_cascade.passes.integer.channel_scaling import stored_bias
from tvm_cascade.passes.integer.expressions import NotLowered, name_of
from tvm_cascade.passes.integer.fixed_point import INT32_MAX, i32, te_broadcast, te_rescale
from tvm_cascade.passes.integer.island import ISLANDS, STORED_TYPES, Island, Output, Quantized, bounded_multiplier
from tvm_cascade.passes.integer.lookup import ELU, lower_elu
from tvm_cascade.passes.integer.prelu import SLOPED, lower_sloped
from tvm_cascade.passes.integer.requantize import rescaled, stored
from tvm_cascade.passes.integer.roots import differences, squared_difference
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value

_BIASED = {
    "relax.nn.conv2d": convolution.lower_biased,
    "relax.nn.conv2d_transpose": convolution.lower_biased_transpose,
    "relax.matmul": dense.lower_biased,
}
_HEAD_ROOM = {"int8": 20, "uint8": 20, "int16": 15}  # bits that add and sub shift their operands up by
_SUM_HEAD_ROOM = {"int8": 21, "uint8": 21, "int16": 16}  # the same for sums of n > 2, less the bits of n - 1


@ISLANDS.lowers("nn.conv2d", "nn.conv2d_transpose", "matmul")
def lower_without_bias(island: Island) -> Value:
    """A convolution or product whose sums no bias is added to."""
    return _BIASED[name_of(island.core)](island, island.core, None)


@ISLANDS.lowers("add")
def lower_add(island: Island) -> Value:
    """An add of tensors, the bias of a convolution or product, or an elu or prelu as the importer expands them."""
    core = island.core
    left, bias = island.reader.define(core.args[0]), island.reader.dequantized(core.args[1])
    biased = _BIASED.get(name_of(left))
    if biased is None:
        elu, sloped = island.reader.match(core, ELU), island.reader.match(core, SLOPED)
        if sloped is not None:
            return lower_sloped(island, sloped["x"], sloped["slopes"])
        if elu is not None:
            return lower_elu(island, elu["x"])
        several = _summands(island)
        return _sum(island, "add") if several is None else _lower_summands(island, several)
    if bias is None or bias.constant is None:
        raise NotLowered("its bias is not constant")
    if bias.dtype != "int32":
        raise NotLowered(f"its bias has the type {bias.dtype}")
    return biased(island, left, stored_bias(island, left, bias, bias.constant))


@ISLANDS.lowers("subtract")
def lower_subtract(island: Island) -> Value:
    """A difference, by the arithmetic of sums."""
    return _sum(island, "sub")


@ISLANDS.lowers("multiply")
def lower_multiply(island: Island) -> Value:
    """A product, or a squared difference, which the importer expands to `(a - b) * (a - b)`."""
    pair = differences(island)
    if pair is not None:
        square, ratios = squared_difference(*pair, island.output)
        return _binary(island, "squared_difference", *pair, square, **ratios)
    a, b = stored(island.operand(0)), stored(island.operand(1))
    out = island.output
    ratio = np.float64(np.float32(np.float32(a.step * b.step) / out.scale))
    m, s = bounded_multiplier(np.float64(a.step) * np.float64(b.step) / np.float64(out.scale) if out.once else ratio)
    bound = a.reach * b.reach

    def value(x: Scalar, y: Scalar) -> Scalar:
        return out.rescaled(a.centred(x) * b.centred(y), m, s, bound)

    return _binary(island, "mul", a, b, value, multiplier=m, shift=s)


@ISLANDS.lowers("nn.relu", "clip")
def lower_relu(island: Island) -> Value:
    """relu, relu6, relu_n1_to_1 and relu_0_to_1 as separate operators: a rescale and a clamp."""
    x = stored(island.operand(0))
    ratio = np.float64(np.float32(x.step / island.output.scale))
    return rescaled(island, "relu", x, np.float64(x.step) / island.output.scale if island.output.once else ratio)


def _sum(island: Island, kind: str) -> Value:
    a, b = stored(island.operand(0)), stored(island.operand(1))
    out = island.output
    high = 1 << _HEAD_ROOM[out.dtype]
    twice = np.float64(np.float32(2) * max(a.step, b.step))
    (ma, sa), (mb, sb) = (bounded_multiplier(np.float64(q.step) / twice) for q in (a, b))
    mo, so = bounded_multiplier(twice / np.float64(np.float32(high) * out.scale))

    left, right = _Summand(a.zero_point, a.reach, ma, sa), _Summand(b.zero_point, b.reach, mb, sb)
    value = _Sum(kind, left, right, high, mo, so, out)
    return _binary(
        island, kind, a, b, value, head_room=_HEAD_ROOM[out.dtype], multipliers=(ma, mb, mo), shifts=(sa, sb, so)
    )


@dataclass(frozen=True, slots=True)
class _Summand:
    """An operand of a sum, and its rescale to twice the larger scale."""

    zero_point: int
    reach: int
    multiplier: int
    shift: int

    def value(self, x: Scalar, high: int) -> Scalar:
        """An element, rescaled and times `high`."""
        return te_rescale(
            (x.astype("int32") - i32(self.zero_point)) * i32(high), self.multiplier, self.shift, self.reach * high
        )


@dataclass(frozen=True, slots=True)
class _Sum:
    """Sums or differences of two elements, in units of the output's scale."""

    kind: str
    left: _Summand
    right: _Summand
    high: int
    multiplier: int
    shift: int
    output: Output

    def __call__(self, x: Scalar, y: Scalar) -> Scalar:
        left, right = self.left.value(x, self.high), self.right.value(y, self.high)
        total = left + right if self.kind == "add" else left - right
        bound = (self.left.reach + self.right.reach) * self.high // 2 + 2
        return self.output.rescaled(total, self.multiplier, self.shift, bound)


@dataclass(frozen=True, slots=True)
class _Broadcast:
    """Elements of an output, from those of two tensors that are broadcast."""

    value: Callable[[Scalar, Scalar], Scalar]
    output: Output

    def __call__(self, index: tuple[Index, ...], x: Tensor, y: Tensor) -> Scalar:
        return self.output.stored(self.value(te_broadcast(x, index), te_broadcast(y, index)))


def _binary(
    island: Island, kind: str, a: Quantized, b: Quantized, value: Callable[[Scalar, Scalar], Scalar], **ratios: Any
) -> Value:
    """Emits an operator on two stored tensors, broadcast. `constant_first` marks a constant `a`, passed after `b`."""
    out = island.output
    return island.elementwise(
        kind,
        _Broadcast(value, out),
        [a.operand, b.operand],
        input_zero_points=(a.zero_point, b.zero_point),
        **out.described,
        constant_first=a.constant is not None,
        **ratios,
    )


def _summands(island: Island) -> list[Quantized] | None:
    """The stored tensors summed by nested adds, if there are more than two; else None."""
    summands: list[Quantized] = []
    waiting = list(island.core.args)
    while waiting:
        expr = waiting.pop(0)
        inner = island.reader.define(expr)
        if name_of(inner) == "relax.add":
            waiting[:0] = inner.args
            continue
        summand = island.reader.dequantized(expr)
        if summand is None or summand.scale.size != 1 or summand.dtype not in STORED_TYPES:
            return None
        summands.append(summand)
    return summands if len(summands) > 2 else None


def _lower_summands(island: Island, parts: list[Quantized]) -> Value:
    """The sum of more than two tensors (ONNX's Sum), generalizing the reference's add: every summand is shifted up by the
    head room and rescaled to twice the largest scale, the total to the output's scale."""
    out = island.output
    high = 1 << (_SUM_HEAD_ROOM[out.dtype] - (len(parts) - 1).bit_length())
    largest = np.float64(2) * max(float(p.step) for p in parts)
    scaling = [bounded_multiplier(float(p.step) / largest) for p in parts]
    final = bounded_multiplier(largest / (high * np.float64(out.scale)))
    bound = sum(p.reach for p in parts) * high // 2 + len(parts)
    if bound > INT32_MAX or max(p.reach for p in parts) * high > INT32_MAX:
        raise NotLowered(f"a sum of {len(parts)} tensors, which may exceed 32 bits")

    def element(index: tuple[Index, ...], *given: Tensor) -> Scalar:
        total: Scalar = i32(0)
        for part, pair, x in zip(parts, scaling, given, strict=True):
            total = total + te_rescale(part.centred(te_broadcast(x, index)) * i32(high), *pair, part.reach * high)
        return out.stored(out.rescaled(total, *final, bound))

    return island.elementwise("add_several", element, [p.operand for p in parts])
