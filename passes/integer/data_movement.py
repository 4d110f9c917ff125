"""Lowering of concat, pad, transpose, strided slice and split. They copy stored values; concats and pads may requantize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from tvm_cascade.passes.integer.convolution import pad_value
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import NotLowered, number_of, shape_of
from tvm_cascade.passes.integer.fixed_point import i32, range_of, rounded
from tvm_cascade.passes.integer.gathering import lower_moving_pad
from tvm_cascade.passes.integer.island import DIRECT, ISLANDS, Island, Output, Quantized
from tvm_cascade.passes.integer.requantize import lower_requantize, stored_numbers
from tvm_cascade.passes.integer.untyped import Call, Index, Scalar, Tensor, Value, te, tirx


@ISLANDS.lowers("concat")
def lower_concat(island: Island) -> Value:
    """Concat. Inputs of the output's quantization are copied. Other uint8 inputs are rescaled by tables of 256 entries, from
    the reference's float32 arithmetic (attribute `table_of_input`: table by input, -1 for none); for int8 and int16, where
    the reference has no rescale, every input is requantized first."""
    fields = island.reader.define(island.core.args[0])
    parts = [island.reader.dequantized(f) for f in fields.fields]
    stored = [p for p in parts if p is not None]
    if len(stored) != len(parts):
        raise NotLowered("an input of it is not dequantized from integers")
    out = island.output
    axis = int(island.core.attrs.axis) % len(out.shape)
    types = {out.declared, *(p.declared for p in stored)}
    if out.whole and len(types) == 1 and any(p.constant is not None for p in stored):
        return _concat_with_constants(island, stored, axis)
    if out.whole and types == {"uint8"}:
        return _tabulated_concat(island, stored, axis)
    outputs = [replace(out, shape=part.shape) for part in stored]
    values = [
        lower_requantize(island.writing(output, island.reader.define(field)))
        for field, output in zip(fields.fields, outputs, strict=True)
    ]
    return _copied(island, values, axis)


def _tabulated_concat(island: Island, stored: Sequence[Quantized], axis: int) -> Value:
    tables = [_concat_table(p, island.output) for p in stored]
    used = [t for t in tables if t is not None]
    counts = list(accumulate((t is not None for t in tables), initial=0))
    which = [-1 if t is None else number for t, number in zip(tables, counts, strict=False)]
    return _copied(island, [p.value for p in stored], axis, used, which)


def _concat_with_constants(island: Island, parts: Sequence[Quantized], axis: int) -> Value:
    """Concat with constants, rescaled at compile time; a kind of its own, as constants follow the activations as parameters."""
    parts = [p.like(island.output) for p in parts]
    tables = [_concat_table(p, island.output) for p in parts]
    if any(t is not None and p.constant is None for p, t in zip(parts, tables, strict=True)):
        raise NotLowered("a concatenation of constants and tensors of unequal scales")
    operands = [
        p.operand if t is None or p.constant is None else t[p.constant.astype("int64") - range_of(p.dtype)[0]]
        for p, t in zip(parts, tables, strict=True)
    ]

    def compute(*given: Tensor) -> Tensor:
        return _te_concat(given, (), [-1] * len(parts), axis, island.output.shape)

    return island.emitter.call("concat_constants", compute, operands, axis=axis)


@DIRECT.lowers("concat")
def lower_stored_concat(island: Island) -> Value:
    """Concat of stored values without rescaling."""
    fields = list(island.reader.define(island.core.args[0]).fields)
    return _copied(island, fields, int(island.core.attrs.axis) % len(island.output.shape))


def _copied(
    island: Island, values: Sequence[Value], axis: int, tables: Sequence[np.ndarray] = (), which: Sequence[int] = ()
) -> Value:
    """Emits a concat: value `k` goes through `tables[which[k]]`, or is copied if that is -1 or `which` is empty."""
    which = which or [-1] * len(values)

    def compute(*args: Tensor) -> Tensor:
        return _te_concat(args[: len(values)], args[len(values) :], which, axis, island.output.shape)

    return island.emitter.call("concat", compute, [*values, *tables], axis=axis, table_of_input=tuple(which))


@DIRECT.lowers("nn.pad")
def lower_pad(island: Island) -> Value:
    """Padding of stored values: by a constant here, by elements of the tensor in `lower_moving_pad`."""
    if str(island.core.attrs.pad_mode) != "constant":
        return lower_moving_pad(island)
    return _padded(island, island.core.args[0], pad_value(island.core) - island.output.offset)


@ISLANDS.lowers("nn.pad")
def lower_pad_island(island: Island) -> Value:
    """Constant padding by a real number between dequantize and quantize: the input is requantized to the output first."""
    source, out = island.core.args[0], island.output
    if str(island.core.attrs.pad_mode) != "constant" or island.reader.dequantized(source) is None:
        raise NotLowered("padding of a tensor that is not dequantized from integers")
    inner = replace(out, shape=shape_of(source))
    value = lower_requantize(island.writing(inner, island.reader.define(source)))
    number = np.array([number_of(island.core.attrs.pad_value)], "float32")
    return _padded(island, value, int(stored_numbers(number, out)[0]))


def _padded(island: Island, source: Value, fill: int) -> Value:
    """`source` (of the old function or the new one) padded with the stored value `fill`."""
    shape, widths = shape_of(source), [int(w) for w in island.core.attrs.pad_width]
    before, after = widths[::2], widths[1::2]
    if min(widths, default=0) < 0:
        raise NotLowered("a negative padding")

    def element(index: tuple[Index, ...], a: Tensor) -> Scalar:
        inside = [i >= b for i, b in zip(index, before, strict=True) if b]
        inside += [i < b + d for i, b, d, e in zip(index, before, shape, after, strict=True) if e]
        value = a[tuple(i - b for i, b in zip(index, before, strict=True))]
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(fill, a.dtype)) if inside else value

    return island.elementwise("pad", element, [source], pad_width=tuple(widths), value=fill)


@DIRECT.lowers("permute_dims")
def lower_transpose(island: Island) -> Value:
    """A transpose, which moves stored values as they are."""
    return transposed(island.emitter, island.core.args[0], transpose_axes(island.core))


def transpose_axes(call: Call) -> list[int]:
    """The permutation of a transpose, nonnegative: output axis k is input axis `axes[k]`."""
    rank = len(shape_of(call.args[0]))
    return [int(a) % rank for a in call.attrs.axes] if call.attrs.axes is not None else list(reversed(range(rank)))


def transposed(emitter: Emitter, source: Value, axes: Sequence[int]) -> Value:
    """A stored tensor (of the old function or the new one) transposed: output axis k is input axis `axes[k]`."""
    shape = shape_of(source)

    def compute(a: Tensor) -> Tensor:
        def at(*index: Index) -> Scalar:
            position = dict(zip(axes, index, strict=True))
            return a[tuple(position[k] for k in range(len(shape)))]

        return te.compute([shape[k] for k in axes], at, name="transpose")

    return emitter.call("transpose", compute, [source], axes=tuple(axes))


@DIRECT.lowers("strided_slice")
def lower_strided_slice(island: Island) -> Value:
    """A slice with strides along any axes, which may count from the end."""
    core = island.core
    shape = shape_of(core.args[0])
    axes, begins = _tuple_of_ints(core.args[1]), _tuple_of_ints(core.args[2])
    strides = _tuple_of_ints(core.args[4]) if len(core.args) > 4 else [1] * len(axes)
    begin, stride = [0] * len(shape), [1] * len(shape)
    for axis, b, s in zip(axes, begins, strides, strict=True):
        at, extent = axis % len(shape), shape[axis % len(shape)]
        stride[at] = s
        begin[at] = min(max(b + extent if b < 0 else b, 0), extent - 1)
    return slice_of(island, core.args[0], begin, stride)


def slice_of(island: Island, source: Value, begin: Sequence[int], stride: Sequence[int]) -> Value:
    """Emits the strided slice `source[begin + i * stride]` for every index i of the island's output shape."""
    return island.elementwise(
        "strided_slice",
        lambda index, a: a[tuple(i * s + b for i, b, s in zip(index, begin, stride, strict=True))],
        [source],
        begin=tuple(begin),
        strides=tuple(stride),
    )


def lower_split_part(island: Island, index: int) -> Value:
    """Part `index` of a split, emitted as a slice, because every operator has a single output."""
    core = island.core
    source = core.args[0]
    shape = shape_of(source)
    axis = int(core.attrs.axis) % len(shape)
    sections = core.attrs.indices_or_sections
    part = -(-shape[axis] // int(sections)) if isinstance(sections, (int, tirx.IntImm)) else 0
    start = part * index if part else (0, *(int(v) for v in sections))[index]
    begin = [start if k == axis else 0 for k in range(len(shape))]
    return slice_of(island, source, begin, [1] * len(shape))


def _concat_table(part: Quantized, out: Output) -> np.ndarray | None:
    """The table `clamp(rha(x k + b) + zo)` over all stored x of uint8, in ascending order, computed in float32 from the
    file's values; None if stored values are copied unchanged."""
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


def _tuple_of_ints(expr: Value) -> list[int]:
    return [int(getattr(f.value, "value", f.value)) for f in expr.fields]
