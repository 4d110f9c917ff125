"""The sum of more than two tensors, as ONNX's Sum has it: one addition with the head room of several.

As the reference adds two, every summand is shifted up and rescaled to twice the largest scale, the total to the output's.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.passes.integer.expressions import NotLowered, name_of
from tvm_cascade.passes.integer.fixed_point import INT32_MAX, i32, te_rescale
from tvm_cascade.passes.integer.island import STORED_TYPES, Island, Quantized, bounded_multiplier, te_broadcast
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value

_HEAD_ROOM = {"int8": 21, "uint8": 21, "int16": 16}  # bits above a summand, and above what doubles the largest scale


def summands(island: Island) -> list[Quantized] | None:
    """The stored tensors that additions of additions sum up, where there are more than two."""
    found: list[Quantized] = []
    waiting = list(island.core.args)
    while waiting:
        expr = waiting.pop(0)
        inner = island.reader.define(expr)
        if name_of(inner) == "relax.add":
            waiting[:0] = inner.args
            continue
        summand = island.reader.dequantized(expr)
        if summand is None or summand.scale.size != 1 or summand.dtype not in STORED_TYPES:
            return None
        found.append(summand)
    return found if len(found) > 2 else None


def lower_summands(island: Island, parts: list[Quantized]) -> Value:
    """The sum of the stored tensors `parts`."""
    out = island.output
    high = 1 << (_HEAD_ROOM[out.dtype] - (len(parts) - 1).bit_length())
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
        return out.stored(te_rescale(total, *final, bound))

    return island.elementwise("add_several", element, [p.operand for p in parts])
