"""DSP row kernel of convolutions with few taps, such as a first layer of 3 x 3 x 1: the window is held in registers.

Every window is loaded once, padding as the zero point, into pairs of halfwords. Each output channel then takes one
`smlad` per pair with weights stored as int16, accumulated from its bias. The loop over channels widens nothing.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.rules import geometry
from tvm_cascade.schedules.rules.channel_table import ChannelTable
from tvm_cascade.schedules.rules.emit import KernelBuilder, best_step
from tvm_cascade.schedules.rules.geometry import Columns, Sliding
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.quantized import QuantizedConv
from tvm_cascade.schedules.tir import Value, i32, tirx

MOST_TAPS = 12  # six pairs leave registers for the loop over channels
STEP = 4  # most channels in one iteration of that loop


def has_few_taps(conv: QuantizedConv) -> bool:
    """Test that the kernel applies: a single input and group, at most `MOST_TAPS` taps, and rows of several pixels.

    Several pixels make up for weights of twice the bytes.
    """
    few = conv.weights[..., 0].size <= MOST_TAPS and conv.window.out_width > 1
    return few and not conv.depthwise and not conv.parts and conv.groups == 1


def few_taps(conv: QuantizedConv) -> RowKernel:
    """Build the kernel for a convolution with `has_few_taps`."""
    return _FewTaps(conv).build()


class _FewTaps:
    def __init__(self, conv: QuantizedConv) -> None:
        self.conv = conv
        self.g: Sliding = conv.window
        taps = conv.weights.reshape(-1, conv.outputs)
        self.pairs = -(-taps.shape[0] // 2)
        halves = np.zeros((conv.outputs, 2 * self.pairs), np.int16)
        halves[:, : taps.shape[0]] = taps.T
        biases = geometry.whole_bias(conv.weights, conv.bias, conv.input_zero_point)  # padding is in the pairs
        self.numbers = ChannelTable(conv.requantize, biases, compact=False)  # with a word less to keep
        constants = (halves.ravel(), self.numbers.words)
        self.k = k = KernelBuilder([conv.dtype], constants, [conv.out_dtype], row_table=self.g.rows_by_table)
        self.x = k.view(k.inputs[0][0], conv.dtype, "xs")
        self.w = k.view(k.constants[0], "int32", "pairs")
        self.table = k.view(k.constants[1], "int32", "table")
        self.out = k.view(k.outputs[0], conv.out_dtype, "outs")

    def build(self) -> RowKernel:
        return self.k.kernel(self._emit)

    def _emit(self) -> None:
        k, g = self.k, self.g
        self.numbers.open(k, self.table)
        self.rows = geometry.row_offsets(k, g)
        self.r0, self.r1 = g.bounds(k, k.y)
        for group in g.column_groups():
            with k.loop(group.stop - group.start, "xb") as xb:
                x = xb + group.start
                self._channels(self._gather(group, x), x)

    def _gather(self, group: Columns, x: Value) -> list[Value]:
        """Load the window's values, two per register; padding rows and columns as the zero point."""
        k, g = self.k, self.g
        kh, kw = g.kernel
        width = kw * g.channels
        taps = k.local(2 * self.pairs, "taps")
        column = (x * g.strides[1] - g.padding[1]) * g.channels
        inside = range(group.k0 * g.channels, group.k1 * g.channels)
        for tap in range(2 * self.pairs):
            k.store(taps, tap, i32(self.conv.input_zero_point if tap < kh * width else 0))
        for r in range(kh):
            with geometry.valid_row(k, g, r, self.r0, self.r1):
                for i in inside:
                    place = i + i // g.channels * (g.dilation[1] - 1) * g.channels
                    k.store(taps, r * width + i, self.x[self.rows[r] + column + place].astype("int32"))
        low = i32(0xFFFF)
        return [
            k.let(
                tirx.bitwise_or(tirx.bitwise_and(taps[i32(2 * p)], low), taps[i32(2 * p + 1)] * 65536),
                "pair",
            )
            for p in range(self.pairs)
        ]

    def _channels(self, pairs: list[Value], x: Value) -> None:
        k, outputs = self.k, self.conv.outputs
        step = best_step(outputs, STEP)
        for channel in k.unrolled(outputs // step, step, "ob"):
            acc = self.numbers.bias(k, channel, 0)
            for p, pair in enumerate(pairs):
                acc = k.let(call("smlad", pair, self.w[channel * self.pairs + p], acc), "acc")
            (value,) = self.numbers.requantized(k, self.conv.requantize, channel, [acc])
            k.store(self.out, x * outputs + channel, value.astype(self.conv.out_dtype))
