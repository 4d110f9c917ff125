"""Lower max and min, as reductions and elementwise, arg max and arg min, and the product over axes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from tvm_cascade.passes.integer.emitter import Operand
from tvm_cascade.passes.integer.fixed_point import (
    INT32_MAX,
    i32,
    i64,
    once_rounded,
    quantize_multiplier,
    te_broadcast,
    te_rescale_once,
)
from tvm_cascade.passes.integer.pooling import reduced_axes, te_reduced
from tvm_cascade.passes.integer.requantize import from_own_scale, in_output_scale, in_scale_of
from tvm_cascade.passes.integer.task import ANY, Task, lowers, stored_like
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx
from tvm_cascade.program.operator import Quantized, computed
from tvm_cascade.program.quant import STORED_TYPES, NotLowered

_MOST_SHIFT = 7  # to the left, of a multiplier of 64-bit numbers


@lowers("max", "min")
def lower_reduce(task: Task) -> Value:
    """Reduce max or min; for a real operator the result is requantized if the scales differ."""
    x = task.operator.quantized(0)
    if not task.output.same_as(x) and task.real:
        own = in_scale_of(task, x)
        return from_own_scale(task, own.output, _reduced(own, x))
    return _reduced(task, _comparable(task))


def _reduced(task: Task, x: Quantized) -> Value:
    kind, reduce = ("reduce_max", te.max) if task.operator.kind == "max" else ("reduce_min", te.min)

    def compute(a: Tensor) -> Tensor:
        acc = te_reduced(task, a, reduce, lambda element: element, f"{kind}_acc")
        return te.compute(task.output.shape, lambda *i: task.output.bounded(acc[i]), name=kind)

    return task.emitter.call(kind, compute, [x.source], axes=tuple(reduced_axes(task.operator)))


@lowers("maximum", "minimum")
def lower_compare(task: Task) -> Value:
    """Lower an elementwise maximum or minimum, broadcast; for real operators both operands are requantized to the
    output first. The reference compares and copies stored values, regardless of scales.
    """
    if task.real:
        return _extreme(task, [_real_operand(task, k) for k in range(2)])
    operands = [stored_like(task.operator.quantized(k), task.output) for k in range(2)]
    if any(x.dtype != task.output.dtype for x in operands):
        raise NotLowered("operands and output of different types")
    return _extreme(task, [x.operand for x in operands])


def _real_operand(task: Task, index: int) -> Operand:
    """Return an operand requantized to the output; nested maxima and minima (ONNX's Max over several tensors) are
    lowered first.
    """
    inner = computed(task.operator.operands[index], "maximum", "minimum")
    if inner is None:
        return in_output_scale(task, index)
    out = task.output
    return lower_compare(task.writing(out.like(out, inner.output.shape, out.scale), inner))


def _extreme(task: Task, parts: list[Operand]) -> Value:
    kind = task.operator.kind
    choose = tirx.max if kind == "maximum" else tirx.min
    return task.elementwise(
        kind,
        lambda index, p, q: task.output.bounded(choose(te_broadcast(p, index), te_broadcast(q, index))),
        sorted(parts, key=lambda part: isinstance(part, np.ndarray)),
    )


@lowers("prod")
def lower_product(task: Task) -> Value:
    """Lower a product over axes: int32, in row-major order; every multiplication, and then the result, is scaled by
    `MBQM64(s / s_out^(1/n))` for n elements, and so rounded.
    """
    x = task.operator.quantized(0)
    if task.real:
        raise NotLowered("a product of real numbers, which the reference's steps would round n times")
    count = prod(x.shape[a] for a in reduced_axes(task.operator))
    m, s = quantize_multiplier(float(np.float64(x.step) / np.float64(task.output.scale) ** (1 / count)))
    if s > _MOST_SHIFT:
        raise NotLowered("a product whose multiplier exceeds its range")
    factor, empty = i32(int(once_rounded(np.int32(m)))), i32(INT32_MAX)  # TVM takes no number for the least int32

    def scaled(value: Scalar) -> Scalar:
        return te_rescale_once(value, factor, i32(s))

    def times(total: Scalar, element: Scalar) -> Scalar:
        product = scaled(total.astype("int64") * element.astype("int64"))
        return tirx.Select(total.equal(empty), element, product)

    multiply = te.comm_reducer(times, lambda _dtype: empty, name="product")  # of the axes' order, which stays

    def compute(a: Tensor) -> Tensor:
        acc = te_reduced(task, a, multiply, x.centred, "reduce_prod_acc")
        return te.compute(
            task.output.shape, lambda *i: task.output.stored(scaled(acc[i].astype("int64"))), name="reduce_prod"
        )

    return task.emitter.call("reduce_prod", compute, [x.source], axes=tuple(reduced_axes(task.operator)))


@lowers("argmax", "argmin", results=ANY)
def lower_arg(task: Task) -> Value:
    """Lower arg max or min along one axis, the first index in a tie: compute the extreme, then the first index with
    that value.

    Among floats a NaN is the extreme, like in PyTorch and NumPy.
    """
    data = task.operator.value(0)
    if data.dtype not in (*STORED_TYPES, "int32", "float32") or task.attributes["axis"] is None:
        raise NotLowered(f"an arg max of {data.dtype}, or over all axes")
    largest = task.operator.kind == "argmax"
    kind, reduce = ("arg_max", te.max) if largest else ("arg_min", te.min)
    is_float, shape = data.dtype == "float32", data.shape
    if is_float:
        reduce = te.comm_reducer(
            lambda a, b: tirx.Select(tirx.any(a >= b if largest else a <= b, tirx.isnan(a)), a, b),
            lambda dtype: tirx.const(float("-inf") if largest else float("inf"), dtype),
        )

    def is_best(element: Scalar, best: Scalar) -> Scalar:
        return tirx.any(element.equal(best), tirx.isnan(element)) if is_float else element.equal(best)

    axis, keepdims = task.attributes["axis"] % len(shape), bool(task.attributes["keepdims"])
    extent, dtype = shape[axis], task.output.dtype

    def indices(index: tuple[Index, ...], at: Index) -> tuple[Index, ...]:
        return (*index[:axis], at, *index[axis + (1 if keepdims else 0) :])

    def compute(a: Tensor) -> Tensor:
        rv, ri = te.reduce_axis((0, extent), "rv"), te.reduce_axis((0, extent), "ri")
        best = te.compute(task.output.shape, lambda *i: reduce(a[indices(i, rv)], axis=[rv]), name=f"{kind}_best_acc")
        first = te.compute(
            task.output.shape,
            lambda *i: te.min(
                tirx.Select(is_best(a[indices(i, ri)], best[i]), ri.var.astype("int32"), i32(extent - 1)), axis=[ri]
            ),
            name=f"{kind}_acc",
        )
        return te.compute(task.output.shape, lambda *i: first[i].astype(dtype), name=kind)

    return task.emitter.call(kind, compute, [data.source], axis=axis)


@dataclass(frozen=True, slots=True)
class IntegerMean:
    """TE for an int32 mean over `axes`, kept with extent 1: a 64-bit sum, divided toward zero."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    def __call__(self, a: Tensor) -> Tensor:
        over = {axis: te.reduce_axis((0, self.shape[axis]), f"r{axis}") for axis in self.axes}
        made = [1 if axis in over else extent for axis, extent in enumerate(self.shape)]
        count = i64(prod(self.shape[axis] for axis in self.axes))

        def total(*index: Index) -> Scalar:
            places = tuple(over.get(axis, i) for axis, i in enumerate(index))
            return te.sum(a[places].astype("int64"), axis=list(over.values()))

        acc = te.compute(made, total, name="mean_acc")
        return te.compute(made, lambda *i: tirx.truncdiv(acc[i], count).astype("int32"), name="mean")


def _comparable(task: Task) -> Quantized:
    """Return the operand; raises `NotLowered` unless it has the output's quantization, which makes stored values
    comparable.
    """
    x = task.operator.quantized(0)
    if not task.output.same_as(x):
        raise NotLowered("operands and output of unequal scales")
    return x
