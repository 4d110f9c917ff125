"""A stored tensor in another quantization, by one multiplier."""

from __future__ import annotations

import numpy as np

from tvm_cascade.passes.integer.expressions import NotLowered
from tvm_cascade.passes.integer.fixed_point import i32, te_clamp, te_rescale
from tvm_cascade.passes.integer.island import STORED_TYPES, Island, Output, Quantized, bounded_multiplier
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor, Value, te
from tvm_cascade.schedules.kernels.spec import Attributes


def requantized(island: Island, found: Quantized) -> Value:
    """A stored tensor, of the old function or the new one, in the quantization of the island's output."""
    x, out = stored(found), island.output
    if (x.step, x.zero_point, x.dtype, out.lo, out.hi) == (out.scale, out.zero_point, out.dtype, *_range(out.dtype)):
        return island.emitter.new(x.value)
    return rescaled(island, "requantize", x, np.float64(x.step) / np.float64(island.output.scale))


def from_own_scale(island: Island, own: Output, value: Value) -> Value:
    """`value`, which a kernel wrote in the one quantization that it has, in that of the island's output."""
    return requantized(island, Quantized(value, np.array([own.scale]), own.zero_point, own.dtype, own.shape))


def rescaled(island: Island, kind: str, x: Quantized, ratio: np.float64) -> Value:
    """`clamp(MBQM(x - z) + z_out)` with the multiplier of `ratio`."""
    if x.constant is not None:
        raise NotLowered("its input is constant")
    out = island.output
    m, s = bounded_multiplier(ratio)

    def compute(a: Tensor) -> Tensor:
        def at(*index: Index) -> Scalar:
            scaled = te_rescale(a[index].astype("int32") - i32(x.zero_point), m, s, x.reach)
            return te_clamp(scaled + i32(out.zero_point), out.lo, out.hi, out.dtype)

        return te.compute(out.shape, at, name=kind)

    attributes = Attributes(
        input_zero_point=x.zero_point, output_zero_point=out.zero_point, multiplier=m, shift=s, clamp=(out.lo, out.hi)
    )
    return island.emitter.call(kind, compute, [x.value], attributes=attributes)


def stored(x: Quantized) -> Quantized:
    """`x`, where it is of a stored type."""
    if x.dtype not in STORED_TYPES:
        raise NotLowered(f"an operand of type {x.dtype}")
    return x


def _range(dtype: str) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)
