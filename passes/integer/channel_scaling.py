"""From sums of products to stored outputs, by a multiplier for every channel of the output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_cascade.passes.integer.expressions import NotLowered
from tvm_cascade.passes.integer.fixed_point import (
    once_rounded,
    quantize_multipliers,
    te_rescale_channel,
    te_rescale_once,
)
from tvm_cascade.passes.integer.island import Output
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor

_MOST_SHIFT, _MOST_SHIFT_ONCE = 30, 14  # to the left, of 32 bits and of the 64-bit form


@dataclass(frozen=True, slots=True)
class ChannelScaling:
    """`MBQM(sum + bias) + zero_point`, clamped; of int16 activations (`once`) rounded once, in 64 bits."""

    output: Output
    bias: np.ndarray  # int32, as the next two, one a channel
    multiplier: np.ndarray
    shift: np.ndarray
    bound: int  # of every sum, its bias included
    once: bool

    @classmethod
    def of(cls, output: Output, real: np.ndarray, bias: np.ndarray, bound: int, once: bool) -> ChannelScaling:
        """By the real multipliers (float64) of every channel.

        Raises
        ------
        NotLowered
            For multipliers that the reference's shifts have not room for.
        """
        multiplier, shift = quantize_multipliers(real)
        if shift.max() > _MOST_SHIFT:
            raise NotLowered(f"the scales multiply to {real.max():g}")
        if once and shift.max() > _MOST_SHIFT_ONCE:
            raise NotLowered("scales that the reference's 64-bit rounding cannot shift by")
        return cls(output, bias, once_rounded(multiplier) if once else multiplier, shift, bound, once)

    @property
    def constants(self) -> list[np.ndarray]:
        """Bias, multipliers and shifts, in the order in which `stored` takes their placeholders."""
        return [self.bias, self.multiplier, self.shift]

    def stored(self, total: Scalar, channel: Index, b: Tensor, m: Tensor, s: Tensor) -> Scalar:
        """The stored output of a sum."""
        if self.once:
            scaled = te_rescale_once(total.astype("int64") + b[channel].astype("int64"), m[channel], s[channel])
        else:
            scaled = te_rescale_channel(total + b[channel], m[channel], s[channel], self.shift, self.bound)
        return self.output.stored(scaled)


def channel_bias(bias: np.ndarray | None, channels: int) -> np.ndarray:
    """A stored bias, int32 [channels]; zeros where there is none."""
    return np.zeros(channels, "int32") if bias is None else bias.reshape(-1).astype("int32")
