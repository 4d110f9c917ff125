"""Comparisons of stored integers, to booleans, and what networks make of them: choices, and booleans as numbers.

The reference compares `MBQM((x - z) << 8)` of both sides, whose multipliers are the scales themselves: below 1/256 it
does not tell neighbours apart. Orders of int16 it reads from the stored values, whatever their quantization says. A
comparison of floats that the file itself dequantizes is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_cascade.passes.integer.broadcast import te_broadcast
from tvm_cascade.passes.integer.chains import quantized
from tvm_cascade.passes.integer.expressions import NotLowered, constant_of, dtype_of, name_of, shape_of
from tvm_cascade.passes.integer.fixed_point import i32, quantize_multiplier, te_clamp, te_rescale
from tvm_cascade.passes.integer.island import STORED_TYPES, Island, Quantized
from tvm_cascade.passes.integer.one_scale import Operand, in_output_scale
from tvm_cascade.passes.integer.registry import DIRECT, ISLANDS, TESTS
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te, tirx

_HEAD_ROOM = 8  # bits that both sides are shifted up by
_TESTS = {
    "equal": lambda x, y: x.equal(y),
    "not_equal": lambda x, y: tirx.NE(x, y),
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
}


@TESTS.lowers(*_TESTS)
def lower_test(island: Island) -> Value:
    a, b = island.operand(0), island.operand(1)
    kind = name_of(island.core).removeprefix("relax.")
    if a.dtype not in STORED_TYPES or a.dtype != b.dtype or (a.constant is not None and b.constant is not None):
        raise NotLowered("a comparison of other than stored activations of one type")
    same = a.step == b.step and a.zero_point == b.zero_point
    ordered = a.dtype == "int16" and kind not in ("equal", "not_equal")
    if ordered and not same and not island.real:
        raise NotLowered("an order of int16 of unequal scales or zero points, which the reference ignores")
    raw = same if island.real else ordered

    def side(q: Quantized, value: Scalar) -> Scalar:
        if raw:
            return value.astype("int32")
        if island.real:
            centred = (value.astype("int32") - i32(q.zero_point)).astype("float32")
            return centred * tirx.const(float(q.step), "float32")
        if q.step >= 1:
            raise NotLowered("a comparison of a scale of 1 or more, which the reference gets wrong")
        shifted = (value.astype("int32") - i32(q.zero_point)) * i32(1 << _HEAD_ROOM)
        return te_rescale(shifted, *quantize_multiplier(float(q.step)), q.reach << _HEAD_ROOM)

    def compute(p: Tensor, q: Tensor) -> Tensor:
        x, y = (q, p) if a.constant is not None else (p, q)

        def at(*index: Index) -> Scalar:
            return _TESTS[kind](side(a, te_broadcast(x, index)), side(b, te_broadcast(y, index)))

        return te.compute(island.output.shape, at, name=kind)

    activations = [q.value for q in (a, b) if q.constant is None]
    constants = [q.constant for q in (a, b) if q.constant is not None]
    return island.emitter.call(kind, compute, activations, constants)


@DIRECT.lowers("where")
def lower_choice(island: Island) -> Value:
    """One stored value or the other, as it is: the reference does not look at scales."""
    return _choice(island, [(a, constant_of(island.reader.define(a))) for a in island.core.args])


@ISLANDS.lowers("where")
def lower_real_choice(island: Island) -> Value:
    """Both sides in the output's quantization first."""
    condition, *sides = island.core.args
    test = (condition, constant_of(island.reader.define(condition)))
    return _choice(island, [test, *(in_output_scale(island, side) for side in sides)])


def _choice(island: Island, parts: Sequence[Operand]) -> Value:
    data = [d for _, d in parts]
    order = sorted(range(3), key=lambda k: data[k] is not None)
    out, info = island.output, np.iinfo(island.output.dtype)

    def compute(*given: Tensor) -> Tensor:
        condition, chosen, other = (given[order.index(k)] for k in range(3))

        def at(*index: Index) -> Scalar:
            value = tirx.Select(
                te_broadcast(condition, index).astype("bool"), te_broadcast(chosen, index), te_broadcast(other, index)
            )
            if (out.lo, out.hi) == (int(info.min), int(info.max)):
                return value
            return te_clamp(value.astype("int32"), out.lo, out.hi, out.dtype)

        return te.compute(out.shape, at, name="select")

    activations = [parts[k][0] for k in order if data[k] is None]
    constants = [d for d in (data[k] for k in order) if d is not None]
    if not activations:
        raise NotLowered("a choice between constants")
    return island.emitter.call("select", compute, activations, constants)


@ISLANDS.lowers("astype")
def lower_number(island: Island) -> Value:
    """Booleans as 0 and 1, quantized."""
    data = island.core.args[0]
    if dtype_of(data) != "bool":
        raise NotLowered(f"a number made of {dtype_of(data)}")
    no, yes = (int(v) for v in quantized(np.array([0, 1], "float32"), island.output))

    def compute(a: Tensor) -> Tensor:
        def at(*index: Index) -> Scalar:
            return tirx.Select(a[index].astype("bool"), i32(yes), i32(no)).astype(island.output.dtype)

        return te.compute(shape_of(data), at, name="number")

    return island.emitter.call("number", compute, [data])
