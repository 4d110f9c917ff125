"""Quantize, dequantize and requantize like TFLite's reference.

ONNX and PyTorch operators whose results are operand elements (select, maximum, minimum) may have different scales.
Quantizing is monotone, so `quantize(max(a, b))` is `max(quantize(a), quantize(b))`: operands are requantized to the
output's scale first (`in_output_scale`), reduction results afterwards (`in_scale_of`). TFLite refuses such files, or
ignores the scales; these helpers serve only real operators (`Task.real`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_cascade.passes.integer.emitter import Emitter, Operand
from tvm_cascade.passes.integer.expressions import dtype_of, shape_of
from tvm_cascade.passes.integer.fixed_point import i32, range_of, te_rescale
from tvm_cascade.passes.integer.task import Output, Task, bounded_multiplier, in_quantization_of, lowers
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx
from tvm_cascade.program.operator import Quantized, constant, quantized
from tvm_cascade.program.quant import STORED_TYPES, NotLowered, positive


def lower_quantize(task: Task) -> Value:
    """Quantize float32 numbers: `clamp(round(x / s) + z)` in float32, halves to even or away from zero (`Output.once`),
    or by a product with the inverse of `s` (`Output.inverse`).
    """
    output, scale = task.output, task.output.scale

    def compute(a: Tensor) -> Tensor:
        def at(*index: Index) -> Scalar:
            if output.inverse is not None:
                return te_quantized(a[index] * tirx.const(float(output.inverse), "float32"), output)
            return te_quantized(a[index] / tirx.const(float(scale), "float32"), output)

        return te.compute(output.shape, at, name="quantize")

    return task.emitter.call("quantize", compute, [task.operator.output.source], **output.described)


def te_quantized(quotient: Scalar, output: Output) -> Scalar:
    """Round a float32 in units of the scale to its stored form, to even or away from zero at halves (`Output.once`).

    NaN becomes the least, as ONNX Runtime's does.
    """
    # beyond these bounds the result saturates anyway, and the cast to int32 might overflow
    high, low = (tirx.const(sign * (1 << 20), "float32") for sign in (1, -1))
    bounded = tirx.Select(quotient > low, tirx.min(quotient, high), low)
    if output.once:
        return output.stored(_half_to_even(bounded))
    whole, half = tirx.trunc(bounded), tirx.const(0.5, "float32")
    up = tirx.Select(bounded - whole >= half, i32(1), i32(0))
    down = tirx.Select(bounded - whole <= -half, i32(1), i32(0))
    return output.stored(whole.astype("int32") + up - down)


def _half_to_even(value: Scalar) -> Scalar:
    """Return the nearest int32 to a float32 below 2^22 in magnitude: adding 1.5 * 2^23 leaves no fraction bits."""
    bits = tirx.reinterpret("int32", value + tirx.const(3 << 22, "float32"))
    return bits - i32(_BITS_OF_SHIFTER)


def lower_dequantize(x: Quantized, emitter: Emitter) -> Value:
    """Dequantize stored integers to float32: `s * (x - z)`."""

    def compute(a: Tensor) -> Tensor:
        def at(*index: Index) -> Scalar:
            return x.centred(a[index]).astype("float32") * tirx.const(float(x.step), "float32")

        return te.compute(x.shape, at, name="dequantize")

    return emitter.call("dequantize", compute, [x.source], input_zero_point=x.zero_point)


def lower_sign(source: Value, emitter: Emitter) -> Value:
    """Store uint8 as int8, 128 less, or back; `source` is a new value."""
    signed = dtype_of(source) == "int8"

    def compute(a: Tensor) -> Tensor:
        def at(*index: Index) -> Scalar:
            value = a[index].astype("int32")
            return (value + i32(128)).astype("uint8") if signed else (value - i32(128)).astype("int8")

        return te.compute(shape_of(source), at, name="sign")

    return emitter.call("sign", compute, [source])


def stored_numbers(values: np.ndarray, out: Output) -> np.ndarray:
    """Compute `clamp(round(x / s) + z)` on a float32 array, like `lower_quantize`; NaN becomes the least."""
    with np.errstate(all="ignore"):
        quotients = values / out.scale
    bounded = np.clip(np.nan_to_num(quotients, nan=-np.inf), -(1 << 20), 1 << 20)
    return np.clip(out.rounded(bounded).astype("int64") + out.zero_point, out.lo, out.hi)


@lowers("requantize")
def lower_requantize(task: Task) -> Value:
    """Lower stored integers to another quantization. Two operators of a file compute in floats instead."""
    return of_other_scale(task, task.operator.quantized(0))


def of_other_scale(task: Task, source: Quantized) -> Value:
    """Requantize an operand to the task's output. Raises `NotLowered` where the file computes its real numbers."""
    if source.explicit:
        raise NotLowered("real numbers that the file computes, and quantizes")
    return requantized(task, source)


def requantized(task: Task, source: Quantized) -> Value:
    """Requantize a stored tensor (in the old or the new function) to the task's output."""
    x, out = stored(source), task.output
    if out.same_as(x) and out.whole:
        return task.emitter.new(x.source)
    return rescaled(task, "requantize", x, np.float64(x.step) / np.float64(out.scale))


def from_own_scale(task: Task, own: Output, value: Value) -> Value:
    """Requantize `value`, in a reference kernel's fixed quantization `own`, to the task's output."""
    return requantized(task, in_quantization_of(own, value))


def rescaled(task: Task, kind: str, x: Quantized, ratio: np.float64) -> Value:
    """Compute `clamp(MBQM(x - z) + z_out)` with the multiplier for `ratio`, or rounded once (`Output.once`)."""
    if x.constant is not None:
        raise NotLowered("its input is constant")
    out = task.output
    m, s = bounded_multiplier(ratio)
    return task.elementwise(
        kind,
        _Rescaled(x.zero_point, x.reach, m, s, out),
        [x.operand],
        input_zero_point=x.zero_point,
        multiplier=m,
        shift=s,
        **out.described,
    )


_BITS_OF_SHIFTER = 0x4B400000  # of 1.5 * 2^23 in float32


@dataclass(frozen=True, slots=True)
class _Rescaled:
    """Output elements from a tensor with the same shape."""

    zero_point: int
    reach: int
    multiplier: int
    shift: int
    output: Output

    def __call__(self, index: tuple[Index, ...], x: Tensor) -> Scalar:
        centred = x[index].astype("int32") - i32(self.zero_point)
        return self.output.stored(self.output.rescaled(centred, self.multiplier, self.shift, self.reach))


def requantized_wide(emitter: Emitter, x: Value, scale: np.float32, zero_point: int, out: Output) -> Value:
    """Compute `clamp(MBQM(x - z) + z_out)` on stored integers `x` up to 32 bits; all sums wrap in 32 bits, like the
    reference's.
    """
    m, s = bounded_multiplier(np.float64(positive(scale)) / np.float64(positive(out.scale)))
    bound = -range_of(dtype_of(x))[0] + abs(zero_point) + range_of(dtype_of(x))[1]

    def compute(a: Tensor) -> Tensor:
        def at(*index: Index) -> Scalar:
            return out.stored(te_rescale(a[index].astype("int32") - i32(zero_point), m, s, bound))

        return te.compute(out.shape, at, name="requantize")

    return emitter.call("requantize_wide", compute, [x])


def stored(x: Quantized) -> Quantized:
    """Return `x`; raises `NotLowered` unless its type is in `STORED_TYPES`."""
    if x.dtype not in STORED_TYPES:
        raise NotLowered(f"an operand of type {x.dtype}")
    return x


def in_output_scale(task: Task, index: int) -> Operand:
    """Return an operand requantized to the task's output.

    Raises
    ------
    NotLowered
        If the operand is neither a float constant nor dequantized from integers.
    """
    given, out = task.operator.operands[index], task.output
    data, operand = constant(given), quantized(given)
    if operand is not None and operand.constant is not None and operand.scale.size == 1:
        data = (operand.constant.astype("int64") - operand.zero_point).astype("float32") * operand.step
    if data is not None and data.dtype == np.float32:
        return stored_numbers(data.reshape(-1), out).reshape(data.shape).astype(out.dtype)
    if operand is None or operand.constant is not None:
        raise NotLowered(f"an operand of {task.operator.kind} is not dequantized from integers")
    return of_other_scale(task.writing(out.like(out, operand.shape, out.scale)), operand)


def in_scale_of(task: Task, x: Quantized) -> Task:
    """Return the task with an output in the quantization of its operand `x`, in the same shape."""
    return task.writing(task.output.like(x, task.output.shape, x.step))
