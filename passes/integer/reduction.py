"""Reductions and comparisons of stored values: reduce max and min, arg max and min, maximum and minimum."""

from __future__ import annotations

import numpy as np

from tvm_cascade.passes.integer.broadcast import te_broadcast
from tvm_cascade.passes.integer.fixed_point import i32, te_clamp
from tvm_cascade.passes.integer.island import (
    INDEX,
    ISLANDS,
    STORED_TYPES,
    Island,
    NotLowered,
    Quantized,
    dtype_of,
    name_of,
    shape_of,
)
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx


@ISLANDS.lowers("max", "min")
def lower_reduce(island: Island) -> Value:
    """The largest or smallest stored value along some axes."""
    x = _comparable(island, 0)
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

    return island.emitter.call(kind, compute, [x.value], attrs={"axes": axes})


@ISLANDS.lowers("maximum", "minimum")
def lower_compare(island: Island) -> Value:
    """The larger or smaller of two tensors of one quantization, broadcast."""
    a, b = _comparable(island, 0), _comparable(island, 1)
    kind = name_of(island.core).removeprefix("relax.")
    choose = tirx.max if kind == "maximum" else tirx.min
    activations = [q.value for q in (a, b) if q.constant is None]
    constants = [c for c in (a.constant, b.constant) if c is not None]
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

    return island.emitter.call(kind, compute, [data], attrs={"axis": axis})


def _comparable(island: Island, index: int) -> Quantized:
    """An operand that has the output's quantization, so that stored values compare as real ones do."""
    x = island.operand(index)
    if x.step != island.output.scale or x.zero_point != island.output.zero_point:
        raise NotLowered("operands and output of unequal scales")
    return x


def _clamped(value: Scalar, island: Island) -> Scalar:
    info = np.iinfo(island.output.dtype)
    if (island.output.lo, island.output.hi) == (info.min, info.max):
        return value
    return te_clamp(value.astype("int32"), island.output.lo, island.output.hi, island.output.dtype)
