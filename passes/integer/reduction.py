"""Reductions and comparisons of stored values: reduce max and min, arg max and min, maximum and minimum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tvm_cascade.passes.integer.broadcast import te_broadcast
from tvm_cascade.passes.integer.expressions import NotLowered, dtype_of, name_of, shape_of
from tvm_cascade.passes.integer.fixed_point import i32, te_clamp
from tvm_cascade.passes.integer.island import STORED_TYPES, Island, Quantized
from tvm_cascade.passes.integer.one_scale import Operand, from_scale_of, in_output_scale, in_scale_of
from tvm_cascade.passes.integer.registry import INDEX, ISLANDS
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx
from tvm_cascade.schedules.kernels.spec import Attributes


@ISLANDS.lowers("max", "min")
def lower_reduce(island: Island) -> Value:
    """The largest or smallest stored value along some axes; of a real operator, requantized where the scales differ."""
    x = island.operand(0)
    if not _same(island, x) and island.real:
        return from_scale_of(island, x, _reduced(in_scale_of(island, x), x))
    return _reduced(island, _comparable(island, 0))


def _reduced(island: Island, x: Quantized) -> Value:
    kind = "reduce_max" if name_of(island.core) == "relax.max" else "reduce_min"
    reduce = te.max if kind == "reduce_max" else te.min
    rank = len(x.shape)
    given = island.core.attrs.axis
    axes = sorted({int(a) % rank for a in given} if given is not None else range(rank))
    kept = bool(island.core.attrs.keepdims)

    def compute(a: Tensor) -> Tensor:
        reduced = {axis: te.reduce_axis((0, x.shape[axis]), f"r{axis}") for axis in axes}

        def best(*index: Index) -> Scalar:
            own = iter(index)
            left = list(index) if kept else [0 if axis in axes else next(own) for axis in range(rank)]
            return reduce(a[tuple(reduced.get(axis, left[axis]) for axis in range(rank))], axis=list(reduced.values()))

        acc = te.compute(island.output.shape, best, name=f"{kind}_acc")
        return te.compute(island.output.shape, lambda *i: _clamped(acc[i], island), name=kind)

    return island.emitter.call(kind, compute, [x.value], attributes=Attributes(axes=tuple(axes)))


@ISLANDS.lowers("maximum", "minimum")
def lower_compare(island: Island) -> Value:
    """The larger or smaller of two tensors, broadcast; of real operators each first in the output's quantization."""
    if island.real:
        return _extreme(island, [_real_operand(island, a) for a in island.core.args])
    parts = [_comparable(island, 0), _comparable(island, 1)]
    return _extreme(island, [(q.value, q.constant) for q in parts])


def _real_operand(island: Island, expr: Value) -> Operand:
    """An operand, itself a maximum or minimum where a file has one of several tensors."""
    inner = island.reader.define(expr)
    if name_of(inner) not in ("relax.maximum", "relax.minimum"):
        return in_output_scale(island, expr)
    info = np.iinfo(island.output.dtype)
    output = replace(island.output, shape=shape_of(expr), lo=int(info.min), hi=int(info.max))
    return lower_compare(replace(island, core=inner, output=output, bounds=None)), None


def _extreme(island: Island, parts: list[Operand]) -> Value:
    kind = name_of(island.core).removeprefix("relax.")
    choose = tirx.max if kind == "maximum" else tirx.min
    activations = [value for value, data in parts if data is None]
    constants = [data for _, data in parts if data is not None]
    if not activations:
        raise NotLowered("both operands are constant")

    def compute(p: Tensor, q: Tensor) -> Tensor:
        def at(*index: Index) -> Scalar:
            return _clamped(choose(te_broadcast(p, index), te_broadcast(q, index)), island)

        return te.compute(island.output.shape, at, name=kind)

    return island.emitter.call(kind, compute, activations, constants)


@INDEX.lowers("argmax", "argmin")
def lower_arg(island: Island) -> Value:
    """The first index of the largest or smallest value along one axis: its value first, then where it stands first."""
    data = island.core.args[0]
    if dtype_of(data) not in (*STORED_TYPES, "float32") or island.core.attrs.axis is None:
        raise NotLowered("an arg max of values that are neither stored integers nor floats, or over all axes")
    kind = "arg_max" if name_of(island.core) == "relax.argmax" else "arg_min"
    reduce = te.max if kind == "arg_max" else te.min
    shape = shape_of(data)
    axis, kept = int(island.core.attrs.axis) % len(shape), bool(island.core.attrs.keepdims)
    extent, dtype = shape[axis], island.output.dtype

    def place(index: tuple[Index, ...], at: Index) -> tuple[Index, ...]:
        return (*index[:axis], at, *index[axis + (1 if kept else 0) :])

    def compute(a: Tensor) -> Tensor:
        rv, ri = te.reduce_axis((0, extent), "rv"), te.reduce_axis((0, extent), "ri")
        best = te.compute(island.output.shape, lambda *i: reduce(a[place(i, rv)], axis=[rv]), name=f"{kind}_best_acc")
        first = te.compute(
            island.output.shape,
            lambda *i: te.min(
                tirx.Select(a[place(i, ri)].equal(best[i]), ri.var.astype("int32"), i32(extent - 1)), axis=[ri]
            ),
            name=f"{kind}_acc",
        )
        return te.compute(island.output.shape, lambda *i: first[i].astype(dtype), name=kind)

    return island.emitter.call(kind, compute, [data], attributes=Attributes(axis=axis))


def _same(island: Island, x: Quantized) -> bool:
    return x.step == island.output.scale and x.zero_point == island.output.zero_point and x.dtype == island.output.dtype


def _comparable(island: Island, index: int) -> Quantized:
    """An operand that has the output's quantization, so that stored values compare as real ones do."""
    x = island.operand(index)
    if not _same(island, x):
        raise NotLowered("operands and output of unequal scales")
    return x


def _clamped(value: Scalar, island: Island) -> Scalar:
    info = np.iinfo(island.output.dtype)
    if (island.output.lo, island.output.hi) == (info.min, info.max):
        return value
    return te_clamp(value.astype("int32"), island.output.lo, island.output.hi, island.output.dtype)
