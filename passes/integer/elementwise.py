"""add, sub, mul (broadcasting), the relu family, and quantize between stored types.

Multipliers as the reference prepares them: add and sub in double from `t = 2 max(s1, s2)` with 20 bits of head room,
mul and relu with their ratio in float32, quantize in double.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tvm_cascade.passes.integer import convolution, dense, transposed_convolution
from tvm_cascade.passes.integer.bias import stored_bias
from tvm_cascade.passes.integer.broadcast import te_broadcast
from tvm_cascade.passes.integer.expressions import NotLowered, name_of
from tvm_cascade.passes.integer.fixed_point import i32, te_clamp, te_rescale
from tvm_cascade.passes.integer.island import Island, Quantized, bounded_multiplier
from tvm_cascade.passes.integer.lookup import elu_input, lower_elu
from tvm_cascade.passes.integer.prelu import lower_sloped, sloped_input
from tvm_cascade.passes.integer.registry import ISLANDS
from tvm_cascade.passes.integer.requantize import requantized, rescaled, stored
from tvm_cascade.passes.integer.roots import differences, squared_difference
from tvm_cascade.passes.integer.sums import lower_summands, summands
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te
from tvm_cascade.schedules.kernels.spec import Attributes

_BIASED = {
    "relax.nn.conv2d": convolution.lower_biased,
    "relax.nn.conv2d_transpose": transposed_convolution.lower_biased,
    "relax.matmul": dense.lower_biased,
}
_HEAD_ROOM = {"int8": 20, "uint8": 20, "int16": 15}  # bits that add and sub shift their operands up by


@ISLANDS.lowers("add")
def lower_add(island: Island) -> Value:
    """A residual add, or the bias of a convolution or fully connected layer."""
    core = island.core
    left, bias = island.reader.define(core.args[0]), island.reader.dequantized(core.args[1])
    biased = _BIASED.get(name_of(left))
    if biased is None:
        elu, sloped = elu_input(island), sloped_input(island)
        if sloped is not None:
            return lower_sloped(island, *sloped)
        if elu is not None:
            return lower_elu(island, elu)
        several = summands(island)
        return _sum(island, "add") if several is None else lower_summands(island, several)
    if bias is None or bias.constant is None:
        raise NotLowered("its bias is not constant")
    if bias.dtype != "int32":
        raise NotLowered(f"its bias has the type {bias.dtype}")
    return biased(island, left, stored_bias(island, left, bias, bias.constant))


@ISLANDS.lowers("subtract")
def lower_subtract(island: Island) -> Value:
    return _sum(island, "sub")


@ISLANDS.lowers("multiply")
def lower_multiply(island: Island) -> Value:
    """A product, or the square of a difference, as the importer spells it."""
    pair = differences(island)
    if pair is not None:
        square, ratios = squared_difference(*pair, island.output)
        return _binary(island, "squared_difference", *pair, square, ratios)
    a, b = stored(island.operand(0)), stored(island.operand(1))
    out = island.output
    m, s = bounded_multiplier(np.float64(np.float32(np.float32(a.step * b.step) / out.scale)))
    bound = a.reach * b.reach

    def value(x: Scalar, y: Scalar) -> Scalar:
        product = (x.astype("int32") - i32(a.zero_point)) * (y.astype("int32") - i32(b.zero_point))
        return te_rescale(product, m, s, bound)

    return _binary(island, "mul", a, b, value, Attributes(multiplier=m, shift=s))


@ISLANDS.lowers("nn.relu", "clip")
def lower_relu(island: Island) -> Value:
    """relu, relu6, relu_n1_to_1 and relu_0_to_1 on their own: a rescale and a clamp."""
    x = stored(island.operand(0))
    return rescaled(island, "relu", x, np.float64(np.float32(x.step / island.output.scale)))


@ISLANDS.lowers("dequantize")
def lower_requantize(island: Island) -> Value:
    """Stored integers to stored integers of another quantization."""
    found = island.reader.dequantized(island.core)
    if found is None:
        raise NotLowered("its input's quantization is not constant")
    return requantized(island, found)


def _sum(island: Island, kind: str) -> Value:
    a, b = stored(island.operand(0)), stored(island.operand(1))
    out = island.output
    high = 1 << _HEAD_ROOM[out.dtype]
    twice = np.float64(np.float32(2) * max(a.step, b.step))
    (ma, sa), (mb, sb) = (bounded_multiplier(np.float64(q.step) / twice) for q in (a, b))
    mo, so = bounded_multiplier(twice / np.float64(np.float32(high) * out.scale))

    def value(x: Scalar, y: Scalar) -> Scalar:
        left = te_rescale((x.astype("int32") - i32(a.zero_point)) * i32(high), ma, sa, a.reach * high)
        right = te_rescale((y.astype("int32") - i32(b.zero_point)) * i32(high), mb, sb, b.reach * high)
        total = left + right if kind == "add" else left - right
        return te_rescale(total, mo, so, (a.reach + b.reach) * high // 2 + 2)

    ratios = Attributes(head_room=_HEAD_ROOM[out.dtype], multipliers=(ma, mb, mo), shifts=(sa, sb, so))
    return _binary(island, kind, a, b, value, ratios)


def _binary(
    island: Island,
    kind: str,
    a: Quantized,
    b: Quantized,
    value: Callable[[Scalar, Scalar], Scalar],
    ratios: Attributes,
) -> Value:
    """Emits an operator on two stored tensors, broadcast; a constant one moves behind the activation."""
    out = island.output
    swapped = a.constant is not None
    if swapped and b.constant is not None:
        raise NotLowered("both operands are constant")

    def compute(p: Tensor, q: Tensor) -> Tensor:
        x, y = (q, p) if swapped else (p, q)

        def at(*index: Index) -> Scalar:
            scaled = value(te_broadcast(x, index), te_broadcast(y, index))
            return te_clamp(scaled + i32(out.zero_point), out.lo, out.hi, out.dtype)

        return te.compute(out.shape, at, name=kind)

    constants = [c for c in (a.constant, b.constant) if c is not None]
    activations = [q.value for q in (a, b) if q.constant is None]
    return island.emitter.call(
        kind,
        compute,
        activations,
        constants,
        replace(
            ratios,
            input_zero_points=(a.zero_point, b.zero_point),
            output_zero_point=out.zero_point,
            clamp=(out.lo, out.hi),
            constant_first=swapped,
        ),
    )
