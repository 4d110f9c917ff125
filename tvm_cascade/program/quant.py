"""`Quant`: how the integers of a tensor stand for real numbers, `real = scale * (stored - zero_point)`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_cascade.operators.fixed_point import range_of

STORED_TYPES = ("int8", "uint8", "int16")  # of quantized activations; int16 ones have int8 weights
BYTE_TYPES = ("int8", "uint8")
SIGN = 128  # how far uint8 is above int8


class NotLowered(Exception):
    """Raised for an operator that has no integer form; the message is the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Quant:
    """The quantization of a tensor."""

    scale: np.ndarray  # float32, one element or one per channel
    zero_point: int  # of all channels
    dtype: str  # in which the tensor is stored
    axis: int = 0  # of the channels, in the stored tensor; it may count from the end
    offset: int = 0  # what the file's values are above the stored ones: 128 for a uint8 tensor that is stored as int8
    explicit: bool = False  # the file has an operator that computes the real numbers

    @property
    def declared(self) -> str:
        """Return the element type in the file."""
        return "uint8" if self.offset else self.dtype

    @property
    def step(self) -> np.float32:
        """Return the positive scale of a per-tensor quantization; raises `NotLowered` for per-channel scales."""
        if self.scale.size != 1:
            raise NotLowered("an activation with a scale for every channel")
        return positive(np.float32(self.scale.reshape(-1)[0]))

    @property
    def reach(self) -> int:
        """Return the largest possible `|stored - zero_point|`."""
        lowest, highest = range_of(self.dtype)
        return max(highest - self.zero_point, self.zero_point - lowest)

    @property
    def span(self) -> int:
        """Return the width of the stored range: the type's highest minus its lowest value."""
        lowest, highest = range_of(self.dtype)
        return highest - lowest


def positive(scale: np.float32) -> np.float32:
    """Return `scale`. Raises `NotLowered` unless it is finite and positive, since the arithmetic divides by it."""
    if not (np.isfinite(scale) and scale > 0):
        raise NotLowered(f"an activation of scale {scale}")
    return scale
