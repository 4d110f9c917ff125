"""Convolutions fused with a concat of their input along the channels (`passes.rewrite_for_memory`).

The concat is removed, and the kernel reads its parts. A 1 x 1 convolution gathers a block's pixels: it copies their
parts side by side into scratch, once for all output channels, at an instruction or two per four bytes; the kernel then
reads them like the concat. Larger windows would take more scratch: there each part has a part kernel, an ordinary
convolution that adds to the same accumulators. Larger windows are gathered only if tables requantize parts. A depthwise
convolution reads each part directly: an output channel depends on a single part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tvm_cascade.schedules.rules.emit import KernelBuilder, best_step
from tvm_cascade.schedules.rules.geometry import Columns, Sliding, row_offsets, valid_row
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.quantized import QuantizedConv
from tvm_cascade.schedules.tir import Value, address_of, i32

_UNROLL = 4  # most units copied in one loop iteration


@dataclass(frozen=True, eq=False)
class Source:
    """A tensor from which a kernel reads input channels: the whole input, or a part of a concat."""

    x: Value  # the tensor as a flat buffer
    window: Sliding  # the convolution's window over that tensor
    index: int  # position among the kernel's inputs
    first: int = 0  # the channel of the concat at which this part begins
    table: Value = None  # buffer of 256 entries by which its values are requantized, in their order; None: they are not
    lowest: int = 0  # the least value of the tensor's type

    def load(self, place: Value) -> Value:
        """Load the (requantized) element at `place` as an int32."""
        value = self.x[place].astype("int32")
        return value if self.table is None else self.table[value - self.lowest].astype("int32")


def inputs_of(conv: QuantizedConv) -> list[str]:
    """List the element types of a kernel's inputs, one per part."""
    return [conv.dtype] * max(len(conv.parts), 1)


def tables_of(conv: QuantizedConv) -> list[np.ndarray]:
    """List the tables for requantizing parts: the kernel's last constants."""
    return [p.table for p in conv.parts if p.table is not None]


def gathers(conv: QuantizedConv) -> bool:
    """Return True if the kernel gathers the windows' parts in scratch, instead of reading each part directly."""
    small = conv.window.kernel == (1, 1) or bool(tables_of(conv))
    return bool(conv.parts) and not conv.depthwise and small


def of_part(conv: QuantizedConv, index: int) -> QuantizedConv:
    """Make the convolution for a part: the part's channels and weights; everything else, bias included, is the whole's."""
    first, part = sum(p.channels for p in conv.parts[:index]), conv.parts[index]
    window = replace(conv.window, channels=part.channels)
    return replace(conv, window=window, weights=conv.weights[:, :, first : first + part.channels], parts=())


def in_eights(conv: QuantizedConv) -> bool:
    """Test that all channel counts a convolution reads contiguously (per part or group) are multiples of eight."""
    in_place = bool(conv.parts) and not gathers(conv)
    whole = conv.window.channels // conv.groups
    return all(c % 8 == 0 for c in ([p.channels for p in conv.parts] if in_place else [whole]))


def sources(k: KernelBuilder, conv: QuantizedConv) -> list[Source]:
    """List a kernel's inputs, in channel order."""
    if not conv.parts:
        return [Source(k.view(k.inputs[0][0], conv.dtype, "xs"), conv.window, 0)]
    made, first, table = [], 0, len(k.constants) - len(tables_of(conv))
    for index, part in enumerate(conv.parts):
        x, values = k.view(k.inputs[index][0], conv.dtype, "xs"), None
        if part.table is not None:
            values, table = k.view(k.constants[table], conv.dtype, "values"), table + 1
        window = replace(conv.window, channels=part.channels)
        made.append(Source(x, window, index, first, values, int(np.iinfo(conv.dtype).min)))
        first += part.channels
    return made


def gathered_bytes(conv: QuantizedConv, pixels: int) -> int:
    """Return the scratch bytes for the gathered windows of `pixels` neighbouring pixels, 0 if none are gathered."""
    return conv.window.kernel[0] * _pitch(conv.window, pixels) if gathers(conv) else 0


def _pitch(g: Sliding, pixels: int) -> int:
    """Return the bytes per row in the gathered windows for `pixels` neighbouring pixels."""
    return ((min(pixels, g.out_width) - 1) * g.strides[1] + g.kernel[1]) * g.channels


class Gather:
    """Emitter that gathers the windows for a block of up to `pixels` pixels in scratch."""

    def __init__(self, k: KernelBuilder, conv: QuantizedConv, pixels: int) -> None:
        self.k, self.g = k, conv.window
        self.sources = sources(k, conv)
        self.pitch = _pitch(self.g, pixels)
        self.x = k.view(k.scratch, conv.dtype, "window")

    def rows(self) -> list[Value]:
        """Return the element offsets of a gathered window's rows in scratch; bind the parts' row offsets (`starts`)
        too.
        """
        self.starts = [row_offsets(self.k, s.window, s.index) for s in self.sources]
        return [i32(r * self.pitch) for r in range(self.g.kernel[0])]

    def fill(self, group: Columns, x: Value, pixels: int, r0: Value, r1: Value) -> None:
        """Emit the copies of the windows for `pixels` output pixels from column `x` on."""
        k, g = self.k, self.g
        span = (pixels - 1) * g.strides[1] + group.k1 - group.k0
        column = x * g.strides[1] - g.padding[1] + group.k0
        for r in range(g.kernel[0]):
            with valid_row(k, g, r, r0, r1):
                for source, starts in zip(self.sources, self.starts, strict=True):
                    channels = source.window.channels
                    at = k.let(starts[r] + column * channels, "part")
                    with k.loop(span, "px") as px:
                        self._copy(source, px * g.channels + (r * self.pitch + source.first), at + px * channels)

    def _copy(self, source: Source, to: Value, at: Value) -> None:
        """Emit the copy of a part's pixel."""
        k, channels = self.k, source.window.channels
        words = source.table is None and (channels | source.first | self.g.channels) % 4 == 0
        unit = 1 if not words else 16 if channels % 16 == 0 else 4
        count = channels // unit
        step = best_step(count, _UNROLL)
        for i in k.unrolled(count // step, step):
            offset = i * unit
            if unit == 1:
                k.store(self.x, to + offset, source.load(at + offset).astype(source.x.dtype))
                continue
            ends = (address_of(self.x[to + offset]), address_of(source.x[at + offset]))
            k.evaluate(call(f"copy{unit}", *ends))
