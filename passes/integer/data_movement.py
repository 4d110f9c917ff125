"""Lowering of concat, pad, transpose, strided slice and split. They copy stored values; concats and pads may requantize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import cast

import numpy as np

from tvm_cascade.passes.integer.convolution import pad_value
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import shape_of
from tvm_cascade.passes.integer.fixed_point import i32, range_of, rounded
from tvm_cascade.passes.integer.gathering import lower_moving_pad
from tvm_cascade.passes.integer.requantize import of_other_scale, stored_numbers
from tvm_cascade.passes.integer.task import STORED, Output, Task, lowers, stored_like
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx
from tvm_cascade.passes.islands.reader import VIEWS
from tvm_cascade.program.operator import Operator, Quantized, quantized
from tvm_cascade.program.quant import NotLowered


@lowers("concat")
def lower_concat(task: Task) -> Value:
    """Lower a concat. Inputs in the output's quantization are copied. Other uint8 inputs are rescaled by 256-entry
    tables, in the reference's float32 arithmetic (attribute `table_of_input`: table by input, -1 for none). The
    reference has no int8 or int16 rescale; there every input is requantized first.
    """
    fields = task.operator.operands[0]
    parts = [quantized(f) for f in fields] if isinstance(fields, tuple) else [None]
    stored = [p for p in parts if p is not None]
    if len(stored) != len(parts):
        raise NotLowered("an input of it is not dequantized from integers")
    out = task.output
    axis = task.attributes["axis"] % len(out.shape)
    types = {out.declared, *(p.declared for p in stored)}
    if out.whole and len(types) == 1 and any(p.constant is not None for p in stored):
        return _concat_with_constants(task, stored, axis)
    if out.whole and types == {"uint8"}:
        return _tabulated_concat(task, stored, axis)
    outputs = [replace(out, shape=part.shape) for part in stored]
    values = [of_other_scale(task.writing(output), part) for part, output in zip(stored, outputs, strict=True)]
    return _copied(task, values, axis)


def _tabulated_concat(task: Task, stored: Sequence[Quantized], axis: int) -> Value:
    tables = [_concat_table(p, task.output) for p in stored]
    used = [t for t in tables if t is not None]
    counts = list(accumulate((t is not None for t in tables), initial=0))
    which = [-1 if t is None else number for t, number in zip(tables, counts, strict=False)]
    return _copied(task, [p.source for p in stored], axis, used, which)


def _concat_with_constants(task: Task, parts: Sequence[Quantized], axis: int) -> Value:
    """Lower a concat with constants, rescaled at compile time; a separate kind, as constants follow activations in the
    parameters.
    """
    parts = [stored_like(p, task.output) for p in parts]
    tables = [_concat_table(p, task.output) for p in parts]
    if any(t is not None and p.constant is None for p, t in zip(parts, tables, strict=True)):
        raise NotLowered("a concatenation of constants and tensors of unequal scales")
    operands = [
        p.operand if t is None or p.constant is None else t[p.constant.astype("int64") - range_of(p.dtype)[0]]
        for p, t in zip(parts, tables, strict=True)
    ]

    def compute(*given: Tensor) -> Tensor:
        return _te_concat(given, (), [-1] * len(parts), axis, task.output.shape)

    return task.emitter.call("concat_constants", compute, operands, axis=axis)


@lowers("concat", results=STORED)
def lower_stored_concat(task: Task) -> Value:
    """Lower a concat of stored values without rescaling."""
    fields = task.operator.operands[0]
    if not isinstance(fields, tuple):
        raise NotLowered("a concatenation of a tuple from elsewhere")
    values = [f.output.source if isinstance(f, Operator) else f.source for f in fields]  # type: ignore[union-attr]
    return _copied(task, values, task.attributes["axis"] % len(task.output.shape))


def _copied(
    task: Task, values: Sequence[Value], axis: int, tables: Sequence[np.ndarray] = (), which: Sequence[int] = ()
) -> Value:
    """Emits a concat: value `k` goes through `tables[which[k]]`, or is copied if that is -1 or `which` is empty."""
    which = which or [-1] * len(values)

    def compute(*args: Tensor) -> Tensor:
        return _te_concat(args[: len(values)], args[len(values) :], which, axis, task.output.shape)

    return task.emitter.call("concat", compute, [*values, *tables], axis=axis, table_of_input=tuple(which))


@lowers("pad", results=STORED)
def lower_pad(task: Task) -> Value:
    """Pad stored values by a constant; `lower_moving_pad` pads by elements."""
    if task.attributes["pad_mode"] != "constant":
        return lower_moving_pad(task)
    return _padded(task, task.source(0), pad_value(task.operator) - task.output.offset)


@lowers("pad")
def lower_pad_island(task: Task) -> Value:
    """Pad by a real constant: requantize the input to the output first."""
    x, out = quantized(task.operator.operands[0]), task.output
    if task.attributes["pad_mode"] != "constant" or x is None:
        raise NotLowered("padding of a tensor that is not dequantized from integers")
    inner = replace(out, shape=x.shape)
    value = of_other_scale(task.writing(inner), x)
    number = np.array([float(task.attributes["pad_value"])], "float32")
    return _padded(task, value, int(stored_numbers(number, out)[0]))


def _padded(task: Task, source: Value, fill: int) -> Value:
    """Pad `source` (in the old or the new function) with the stored value `fill`."""
    shape, widths = shape_of(source), task.attributes["pad_width"]
    before, after = widths[::2], widths[1::2]
    if min(widths, default=0) < 0:
        raise NotLowered("a negative padding")

    def element(index: tuple[Index, ...], a: Tensor) -> Scalar:
        inside = [i >= b for i, b in zip(index, before, strict=True) if b]
        inside += [i < b + d for i, b, d, e in zip(index, before, shape, after, strict=True) if e]
        value = a[tuple(i - b for i, b in zip(index, before, strict=True))]
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(fill, a.dtype)) if inside else value

    return task.elementwise("pad", element, [source], pad_width=widths, value=fill)


@lowers("permute_dims", results=STORED)
def lower_transpose(task: Task) -> Value:
    """Lower a transpose, which moves stored values unchanged."""
    return transposed(task.emitter, task.source(0), transpose_axes(task.operator))


@lowers(*VIEWS, results=STORED)
def lower_view(task: Task) -> Value:
    """Lower a view of stored values."""
    return task.emitter.reshape(task.emitter.new(task.source(0)), task.output.shape)


def transpose_axes(operator: Operator) -> list[int]:
    """Return a transpose's permutation, nonnegative: output axis k is input axis `axes[k]`."""
    rank, axes = len(operator.value(0).shape), operator.attributes["axes"]
    return [a % rank for a in axes] if axes is not None else list(reversed(range(rank)))


def transposed(emitter: Emitter, source: Value, axes: Sequence[int]) -> Value:
    """Transpose a stored tensor (in the old or the new function): output axis k is input axis `axes[k]`."""
    shape = shape_of(source)

    def compute(a: Tensor) -> Tensor:
        def at(*index: Index) -> Scalar:
            position = dict(zip(axes, index, strict=True))
            return a[tuple(position[k] for k in range(len(shape)))]

        return te.compute([shape[k] for k in axes], at, name="transpose")

    return emitter.call("transpose", compute, [source], axes=tuple(axes))


@lowers("strided_slice", results=STORED)
def lower_strided_slice(task: Task) -> Value:
    """Lower a strided slice along any axes, possibly negative."""
    x, (axes, begins, _, *rest) = task.operator.value(0), cast("Sequence[Sequence[int]]", task.operator.operands[1:])
    shape, strides = x.shape, rest[0] if rest else [1] * len(axes)
    begin, stride = [0] * len(shape), [1] * len(shape)
    for axis, b, s in zip(axes, begins, strides, strict=True):
        at, extent = axis % len(shape), shape[axis % len(shape)]
        stride[at] = s
        begin[at] = min(max(b + extent if b < 0 else b, 0), extent - 1)
    return slice_of(task, x.source, begin, stride)


def slice_of(task: Task, source: Value, begin: Sequence[int], stride: Sequence[int]) -> Value:
    """Emits the strided slice `source[begin + i * stride]` for every index i of the task's output shape."""
    return task.elementwise(
        "strided_slice",
        lambda index, a: a[tuple(i * s + b for i, b, s in zip(index, begin, stride, strict=True))],
        [source],
        begin=tuple(begin),
        strides=tuple(stride),
    )


@lowers("split_part", results=STORED)
def lower_split_part(task: Task) -> Value:
    """Lower a single part of a split as a slice, because every operator has a single output."""
    source, attrs = task.operator.value(0), task.attributes
    shape, sections, index = source.shape, attrs["indices_or_sections"], attrs["index"]
    axis = attrs["axis"] % len(shape)
    start = -(-shape[axis] // sections) * index if isinstance(sections, int) else (0, *sections)[index]
    begin = [start if k == axis else 0 for k in range(len(shape))]
    return slice_of(task, source.source, begin, [1] * len(shape))


def _concat_table(part: Quantized, out: Output) -> np.ndarray | None:
    """Return the table `clamp(rha(x k + b) + zo)` for all stored uint8 x, ascending, computed in float32 from the
    file's values; None for an unchanged copy.
    """
    if out.same_as(part):
        return None
    if (part.declared, out.declared) != ("uint8", "uint8"):
        raise NotLowered("a concatenation of constants with unequal scales")
    k = part.step * (np.float32(1) / out.scale)
    b = np.float32(-part.zero_point - part.offset) * k
    x = (np.arange(256, dtype="float32") * k + b).astype("float32")
    return np.clip(rounded(x).astype("int64") + out.zero_point, *range_of(out.dtype)).astype(out.dtype)


def _te_concat(
    parts: Sequence[Tensor], tables: Sequence[Tensor], which: Sequence[int], axis: int, shape: Sequence[int]
) -> Tensor:
    ends = list(accumulate(int(p.shape[axis]) for p in parts))

    def at(*index: Index) -> Scalar:
        chosen: Scalar | None = None
        for k in reversed(range(len(parts))):
            start = ends[k] - int(parts[k].shape[axis])
            own = tuple(i - start if d == axis else i for d, i in enumerate(index))
            value = parts[k][own]
            if which[k] >= 0:
                value = tables[which[k]][value.astype("int32") - i32(range_of(str(value.dtype))[0])]
            chosen = value if chosen is None else tirx.if_then_else(index[axis] < i32(ends[k]), value, chosen)
        assert chosen is not None
        return chosen

    return te.compute(shape, at, name="concat")
