"""Results of single-operand quantized operators on a channel with a single stored value: a table of all 256.

The operator is requantization, a relu or clip, or a mean over axes besides the channels'. The
tables hold the values computed by `LowerQuantized`, bit for bit. For any other operator there is none.
"""

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
from tvm_cascade.passes.integer.task import bounded_multiplier
from tvm_cascade.program.operator import Operator, Quantized, quantized
from tvm_cascade.program.quant import BYTE_TYPES, NotLowered, Quant

_ELEMENTWISE = ("relu", "clip")


def constant_table(operator: Operator, real: bool) -> tuple[Any, tuple[int, ...]] | None:
    """Return the stored tensor read by a quantized operator, and the table; None for an operator without one.

    `real`: the operators of the file are defined on real numbers.
    """
    quant = operator.quant
    try:
        if quant is None or operator.moves or quant.dtype not in BYTE_TYPES or operator.explicit:
            return None
        x = quantized(operator.operands[0])
        if x is None or x.is_constant or x.dtype not in BYTE_TYPES:
            return None
        lowest, highest = range_of(x.dtype)
        scaled = _scaled(operator, quant, real, x, np.arange(lowest, highest + 1) - x.zero_point)
    except (NotLowered, IndexError):
        return None
    if scaled is None:
        return None
    lo, hi = activation_range(operator.bounds, quant.step, quant.zero_point, quant.dtype, real)
    return x.source, tuple(int(v) for v in np.minimum(np.maximum(scaled + quant.zero_point, lo), hi))


def _scaled(operator: Operator, quant: Quant, real: bool, x: Quantized, centred: np.ndarray) -> np.ndarray | None:
    """Return the operator's results on `centred` stored values, in units of the output's scale; None for an unknown one."""
    last = rescale_even if real else rescale
    ratio = np.float64(x.step) / np.float64(quant.step)
    if operator.kind == "requantize":
        return last(centred, *bounded_multiplier(ratio))
    if operator.kind in _ELEMENTWISE:
        single = np.float64(np.float32(x.step / quant.step))
        return last(centred, *bounded_multiplier(ratio if real else single))
    if operator.kind != "mean" or operator.attributes["axis"] is None:
        return None
    axes = {int(a) % len(x.shape) for a in operator.attributes["axis"]}
    if len(x.shape) - 1 in axes:
        return None
    count = prod(x.shape[a] for a in axes)
    m, s = quantize_multiplier(float(ratio / count if real else ratio))
    if not real:
        bits = min(count.bit_length() - 1, 32, 31 + s)
        m, s = (m << bits) // count, s - bits
    return None if s > 30 or count * x.span > INT32_MAX else last(centred * count, m, s)
