"""Requantize accumulators to stored outputs per channel, with biases in accumulator units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_cascade.passes.integer import fixed_point as fp
from tvm_cascade.passes.integer.task import Output, Task
from tvm_cascade.passes.integer.untyped import Index, Scalar, Tensor
from tvm_cascade.program.operator import Operator, Quantized, computed, quantized
from tvm_cascade.program.quant import NotLowered

_ROUNDING = 1e-5  # relative tolerance between a bias's scale and `sx * sw`: float32 rounding, with a margin
_VIEWS = ("reshape", "permute_dims")
_MOST_SHIFT, _MOST_SHIFT_ONCE = 30, 14  # largest left shifts of the 32-bit and of the 64-bit form

_MOST_EXACT = 1 << 32  # sums that 64 bits hold times a multiplier of 31


@dataclass(frozen=True, slots=True)
class ChannelScaling:
    """The stored output `clamp(MBQM(sum + bias) + zero_point)`; with `once` (int16 activations of TFLite) rounded once, half
    up, by a multiplier of 16 bits, and else as `Output.once` says."""

    output: Output
    bias: np.ndarray  # int32, one element per channel, like the next two
    multiplier: np.ndarray
    shift: np.ndarray
    bound: int  # on the magnitude of every sum, bias included
    once: bool

    @classmethod
    def of(cls, output: Output, real: np.ndarray, bias: np.ndarray, bound: int, once: bool) -> ChannelScaling:
        """Return the scaling by real multipliers (float64), one per channel.

        Raises
        ------
        NotLowered
            If a multiplier is too large for the reference's shifts.
        """
        multiplier, shift = fp.quantize_multipliers(real)
        once = once and not (output.once and bound < _MOST_EXACT)
        if shift.max() > _MOST_SHIFT:
            raise NotLowered(f"the scales multiply to {real.max():g}")
        if once and shift.max() > _MOST_SHIFT_ONCE:
            raise NotLowered("scales that the reference's 64-bit rounding cannot shift by")
        return cls(output, bias, fp.once_rounded(multiplier) if once else multiplier, shift, bound, once)

    @property
    def constants(self) -> list[np.ndarray]:
        """Return bias, multipliers and shifts, in the placeholder order of `stored`."""
        return [self.bias, self.multiplier, self.shift]

    def stored(self, total: Scalar, channel: Index, b: Tensor, m: Tensor, s: Tensor) -> Scalar:
        """Return the stored output for the sum `total` in `channel`; `b`, `m` and `s` are placeholders for `constants`."""
        if self.once:
            scaled = fp.te_rescale_once(total.astype("int64") + b[channel].astype("int64"), m[channel], s[channel])
        else:
            given = self.multiplier, self.shift
            summed = total + b[channel].astype(str(total.dtype))
            scaled = rescaled_channel(self.output, summed, m[channel], s[channel], given, self.bound)
        return self.output.stored(scaled)


def rescaled_channel(
    output: Output, x: Scalar, m: Scalar, s: Scalar, given: tuple[np.ndarray, np.ndarray], bound: int
) -> Scalar:
    """Return an int32 in output-scale units: `x`, `|x| <= bound`, times a per-channel multiplier, rounded like the
    output. `given` are all values for `m` and `s`, in pairs.
    """
    if output.once:
        return fp.te_rescale_channel_even(x, m, s, given, bound)
    return fp.te_rescale_channel(x, m, s, given[1], bound)


def channel_bias(bias: np.ndarray | None, channels: int) -> np.ndarray:
    """Return the bias as int32 [channels]; zeros for None."""
    return np.zeros(channels, "int32") if bias is None else bias.reshape(-1).astype("int32")


def stored_bias(task: Task, bias: Quantized, stored: np.ndarray) -> np.ndarray:
    """Return the data `stored` of `bias` in sum units: scale `sx * sw` from the other operands, zero point 0.

    TFLite ignores a bias's own quantization. Files with operators defined on real numbers differ: there a bias with
    another scale or zero point is requantized, rounded to nearest.

    Raises
    ------
    NotLowered
        If the requantized bias exceeds 32 bits, or its number of scales does not fit.
    """
    units = _units(task.operator) if task.of_reals else None
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


def _units(product: Operator) -> np.ndarray | None:
    """Return `sx * sw` in double, one element or one per channel; None if an operand is not dequantized from integers."""
    units = np.ones(1)
    for operand in product.operands[:2]:
        while (view := computed(operand, *_VIEWS)) is not None:
            operand = view.operands[0]
        factor = quantized(operand)
        if factor is None or not np.all(factor.scale > 0):
            return None
        units = units * factor.scale.reshape(-1).astype("float64")
    return units
