"""Lower comparisons of stored integers, and operators on the results: select, and booleans cast to numbers.

The reference compares `MBQM((x - z) << 8)` on both sides, with the scales as multipliers: below scale 1/256
neighbouring values compare equal. For int16 it orders the stored values regardless of quantization. Comparisons on real
numbers (`Task.real`) compare dequantized floats, or stored values under equal quantization.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_cascade.passes.integer.emitter import Operand
from tvm_cascade.passes.integer.fixed_point import i32, quantize_multiplier, te_broadcast, te_rescale
from tvm_cascade.passes.integer.requantize import in_output_scale, stored_numbers
from tvm_cascade.passes.integer.task import STORED, Task, lowers, stored_like
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, tirx
from tvm_cascade.program.operator import Quantized
from tvm_cascade.program.quant import STORED_TYPES, NotLowered

_HEAD_ROOM = 8  # bits that both sides are shifted up by
_TESTS = {
    "equal": lambda x, y: x.equal(y),
    "not_equal": lambda x, y: tirx.NE(x, y),
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
}


@lowers(*_TESTS, results="bool")
def lower_test(task: Task) -> Value:
    """Lower a comparison of two stored activations, with a boolean output."""
    a, b = task.operator.quantized(0), task.operator.quantized(1)
    kind = task.operator.kind
    a, b = stored_like(a, b), stored_like(b, a)
    if a.dtype not in STORED_TYPES or a.dtype != b.dtype or (a.constant is not None and b.constant is not None):
        raise NotLowered("a comparison of other than stored activations of one type")
    same = a.step == b.step and a.zero_point == b.zero_point
    ordered = a.dtype == "int16" and kind not in ("equal", "not_equal")
    if ordered and not same and not task.real:
        raise NotLowered("an order of int16 of unequal scales or zero points, which the reference ignores")
    raw = same if task.real else ordered

    def side(q: Quantized, value: Scalar) -> Scalar:
        if raw:
            return value.astype("int32")
        if task.real:
            return q.centred(value).astype("float32") * tirx.const(float(q.step), "float32")
        if q.step >= 1:
            raise NotLowered("a comparison of a scale of 1 or more, which the reference gets wrong")
        shifted = q.centred(value) * i32(1 << _HEAD_ROOM)
        return te_rescale(shifted, *quantize_multiplier(float(q.step)), q.reach << _HEAD_ROOM)

    def element(index: tuple[Index, ...], x: Tensor, y: Tensor) -> Scalar:
        return _TESTS[kind](side(a, te_broadcast(x, index)), side(b, te_broadcast(y, index)))

    return task.elementwise(kind, element, [a.operand, b.operand])


@lowers("where", results=STORED)
def lower_choice(task: Task) -> Value:
    """Select between stored values without requantization: the reference ignores scales."""
    return _choice(task, [_plain(task, k) for k in range(3)])


@lowers("where")
def lower_real_choice(task: Task) -> Value:
    """Select after requantizing both sides to the output."""
    return _choice(task, [_plain(task, 0), *(in_output_scale(task, k) for k in (1, 2))])


def _plain(task: Task, index: int) -> Operand:
    operand = task.operator.value(index)
    data = operand.constant
    if data is not None and data.dtype == np.uint8 and task.output.offset:
        data = (data.astype("int16") - task.output.offset).astype("int8")
    return operand.source if data is None else data


def _choice(task: Task, parts: Sequence[Operand]) -> Value:
    out = task.output

    def element(index: tuple[Index, ...], *given: Tensor) -> Scalar:
        condition, chosen, other = (te_broadcast(x, index) for x in given)
        return out.bounded(tirx.Select(condition.astype("bool"), chosen, other))

    return task.elementwise("select", element, parts)


@lowers("astype")
def lower_number(task: Task) -> Value:
    """Cast of booleans to 0 and 1, quantized."""
    data = task.operator.value(0)
    if data.dtype != "bool":
        raise NotLowered(f"a number made of {data.dtype}")
    no, yes = (int(v) for v in stored_numbers(np.array([0, 1], "float32"), task.output))

    def element(index: tuple[Index, ...], a: Tensor) -> Scalar:
        return tirx.Select(a[index].astype("bool"), i32(yes), i32(no)).astype(task.output.dtype)

    return task.elementwise("number", element, [data.source])
