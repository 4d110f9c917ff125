"""Lower add, sub, mul (broadcasting), sums of several tensors and the relu family.

Multipliers follow the reference: add and sub in double from `t = 2 max(s1, s2)` with 20 bits of head room (15 for
int16), mul and relu by a float32 ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_cascade.passes.integer import convolution, dense
from tvm_cascade.passes.integer.channel_scaling import stored_bias
from tvm_cascade.passes.integer.fixed_point import INT32_MAX, i32, te_broadcast, te_rescale
from tvm_cascade.passes.integer.requantize import rescaled, stored
from tvm_cascade.passes.integer.roots import squared_difference
from tvm_cascade.passes.integer.task import Output, Task, bounded_multiplier, lowers
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value
from tvm_cascade.program.operator import Quantized, quantized
from tvm_cascade.program.quant import NotLowered

_PRODUCTS = {
    "conv2d": convolution.lower_biased,
    "conv2d_transpose": convolution.lower_biased_transpose,
    "matmul": dense.lower_biased,
}
_HEAD_ROOM = {"int8": 20, "uint8": 20, "int16": 15}  # bits that add and sub shift their operands up by
_SUM_HEAD_ROOM = {"int8": 21, "uint8": 21, "int16": 16}  # the same for sums of n > 2, less the bits of n - 1


@lowers(*_PRODUCTS)
def lower_product(task: Task) -> Value:
    """Lower a convolution or product, with the constant bias that is added to its sums or without."""
    lower, bias = _PRODUCTS[task.operator.kind], None
    if len(task.operator.operands) > 2:
        stored = quantized(task.operator.operands[2])
        data = None if stored is None else stored.constant
        if stored is None or data is None:
            raise NotLowered("its bias is not constant")
        if stored.dtype != "int32":
            raise NotLowered(f"its bias has the type {stored.dtype}")
        bias = stored_bias(task, stored, data)
    return lower(task, bias)


@lowers("add")
def lower_add(task: Task) -> Value:
    """Lower a sum of two tensors."""
    return _sum(task, "add")


@lowers("subtract")
def lower_subtract(task: Task) -> Value:
    """Lower a difference, by the arithmetic for sums."""
    return _sum(task, "sub")


@lowers("multiply")
def lower_multiply(task: Task) -> Value:
    """Lower an element-wise product."""
    a, b = stored(task.operator.quantized(0)), stored(task.operator.quantized(1))
    out = task.output
    ratio = np.float64(np.float32(np.float32(a.step * b.step) / out.scale))
    m, s = bounded_multiplier(np.float64(a.step) * np.float64(b.step) / np.float64(out.scale) if out.once else ratio)
    bound = a.reach * b.reach

    def value(x: Scalar, y: Scalar) -> Scalar:
        return out.rescaled(a.centred(x) * b.centred(y), m, s, bound)

    return _binary(task, "mul", a, b, value, multiplier=m, shift=s)


@lowers("squared_difference")
def lower_squared_difference(task: Task) -> Value:
    """Lower a squared difference."""
    pair = task.operator.quantized(0), task.operator.quantized(1)
    square, ratios = squared_difference(*pair, task.output)
    return _binary(task, "squared_difference", *pair, square, **ratios)


@lowers("relu", "clip")
def lower_relu(task: Task) -> Value:
    """Lower relu, relu6, relu_n1_to_1 and relu_0_to_1 as separate operators: a rescale and a clamp."""
    x = stored(task.operator.quantized(0))
    ratio = np.float64(np.float32(x.step / task.output.scale))
    return rescaled(task, "relu", x, np.float64(x.step) / task.output.scale if task.output.once else ratio)


def _sum(task: Task, kind: str) -> Value:
    a, b = stored(task.operator.quantized(0)), stored(task.operator.quantized(1))
    out = task.output
    high = 1 << _HEAD_ROOM[out.dtype]
    twice = np.float64(np.float32(2) * max(a.step, b.step))
    (ma, sa), (mb, sb) = (bounded_multiplier(np.float64(q.step) / twice) for q in (a, b))
    mo, so = bounded_multiplier(twice / np.float64(np.float32(high) * out.scale))

    left, right = _Summand(a.zero_point, a.reach, ma, sa), _Summand(b.zero_point, b.reach, mb, sb)
    value = _Sum(kind, left, right, high, mo, so, out)
    return _binary(
        task, kind, a, b, value, head_room=_HEAD_ROOM[out.dtype], multipliers=(ma, mb, mo), shifts=(sa, sb, so)
    )


@dataclass(frozen=True, slots=True)
class _Summand:
    """A sum's operand, and its rescale to twice the larger scale."""

    zero_point: int
    reach: int
    multiplier: int
    shift: int

    def value(self, x: Scalar, high: int) -> Scalar:
        """Return an element, rescaled and times `high`."""
        return te_rescale(
            (x.astype("int32") - i32(self.zero_point)) * i32(high), self.multiplier, self.shift, self.reach * high
        )


@dataclass(frozen=True, slots=True)
class _Sum:
    """Sums or differences of two elements, in output-scale units."""

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
    """Output elements from two broadcast tensors."""

    value: Callable[[Scalar, Scalar], Scalar]
    output: Output

    def __call__(self, index: tuple[Index, ...], x: Tensor, y: Tensor) -> Scalar:
        return self.output.stored(self.value(te_broadcast(x, index), te_broadcast(y, index)))


def _binary(
    task: Task, kind: str, a: Quantized, b: Quantized, value: Callable[[Scalar, Scalar], Scalar], **ratios: Any
) -> Value:
    """Emits an operator on two stored tensors, broadcast. `constant_first` marks a constant `a`, passed after `b`."""
    out = task.output
    return task.elementwise(
        kind,
        _Broadcast(value, out),
        [a.operand, b.operand],
        input_zero_points=(a.zero_point, b.zero_point),
        **out.described,
        constant_first=a.constant is not None,
        **ratios,
    )


@lowers("add_n")
def lower_several(task: Task) -> Value:
    """Lower the sum of more than two tensors (ONNX's Sum), generalizing the reference's add: every summand is shifted up by the
    head room and rescaled to twice the largest scale, the total to the output's scale."""
    parts = [task.operator.quantized(k) for k in range(len(task.operator.operands))]
    out = task.output
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

    return task.elementwise("add_several", element, [p.operand for p in parts])
