"""Bounds of a relu or clip behind an operator, as real numbers."""

from __future__ import annotations

from tvm_cascade.operators.fixed_point import activation_range  # noqa: F401 - beside the bounds that it stores
from tvm_cascade.passes.integer.expressions import name_of, number_of
from tvm_cascade.passes.integer.untyped import Call


def activation_bounds(core: Call) -> tuple[float, float | None] | None:
    """Real (lower, upper) bounds of a relu or clip, upper None if there is none; None for any other operator."""
    if name_of(core) == "relax.nn.relu":
        return 0.0, None
    if name_of(core) == "relax.clip":
        lo, hi = (number_of(a) for a in core.args[1:3])
        return lo, hi
    return None
