"""Biases of convolutions and products, in units of the sums that they are added to."""

from __future__ import annotations

import numpy as np

from tvm_cascade.passes.integer.expressions import NotLowered, name_of
from tvm_cascade.passes.integer.island import Island, Quantized
from tvm_cascade.passes.integer.untyped import Call

_ROUNDING = 1e-5  # by which a scale may differ from the product of two, relative: float32's, with room
_VIEWS = ("relax.reshape", "relax.permute_dims")


def stored_bias(island: Island, core: Call, bias: Quantized, stored: np.ndarray) -> np.ndarray:
    """The constant `stored` of `bias` as int32 of scale `sx * sw`, of the operands of `core`, and zero point 0.

    TFLite ignores a bias's own quantization, and so does this but for operators on real numbers: there a bias of another
    scale or zero point is stored again, rounded to the nearest unit of the sum.

    Raises
    ------
    NotLowered
        Where that exceeds 32 bits.
    """
    units = _units(island, core) if island.reader.real_operators else None
    if units is None:
        return stored
    own = bias.scale.reshape(-1).astype("float64")
    if not {own.size, units.size} <= {1, stored.size}:
        raise NotLowered(f"a bias of {stored.size} numbers with {own.size} scales, of sums with {units.size}")
    ratios = own / units
    if bias.zero_point == 0 and np.all(np.abs(ratios - 1) <= _ROUNDING):
        return stored
    flat = stored.reshape(-1).astype("int64") - bias.zero_point
    rounded = np.rint(flat * ratios)
    if not np.all(np.abs(rounded) <= np.iinfo("int32").max):
        raise NotLowered("a bias that exceeds 32 bits in units of the sum it is added to")
    return rounded.astype("int32").reshape(stored.shape)


def _units(island: Island, core: Call) -> np.ndarray | None:
    """`sx * sw`, one or one a channel, in double; None for operands that are not dequantized."""
    units = np.ones(1)
    for operand in core.args[:2]:
        call = island.reader.define(operand)
        while name_of(call) in _VIEWS:
            call = island.reader.define(call.args[0])
        found = island.reader.dequantized(call)
        if found is None or not np.all(found.scale > 0):
            return None
        units = units * found.scale.reshape(-1).astype("float64")
    return units
