"""Lower prelu: a single multiplier for positive values; another, times the stored slope, for negative values."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tvm_cascade.passes.integer.channel_scaling import rescaled_channel
from tvm_cascade.passes.integer.fixed_point import i32, te_broadcast
from tvm_cascade.passes.integer.task import Task, bounded_multiplier, lowers
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, tirx
from tvm_cascade.program.operator import Quantized, computed, constant, quantized
from tvm_cascade.program.quant import STORED_TYPES, NotLowered

_HEAD_ROOM = 8  # left shift of values before they are rescaled by float slopes


@lowers("prelu")
def lower_prelu(task: Task) -> Value:
    """Lower a prelu with one slope per channel, or one for all, or (axis None) slopes that broadcast to the tensor; readers
    reshape slopes to a vector."""
    given = task.operator.operands[1]
    view, real = computed(given, "reshape"), constant(given)
    slopes = quantized(given if view is None else view.operands[0])
    if task.attributes["axis"] is None:
        x = quantized(task.operator.operands[0])
        if x is None or slopes is None:
            raise NotLowered("slopes that are no integers")
        return _sloped(task, x, slopes, slopes.operand, None)
    axis = task.attributes["axis"] % len(task.output.shape)
    if slopes is None and real is not None and task.real:
        return _by_floats(task, task.operator.quantized(0), real.reshape(-1).astype("float64"), axis)
    if slopes is None:
        raise NotLowered("slopes that are no integers")
    if slopes.constant is None:
        if axis != len(task.output.shape) - 1 or prod(slopes.shape) != slopes.shape[-1]:
            raise NotLowered("slopes that are not constant, nor on the last axis")
        return _sloped(task, task.operator.quantized(0), slopes, slopes.operand, None)
    data = slopes.constant.reshape(-1)
    if data.size not in (1, task.output.shape[axis]):
        raise NotLowered(f"{data.size} slopes for {task.output.shape[axis]} channels")
    return _sloped(task, task.operator.quantized(0), slopes, data, axis if data.size > 1 else None)


def _by_floats(task: Task, x: Quantized, slopes: np.ndarray, axis: int) -> Value:
    """Lower prelu with float slopes: each becomes a multiplier, applied to `(x - z) << _HEAD_ROOM`."""
    out = task.output
    if x.dtype not in STORED_TYPES or x.constant is not None or slopes.size not in (1, out.shape[axis]):
        raise NotLowered(f"a prelu of {x.dtype} with {slopes.size} slopes")
    ratio, bound = np.float64(x.step) / np.float64(out.scale) / (1 << _HEAD_ROOM), x.reach << _HEAD_ROOM
    above = bounded_multiplier(ratio)
    pairs = [bounded_multiplier(ratio * slope) for slope in slopes]
    m, s = (np.array(numbers, "int32") for numbers in zip(*pairs, strict=True))

    def element(index: tuple[Index, ...], a: Tensor, multipliers: Tensor, shifts: Tensor) -> Scalar:
        d = x.centred(a[index]) * i32(1 << _HEAD_ROOM)
        channel = index[axis] if slopes.size > 1 else i32(0)
        below = rescaled_channel(out, d, multipliers[channel], shifts[channel], (m, s), bound)
        return out.stored(tirx.Select(d >= i32(0), out.rescaled(d, *above, bound), below))

    return task.elementwise("scaled_prelu", element, [x.operand, m, s], "prelu")


def _sloped(task: Task, x: Quantized, slopes: Quantized, data: Any, axis: int | None) -> Value:
    """Emit a prelu with quantized slopes `data`, constant or computed, along `axis`, or broadcast if that is None."""
    out = task.output
    if x.dtype not in STORED_TYPES or slopes.dtype not in STORED_TYPES or x.constant is not None:
        raise NotLowered(f"a prelu of {x.dtype} with slopes of {slopes.dtype}")
    if x.shape != out.shape:
        raise NotLowered("slopes of a higher rank than their tensor")
    if x.dtype == "int16" and slopes.dtype != "int8":
        raise NotLowered(f"a prelu of int16 with slopes of {slopes.dtype}, which the reference reads as bytes")
    above = bounded_multiplier(np.float64(np.float32(x.step / out.scale)))
    below = bounded_multiplier(np.float64(np.float32(np.float32(x.step * slopes.step) / out.scale)))

    def element(index: tuple[Index, ...], a: Tensor, alpha: Tensor) -> Scalar:
        d = x.centred(a[index])
        slope = slopes.centred(te_broadcast(alpha, index) if axis is None else alpha[index[axis]])
        scaled = out.rescaled(d * slope, *below, x.reach * slopes.reach)
        return out.stored(tirx.Select(d >= i32(0), out.rescaled(d, *above, x.reach), scaled))

    return task.elementwise(
        "prelu",
        element,
        [x.operand, data],
        input_zero_point=x.zero_point,
        slope_zero_point=slopes.zero_point,
        output_zero_point=out.zero_point,
        multipliers=(above[0], below[0]),
        shifts=(above[1], below[1]),
    )
