"""CPU schedule for `cpu_compute.direct_pointwise`, a convolution with a single tap and pixel vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.tirx import IndexMap

from tvm_cascade.staging.kernels.blocks import (
    Schedule,
    extent,
    hold,
    inline_around,
    inner_blocks,
    iter_kinds,
    name_of,
    share,
    split_steps,
    up_to_the_last,
)
from tvm_cascade.staging.kernels.cpu_compute import LANES, ROWS


@dataclass(frozen=True)
class PointTiling:
    """An accumulator tile. Sizes are integers or variables sampled by a schedule."""

    rows: Any  # channels, a divisor of `ROWS`
    vectors: Any  # of pixels


def pointwise(sch: Schedule, parallel: bool, most: int) -> Schedule | None:
    """Schedule a `direct_pointwise` with the default tile; None for other kernels. `most`: vectors of an accumulator
    tile.
    """
    if not is_pointwise(sch):
        return None
    fits = (rows for rows in point_rows() if 3 * (rows + 1) < 4 * most)  # pixels beside sums
    vectors = max(1, min(most // ROWS, 2))  # twelve sums hide the latency of additions everywhere
    return up_to_the_last(tile_pointwise(sch, PointTiling(next(fits, 1), vectors), parallel))


def point_rows() -> list[int]:
    """List the possible numbers of channels in a tile, the largest first."""
    return [rows for rows in range(ROWS, 0, -1) if ROWS % rows == 0]


def is_pointwise(sch: Schedule) -> bool:
    """Test whether a kernel is a `direct_pointwise`. Side effect: inlines the element-wise blocks after the
    convolution.
    """
    sums = [b for b in inner_blocks(sch) if name_of(sch, b) == "point_acc"]
    if len(sums) != 1:
        return False
    last = inline_around(sch, sums[0])
    return last is not None and not any(iter_kinds(sch, last)) and len(sch.get_loops(last)) == 4


def tile_pointwise(sch: Schedule, tiling: PointTiling, parallel: bool) -> Schedule:
    """Schedule it, to be called after `is_pointwise`: a tile of channels and pixels stays in registers over the whole reduction.

    The pixels of a tile are copied once for all channels, in the order in which they are read.
    """
    acc, last = sch.get_sblock("point_acc"), inner_blocks(sch)[-1]
    column = sch.get_loops(last)[3]
    wide, number = extent(sch, column), str(sch.get(column).loop_var.ty.dtype)
    row = IndexMap.from_func(lambda n, c, y, x: (n, c, y * wide + x), 4, index_dtype=number)
    same = IndexMap.from_func(lambda n, o, r, at: (n, o, r, at), 4, index_dtype=number)
    sch.transform_block_layout(last, row)
    sch.transform_layout(acc, ("write", 0), same)  # indices of its reader become simple
    n, c, pixel = sch.get_loops(last)
    block, part = sch.split(c, [None, ROWS])
    part, row = sch.split(part, [None, tiling.rows])
    outer, beside, lane = sch.split(pixel, [None, tiling.vectors, LANES])
    sch.reorder(n, outer, block, part, row, beside, lane)
    sch.compute_at(acc, part, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("point_pad"), outer, preserve_unit_loops=True)
    *space, depth = sch.get_loops(acc)[4:]
    space[-1:] = sch.split(space[-1], [tiling.vectors, LANES])
    depth, step = split_steps(sch, depth)
    sch.unroll(step)
    sch.reorder(depth, step, *space)
    hold(sch, *space[-3:])
    share(sch, (n, outer), parallel)
    hold(sch, *sch.get_loops(sch.decompose_reduction(acc, depth))[-3:])
    return sch
