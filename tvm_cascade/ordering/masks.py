"""Sets of operators as bit masks: bit i stands for operator i."""

from __future__ import annotations


def members(mask: int) -> list[int]:
    """The operators of a set, ascending."""
    ops = []
    while mask:
        lowest = mask & -mask
        ops.append(lowest.bit_length() - 1)
        mask ^= lowest
    return ops
