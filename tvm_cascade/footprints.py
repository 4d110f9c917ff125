"""Kernel variants available for an operator, and the RAM each takes. Kernel forms report both to the planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MIN_SCRATCH_ELEMENTS = 9  # smallest buffer in scratch: TVM would allocate a shorter one on the stack


@dataclass(frozen=True, slots=True)
class ChannelTiling:
    """Scratch and multiply-accumulates (MACs) of a fused inverted bottleneck computed a single channel group at a time.

    The operator fuses an expansion, a depthwise convolution and a projection (`cascading.channels`). The costs depend
    on the columns computed by a step: a whole row, or a stripe.
    """

    group_size: int  # channels of one group
    expanded_elements: tuple[int, int]  # (a, b): n output columns need a buffer of a + b * n int8 elements for a group
    sum_elements: tuple[int, int]  # (a, b): n output columns need a + b * n int32 sums
    macs_per_covered_column: int  # MACs, over all rows, for each input column that the windows of a step cover
    macs_per_tap: int  # MACs for each tap along the columns that is not padding
    macs_per_column: int  # MACs for each output column

    def scratch_bytes(self, columns: Any) -> Any:
        """Compute the scratch bytes for `columns` output columns (an int or an array of ints)."""
        expanded, sums = (a + b * columns for a, b in (self.expanded_elements, self.sum_elements))
        pixel = max(self.group_size, MIN_SCRATCH_ELEMENTS)
        return _multiple_of_8(expanded) + _multiple_of_8(4 * sums) + _multiple_of_8(pixel)


def _multiple_of_8(size: Any) -> Any:
    return -(-size // 8) * 8


@dataclass(frozen=True, slots=True)
class RowTable:
    """RAM for an input of a pixel-tile kernel that finds a window's kernel rows in a table.

    An entry holds the start of a kernel row. In a pixel ring a kernel row may wrap around the ring's end, and is then
    copied behind the table (`cascading.row_tables`).
    """

    taps: int  # kernel rows: entries of 4 bytes
    pixel_bytes: int  # of the input
    span: int  # input columns that one output pixel reads
    stride: int  # more input columns for each further pixel of the tile

    def bytes_with_run(self, columns: int) -> int:
        """Return the bytes of the table and of a kernel row with `columns` columns behind, copied 16 bytes at a time."""
        return -(-4 * self.taps // 16) * 16 + columns * self.pixel_bytes

    def most_bytes(self, pixels: int) -> int:
        """Return the most bytes for tiles of `pixels` pixels: the longest kernel row wraps."""
        return self.bytes_with_run(self.span + (pixels - 1) * self.stride)


@dataclass(frozen=True, slots=True)
class KernelFootprints:
    """Kernel variants available for an operator besides the one-row kernel, and the RAM each takes."""

    row_tables: tuple[RowTable | None, ...] = ()  # pixel-tile kernel: by input, its row table; empty: it needs none
    in_place_workspace_bytes: int = 0  # kernel that runs once and overwrites its only input; 0: there is none
    accumulator_bytes: int = 0  # kernel that sums up its only input row by row; 0: there is none
    channel_tiling: ChannelTiling | None = None  # computes whole rows, or stripes of them, but no pixel tiles
    row_addresses: bool = False  # kernel of one row that finds every row of its tensors by a table of addresses
    multi_row: bool = False  # computes any number of rows that divides the map, with one read of its weights

    def tile_workspace_bytes(self, pixels: int) -> int:
        """Return the most workspace bytes for a kernel that computes `pixels` pixels in one step."""
        return sum(table.most_bytes(pixels) for table in self.row_tables if table is not None)


ROW_KERNEL_ONLY = KernelFootprints()
