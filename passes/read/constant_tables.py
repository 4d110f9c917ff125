"""Results of single-operand quantized operators on a channel with one stored value: a table of all 256.

`quantize(operator(dequantize(x)))` is requantization, a relu or clip, or a mean over axes besides the channels'. The
tables hold the values computed by `LowerQuantized`, bit for bit. For any other operator there is none.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tvm_cascade.operators.fixed_point import (
    INT32_MAX,
    activation_range,
    quantize_multiplier,
    range_of,
    rescale,
    rescale_even,
)
from tvm_cascade.passes.integer.expressions import NotLowered, name_of
from tvm_cascade.passes.integer.island import BYTE_TYPES, Matched, Quantized, Reader, bounded_multiplier

_ELEMENTWISE = ("relax.nn.relu", "relax.clip")


def constant_table(reader: Reader, quantize: Any) -> tuple[Any, tuple[int, ...]] | None:
    """Return the stored tensor read by the island of `quantize`, and the table; None for an island without one."""
    try:
        island = reader.island(quantize)
        if island.moves or island.dtype not in BYTE_TYPES or reader.explicit(island.core):
            return None
        core = name_of(island.core)
        x = reader.dequantized(island.core if core == "relax.dequantize" else island.core.args[0])
        if x is None or x.constant is not None or x.dtype not in BYTE_TYPES:
            return None
        lowest, highest = range_of(x.dtype)
        scaled = _scaled(reader, island, x, np.arange(lowest, highest + 1) - x.zero_point)
    except (NotLowered, AttributeError, IndexError):
        return None
    if scaled is None:
        return None
    lo, hi = activation_range(island.bounds, island.step, island.zero_point, island.dtype, reader.real_operators)
    return x.value, tuple(int(v) for v in np.minimum(np.maximum(scaled + island.zero_point, lo), hi))


def _scaled(reader: Reader, island: Matched, x: Quantized, centred: np.ndarray) -> np.ndarray | None:
    """Return the core's results for `centred` stored values, in units of the output's scale; None for an unknown core."""
    core, real = name_of(island.core), reader.real_operators
    last = rescale_even if real else rescale
    ratio = np.float64(x.step) / np.float64(island.step)
    if core == "relax.dequantize":
        return last(centred, *bounded_multiplier(ratio))
    if core in _ELEMENTWISE:
        single = np.float64(np.float32(x.step / island.step))
        return last(centred, *bounded_multiplier(ratio if real else single))
    if core != "relax.mean" or island.core.attrs.axis is None:
        return None
    axes = {int(a) % len(x.shape) for a in island.core.attrs.axis}
    if len(x.shape) - 1 in axes:
        return None
    count = prod(x.shape[a] for a in axes)
    m, s = quantize_multiplier(float(ratio / count if real else ratio))
    if not real:
        bits = min(count.bit_length() - 1, 32, 31 + s)
        m, s = (m << bits) // count, s - bits
    return None if s > 30 or count * x.span > INT32_MAX else last(centred * count, m, s)
