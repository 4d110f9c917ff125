"""The comparison of single tensors with the reference, and the text of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_cascade.messages import short_name

_MOST = 20  # tensors in the text


@dataclass(frozen=True, slots=True)
class LayerCheck:
    """Comparison of a single tensor with the reference."""

    tensor: str  # its name in the model's file
    operator: str  # kind of the operator that writes it
    match: bool | None  # None: not decided, as roundings alone move it, or too large for the board
    max_abs_diff: float | None  # None if it was not compared
    differing: int  # elements beyond the tolerance of equal values
    elements: int


def first_difference(checks: Sequence[LayerCheck]) -> str | None:
    """Return the name of the first tensor that differs; None without one."""
    return next((one.tensor for one in checks if one.match is False), None)


def layer_lines(checks: Sequence[LayerCheck]) -> list[str]:
    """Format the comparison: the first difference, then the tensors that differ, in execution order."""
    equal, first = sum(one.match is True for one in checks), first_difference(checks)
    if first is None:
        undecided = len(checks) - equal
        more = f"; {undecided} undecided: roundings alone move them, or the board cannot hold them" if undecided else ""
        return [f"by layer        {equal} of {len(checks)} tensors are equal{more}"]
    bad = [one for one in checks if one.match is False]
    lines = [f"by layer        {short_name(first)} differs first; {equal} of {len(checks)} tensors are equal"]
    wide = max(len(short_name(one.tensor)) for one in bad[:_MOST])
    lines += [
        f"  {short_name(one.tensor):<{wide}}  {one.operator}: {one.differing} of {one.elements} elements, "
        f"by up to {one.max_abs_diff:.4g}"
        for one in bad[:_MOST]
    ]
    return lines + ([f"  and {len(bad) - _MOST} more"] if len(bad) > _MOST else [])
