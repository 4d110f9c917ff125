"""Sets of operators as bit masks: bit i stands for operator i."""

from __future__ import annotations


def members(mask: int) -> list[int]:
    """List the operators in a set, ascending."""
    if (
        8 * mask.bit_count() > mask.bit_length()
    ):  # one step for each bit is faster than one long subtraction for each member
        return [i for i, bit in enumerate(reversed(f"{mask:b}")) if bit == "1"]
    ops = []
    while mask:
        lowest = mask & -mask
        ops.append(lowest.bit_length() - 1)
        mask ^= lowest
    return ops
