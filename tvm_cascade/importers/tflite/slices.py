"""Compute a STRIDED_SLICE's result from its masks (tensorflow/lite/kernels/strided_slice.cc)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm_cascade.importers.tflite.site import InvalidForm, UnsupportedForm


@dataclass(frozen=True, slots=True)
class AxisSlice:
    """The slice along a single input axis."""

    size: int  # of the axis
    begin: int  # 0 to size - 1
    end: int  # exclusive; -1 behind index 0 with a negative stride
    stride: int

    @property
    def extent(self) -> int:
        """Count the selected elements."""
        return len(range(self.begin, self.end, self.stride))

    @property
    def whole(self) -> bool:
        """Return True if the slice keeps the whole axis."""
        return (self.begin, self.end, self.stride) == (0, self.size, 1)

    @property
    def relax_end(self) -> int:
        """Return `end` in Relax's convention: a slice that runs backwards past element 0 ends at `-size - 1`."""
        return self.end if self.end >= 0 else -self.size - 1


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices along all input axes, and the result's shape, with new and without shrunk axes."""

    axes: tuple[AxisSlice, ...]
    shape: list[int]


def slices(
    options: Any, shape: Sequence[int], begin: Sequence[int], end: Sequence[int], strides: Sequence[int]
) -> Slices:
    """Return the slices a STRIDED_SLICE with these options takes from an input of `shape`.

    Raises
    ------
    InvalidForm
        Where that is nothing, or lies outside the input.
    UnsupportedForm
        For ends that count from begins beside masks, of which TFLite's kernels write garbage.
    """
    masks = ("BeginMask", "EndMask", "EllipsisMask", "NewAxisMask", "ShrinkAxisMask")
    if options.Offset() and any(getattr(options, mask)() for mask in masks):
        raise UnsupportedForm("ends that count from its begins, with masks")
    axes: list[AxisSlice] = []
    result: list[int] = []
    named = sum(not (options.EllipsisMask() | options.NewAxisMask()) >> k & 1 for k in range(len(begin)))

    def take_whole(count: int) -> None:
        for size in shape[len(axes) : len(axes) + count]:
            axes.append(AxisSlice(size, 0, size, 1))
            result.append(size)

    for k, limits in enumerate(zip(begin, end, strides, strict=True)):
        if options.EllipsisMask() >> k & 1:
            take_whole(len(shape) - named)
            continue
        if options.NewAxisMask() >> k & 1:
            result.append(1)
            continue
        axes.append(_axis(options, k, shape[len(axes)], *limits))
        if not options.ShrinkAxisMask() >> k & 1:
            result.append(axes[-1].extent)
    take_whole(len(shape) - len(axes))
    if any(axis.extent < 1 for axis in axes):
        raise InvalidForm(f"a slice of {list(shape)} that leaves nothing")
    return Slices(tuple(axes), result)


def _axis(options: Any, k: int, size: int, begin: int, end: int, stride: int) -> AxisSlice:
    """Return the slice of an axis by begin, end and stride number `k`."""
    lowest, highest = (0, size) if stride > 0 else (-1, size - 1)
    if options.BeginMask() >> k & 1:
        first = 0 if stride > 0 else size - 1
    else:
        first = min(max(begin + size if begin < 0 else begin, lowest), highest)
    if options.ShrinkAxisMask() >> k & 1:
        if stride < 0 or not (options.BeginMask() >> k & 1 or -size <= begin < size):
            raise InvalidForm(f"an element {begin} of an axis of {size}, which it removes, by the stride {stride}")
        return AxisSlice(size, first, first + 1, 1)
    if options.Offset():
        first = begin + size if begin < 0 else begin
        if not 0 <= first < first + end <= size:
            raise InvalidForm(f"a slice from {first} to {first + end} of an axis of {size}")
        return AxisSlice(size, first, first + end, stride)
    if options.EndMask() >> k & 1:
        last = size if stride > 0 else -1
    else:
        last = min(max(end + size if end < 0 else end, lowest), highest)
    return AxisSlice(size, first, last, stride)
