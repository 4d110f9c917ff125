"""Divide transposed convolutions into plain convolutions, one for each phase of the stride.

Along an axis with stride `s`, padding `p`, dilation `d` and weights `w[0..k)`, output `y` is the sum over taps `t` and
inputs `i` with `s * i + d * t = y + p` of `x[i] * w[t]`. Outputs `y = s * m + j` of a phase `j` share their taps: those
with `d * t = j + p` modulo `s`. Such taps lie `s / g` apart, with `g` the greatest common divisor of `s` and `d`, and each
reads `d / g` inputs in front of the one before. So a phase is a convolution with stride 1 and dilation `d / g`, weights in
reverse. No product with an inserted zero is computed; a phase that reads padding alone gets a single zero weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np


@dataclass(frozen=True)
class Phases:
    """The phases of a transposed convolution with rank-4 weights `[in, out / groups, kh, kw]`."""

    kernel: np.ndarray
    extents: tuple[int, int]  # rows and columns of the input
    counts: tuple[int, int]  # outputs of each phase, along rows and columns
    strides: tuple[int, int]
    before: tuple[int, int]  # padding in front of the first row and column
    spacing: tuple[int, int]  # dilation of the weights
    groups: int
    zero: int = 0  # the weight that stands for zero

    @classmethod
    def of(
        cls,
        kernel: np.ndarray,
        extents: Sequence[int],
        outputs: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        zero: int = 0,
    ) -> Phases:
        """Return the phases. `extents` and `outputs` are rows and columns of input and output; `padding` begins with top
        and left.
        """
        counts = [-(-n // s) for n, s in zip(outputs, strides, strict=True)]
        (h, w), (oh, ow), (sy, sx), (dy, dx) = extents, counts, strides, dilation
        return cls(kernel, (h, w), (oh, ow), (sy, sx), (padding[0], padding[1]), (dy, dx), groups, zero)

    @property
    def outputs(self) -> tuple[int, int]:
        """Return the rows and columns of all phases side by side, with those behind the output's end."""
        return self.counts[0] * self.strides[0], self.counts[1] * self.strides[1]

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        """Yield the phases, by row and column within a stride."""
        return ((j, i) for j in range(self.strides[0]) for i in range(self.strides[1]))

    @property
    def dilation(self) -> tuple[int, int]:
        """Return the dilation of every phase."""
        return self.spacing[0] // self._shared(0), self.spacing[1] // self._shared(1)

    def weights(self, place: Sequence[int]) -> np.ndarray:
        """Return the weights of a phase, [kh, kw, in / groups, out]."""
        if self._reads_nothing(place):
            taken = np.full((*self.kernel.shape[:2], 1, 1), self.zero, self.kernel.dtype)
        else:
            taken = self.kernel[:, :, self._taps(0, place)][:, :, :, self._taps(1, place)][:, :, ::-1, ::-1]
        depth, outputs, rows, columns = (int(d) for d in taken.shape)
        apart = taken.reshape(self.groups, depth // self.groups, outputs, rows, columns)
        return np.ascontiguousarray(apart.transpose(3, 4, 1, 0, 2).reshape(rows, columns, depth // self.groups, -1))

    def padding(self, place: Sequence[int]) -> tuple[int, int, int, int]:
        """Return a phase's padding: top, left, bottom, right; what is negative is cropped."""
        if self._reads_nothing(place):
            return 0, 0, self.counts[0] - self.extents[0], self.counts[1] - self.extents[1]
        (top, bottom), (left, right) = (self._sides(axis, place) for axis in (0, 1))
        return top, left, bottom, right

    def _reads_nothing(self, place: Sequence[int]) -> bool:
        """Return True if a phase has no tap, or taps that meet padding alone."""
        return any(
            not self._taps(axis, place) or self.extents[axis] + sum(min(s, 0) for s in self._sides(axis, place)) < 1
            for axis in (0, 1)
        )

    def _shared(self, axis: int) -> int:
        return gcd(self.strides[axis], self.spacing[axis])

    def _taps(self, axis: int, place: Sequence[int]) -> range:
        """Return the taps of a phase along an axis, first to last."""
        stride, size = self.strides[axis], self.kernel.shape[2 + axis]
        step, offset = stride // self._shared(axis), place[axis] + self.before[axis]
        first = next((t for t in range(step) if (offset - t * self.spacing[axis]) % stride == 0), size)
        return range(first, size, step)

    def _sides(self, axis: int, place: Sequence[int]) -> tuple[int, int]:
        taps = self._taps(axis, place)
        ahead = (place[axis] + self.before[axis] - taps[0] * self.spacing[axis]) // self.strides[axis]
        return (len(taps) - 1) * self.dilation[axis] - ahead, self.counts[axis] + ahead - self.extents[axis]
