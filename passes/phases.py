"""Divide transposed convolutions with overlapping windows into plain convolutions, one for each phase of the stride.

Along an axis with stride `s`, padding `p` and weights `w[0..k)`, output `y = s * m + j` is the sum over `t` of
`x[m + o - t] * w[r + s * t]` with `j + p = s * o + r`: for a fixed phase `j` a convolution with stride 1 and every `s`-th
weight, in reverse. No product with an inserted zero is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Phases:
    """The phases of a transposed convolution with rank-4 weights `[in, out / groups, kh, kw]`."""

    kernel: np.ndarray
    extents: tuple[int, int]  # rows and columns of the input
    counts: tuple[int, int]  # outputs of each phase, along rows and columns
    strides: tuple[int, int]
    before: tuple[int, int]  # padding in front of the first row and column
    dilation: tuple[int, int]
    groups: int

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
    ) -> Phases | None:
        """Return the phases; None if one has no weight, or dilated weights belong to several.

        `extents` and `outputs` are rows and columns of input and output; `padding` begins with top and left.
        """
        if any(k < s or (d > 1 and s > 1) for k, s, d in zip(kernel.shape[2:], strides, dilation, strict=True)):
            return None
        counts = [-(-n // s) for n, s in zip(outputs, strides, strict=True)]
        (h, w), (oh, ow), (sy, sx), (dy, dx) = extents, counts, strides, dilation
        return cls(kernel, (h, w), (oh, ow), (sy, sx), (padding[0], padding[1]), (dy, dx), groups)

    @property
    def outputs(self) -> tuple[int, int]:
        """Return the rows and columns of all phases side by side, with those behind the output's end."""
        return self.counts[0] * self.strides[0], self.counts[1] * self.strides[1]

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        """Yield the phases, by row and column within a stride."""
        return ((j, i) for j in range(self.strides[0]) for i in range(self.strides[1]))

    def weights(self, place: Sequence[int]) -> np.ndarray:
        """Return the weights of a phase, [kh, kw, in / groups, out]."""
        (y, sy), (x, sx) = ((self._first(axis, place), self.strides[axis]) for axis in (0, 1))
        taken = self.kernel[:, :, y::sy, x::sx][:, :, ::-1, ::-1]
        depth, outputs, rows, columns = taken.shape
        apart = taken.reshape(self.groups, depth // self.groups, outputs, rows, columns)
        return np.ascontiguousarray(apart.transpose(3, 4, 1, 0, 2).reshape(rows, columns, depth // self.groups, -1))

    def padding(self, place: Sequence[int]) -> tuple[int, int, int, int]:
        """Return a phase's padding: top, left, bottom, right; what is negative is cropped."""
        (top, bottom), (left, right) = (self._sides(axis, place) for axis in (0, 1))
        return top, left, bottom, right

    def _first(self, axis: int, place: Sequence[int]) -> int:
        return (place[axis] + self.before[axis]) % self.strides[axis]

    def _sides(self, axis: int, place: Sequence[int]) -> tuple[int, int]:
        ahead = (place[axis] + self.before[axis]) // self.strides[axis]
        taps = len(range(self._first(axis, place), self.kernel.shape[2 + axis], self.strides[axis]))
        return (taps - 1) * self.dilation[axis] - ahead, self.counts[axis] + ahead - self.extents[axis]
