"""Bounds of a relu or clip behind an operator, as real numbers and as stored ones."""

from __future__ import annotations

import numpy as np

from tvm_cascade.passes.integer.expressions import name_of, number_of
from tvm_cascade.passes.integer.fixed_point import range_of, round_half_away
from tvm_cascade.passes.integer.untyped import Call


def activation_bounds(core: Call) -> tuple[float, float | None] | None:
    """Real (lower, upper) bounds of a relu or clip, upper None if there is none; None for any other operator."""
    if name_of(core) == "relax.nn.relu":
        return 0.0, None
    if name_of(core) == "relax.clip":
        lo, hi = (number_of(a) for a in core.args[1:3])
        return lo, hi
    return None


def activation_range(
    bounds: tuple[float, float | None] | None, scale: np.float32, zero_point: int, dtype: str, once: bool = False
) -> tuple[int, int]:
    """Stored bounds of an activation with real `bounds` (None: unbounded), rounded in float32, halves away from zero or to
    even (`Output.once`)."""
    to_integer = np.rint if once else round_half_away
    lo, hi = range_of(dtype)
    if bounds is None:
        return lo, hi
    lo = max(lo, zero_point + int(to_integer(np.float32(bounds[0]) / scale)))
    if bounds[1] is not None:
        hi = min(hi, zero_point + int(to_integer(np.float32(bounds[1]) / scale)))
    return lo, hi
