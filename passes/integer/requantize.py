"""A stored tensor in another quantization, by one multiplier."""

from __future__ import annotations

import numpy as np

from tvm_cascade.passes.integer.expressions import NotLowered
from tvm_cascade.passes.integer.fixed_point import te_rescale
from tvm_cascade.passes.integer.island import STORED_TYPES, Island, Output, Quantized, bounded_multiplier
from tvm_cascade.passes.integer.untyped import Value


def requantized(island: Island, found: Quantized) -> Value:
    """A stored tensor, of the old function or the new one, in the quantization of the island's output."""
    x, out = stored(found), island.output
    if out.same_as(x) and out.whole:
        return island.emitter.new(x.value)
    return rescaled(island, "requantize", x, np.float64(x.step) / np.float64(out.scale))


def from_own_scale(island: Island, own: Output, value: Value) -> Value:
    """`value`, which a kernel wrote in the one quantization that it has, in that of the island's output."""
    return requantized(island, Quantized(value, np.array([own.scale]), own.zero_point, own.dtype, own.shape))


def rescaled(island: Island, kind: str, x: Quantized, ratio: np.float64) -> Value:
    """`clamp(MBQM(x - z) + z_out)` with the multiplier of `ratio`."""
    if x.constant is not None:
        raise NotLowered("its input is constant")
    out = island.output
    m, s = bounded_multiplier(ratio)
    return island.elementwise(
        kind,
        lambda index, a: out.stored(te_rescale(x.centred(a[index]), m, s, x.reach)),
        [x.operand],
        input_zero_point=x.zero_point,
        multiplier=m,
        shift=s,
        **out.described,
    )


def stored(x: Quantized) -> Quantized:
    """`x`, where it is of a stored type."""
    if x.dtype not in STORED_TYPES:
        raise NotLowered(f"an operand of type {x.dtype}")
    return x
