"""CPU schedules of float32 kernels, for a single core or all; the loops are the same, so both compute the same bits.

Convolutions (`cpu_compute.direct_conv2d`) have the most optimized schedule: an accumulator tile with v channels and
some pixels of a row, held in vector registers over the whole reduction. `direct_product` and other products have tiles,
too. Pools and depthwise convolutions on packed tensors keep a pixel's channels in a register; on plain tensors these,
and element-wise operators, are only split over threads by output rows, and vectorized by the compiler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import IndexMap, PrimFunc

from tvm_cascade.staging.kernels.blocks import (
    MOST_STEPS,
    STEPS,
    Schedule,
    default_pixels,
    extent,
    hold,
    inline_around,
    inner_blocks,
    is_pad,
    is_uneven,
    iter_kinds,
    name_of,
    named,
    reductions,
    share,
    split_steps,
    up_to_the_last,
)
from tvm_cascade.staging.kernels.cpu_attention import attention, columns, rows, sums
from tvm_cascade.staging.kernels.cpu_compute import LANES, ROWS, WIDE_LANES, tile_rows
from tvm_cascade.staging.kernels.cpu_integer import integers, ranges
from tvm_cascade.staging.kernels.cpu_pointwise import pointwise
from tvm_cascade.staging.kernels.cpu_pools import clamp_max_pool
from tvm_cascade.staging.kernels.cpu_stored import WIDENED
from tvm_cascade.staging.kernels.cpu_vectors import fuse_in_order, in_vectors
from tvm_cascade.staging.kernels.cpu_winograd import winograd

LOG = logging.getLogger("tvm_cascade")
_MOST_TAPS = 25  # of a window whose loops are unrolled
_COPIED = 1 << 16  # bytes of padded rows that are copied at once: they stay in the cache of a core
_PAIR = 2  # rows of weights of 4 bits in a byte


@dataclass(frozen=True, slots=True)
class CpuSchedule:
    """A scheduled kernel and how it was found."""

    func: PrimFunc
    rule: str | None  # name of the rule that applied; None: the kernel is unscheduled
    refused: tuple[str, ...] = ()  # names of rules before it, of which TVM refused a step


def schedule_cpu(func: PrimFunc, parallel: bool, accumulators: int) -> PrimFunc:
    """Schedule a kernel by the first matching rule, for one core or (`parallel`) all; unchanged if no rule matches."""
    return cpu_schedule(func, parallel, accumulators).func


def cpu_schedule(func: PrimFunc, parallel: bool, accumulators: int) -> CpuSchedule:
    """Schedule a kernel as `schedule_cpu` does, and tell by which rule.

    `accumulators`: most vectors in an accumulator tile (`processors.accumulators`). Kernels that sum in bfloat16 stay
    unscheduled: TVM cannot store bfloat16 vectors in an accumulator.
    """
    if _sums_in_bfloat16(s_tir.Schedule(func)):
        return CpuSchedule(func, None)
    refused: list[str] = []
    for rule, takes_tiles in _RULES:
        name = rule.__name__.removeprefix("_")
        options = (accumulators,) if takes_tiles else ()
        try:
            schedule = rule(s_tir.Schedule(func), parallel, *options)
        except s_tir.ScheduleError:  # TVM refuses a step: the next rule may fit; tests hold that none is refused
            LOG.info("%s: TVM refuses a step of the schedule %s", dict(func.attrs or {}).get("global_symbol", ""), name)
            refused.append(name)
            continue
        if schedule is not None:
            return CpuSchedule(in_vectors(schedule.mod["main"]), name, tuple(refused))
    return CpuSchedule(func, None, tuple(refused))


def _sums_in_bfloat16(sch: Schedule) -> bool:
    written = (region.source.ty.dtype for block in reductions(sch) for region in sch.get(block).writes)
    return any(str(dtype) == "bfloat16" for dtype in written)


def _pads(sch: Schedule, anchor, parallel: bool) -> None:
    for block in inner_blocks(sch):
        if is_pad(sch, block, name_of(sch, anchor)):
            loops = sch.get_loops(block)
            share(sch, loops[:-2] if len(loops) > 3 else loops[:1], parallel)


@dataclass(frozen=True)
class Tiling:
    """Tile sizes and loop order of a convolution. Sizes are integers or variables that a schedule has sampled."""

    pixels: Any  # pixels of a row in an accumulator tile
    blocks: Any = None  # blocks of `LANES` channels in an accumulator tile; None: one
    rows_first: bool = False  # loop over rows outside of the loop over blocks of channels, else inside
    taps_first: bool = False  # loops over the window's taps outside of the loop over input channels, else inside
    steps: int = STEPS  # of the reduction of a single tap that are unrolled


def _convolution(sch: Schedule, parallel: bool, most: int) -> Schedule | None:
    shape = convolution_shape(sch)
    if shape is None:
        return None
    acc = sch.get_sblock("conv_acc")
    if not _is_pointwise(sch, acc) or most > ROWS:  # more pixels than there are registers for their addresses
        return tile_convolution(sch, Tiling(default_pixels(shape[1], most)), parallel)
    high, wide = (int(d) for d in sch.get(acc).writes[0].source.ty.shape[2:4])
    tiling = Tiling(tile_rows(high * wide, most=most), steps=MOST_STEPS)
    return _beyond_the_last_pixel(tile_convolution(sch, tiling, parallel))


def _beyond_the_last_pixel(sch: Schedule) -> Schedule:
    """Compute pixels of a tile that ends behind the last pixel from the last one, in place of a condition in each step."""
    func = sch.mod["main"]

    def unguarded(realize: Any) -> Any:
        block = realize.block
        if not block.name_hint.startswith("conv_acc"):
            return realize
        acc, region = block.writes[0].source, block.writes[0].region
        pixel = region[-2].min
        last = tirx.IntImm(str(pixel.ty.dtype), int(acc.ty.shape[-2]) - 1)

        def clamped(load: Any) -> Any:
            if load.source.same_as(acc):
                return load
            at = [
                tvm_ffi.structural_map(i, (tirx.Var, lambda v: tirx.min(v, last) if v.same_as(pixel) else v))
                for i in load.indices
            ]
            return tirx.BufferLoad(load.source, at)

        body = tvm_ffi.structural_map(block.body, (tvm.ir.TensorLoad, clamped))
        fields = (block.iter_vars, block.reads, block.writes, block.name_hint, body, block.init)
        made = s_tir.SBlock(*fields, block.alloc_buffers, block.match_buffers, block.annotations)
        return s_tir.SBlockRealize(realize.iter_values, tirx.const(True, "bool"), made)

    body = tvm_ffi.structural_map(func.body, (s_tir.SBlockRealize, unguarded))
    return s_tir.Schedule(func.with_body(body))


def convolution_shape(sch: Schedule) -> tuple[int, int, int] | None:
    """Return a `direct_conv2d`'s channel blocks, pixels per row and window taps; None for other kernels.

    Side effect: inlines the element-wise blocks after the convolution.
    """
    sums = [b for b in inner_blocks(sch) if name_of(sch, b) == "conv_acc"]
    if len(sums) != 1:
        return None
    last = inline_around(sch, sums[0])
    if last is None or any(iter_kinds(sch, last)) or len(sch.get_loops(last)) not in (4, 5):
        return None
    _, blocks, _, wide, _, _, ry, rx, *_ = (int(sch.get(loop).extent) for loop in sch.get_loops(sums[0]))
    return blocks, wide, ry * rx


def tile_convolution(sch: Schedule, tiling: Tiling, parallel: bool) -> Schedule:
    """Schedule a convolution, to be called after `convolution_shape`: a single loop nest, the outer loops parallel."""
    acc = sch.get_sblock("conv_acc")
    last = inner_blocks(sch)[-1]
    n, outer, y, x, several, lane = _output_loops(sch, acc, last, tiling.blocks)
    x_outer, x_inner = sch.split(x, [None, tiling.pixels])
    loops = (n, y, x_outer, outer) if tiling.rows_first else (n, outer, y, x_outer)
    sch.reorder(*loops, several, x_inner, lane)
    _pads(sch, acc, parallel)
    sch.compute_at(acc, loops[-1], preserve_unit_loops=True)
    rank, inside = len(sch.get(acc).writes[0].source.ty.shape), sch.get_loops(acc)[len(loops) :]
    space, (rc, ry, rx, *ri) = inside[:rank], inside[rank:]
    reduced = [ry, rx, rc, *ri] if tiling.taps_first else [rc, ry, rx, *ri]
    alone = extent(sch, ry) * extent(sch, rx) == 1  # several taps share pixels, for which there are no registers
    if alone:
        reduced = [ry, rx, rc, *ri]
        reduced[-1:] = split_steps(sch, reduced[-1], tiling.steps)
        sch.unroll(reduced[-1])
    sch.reorder(*reduced, *space)
    hold(sch, space[1], *space[-2:])
    if _is_packed(sch, last):
        hold(sch, several, x_inner, lane)
    share(sch, loops[:2] if tiling.rows_first else loops[:3], parallel)
    clear = sch.get_loops(sch.decompose_reduction(acc, reduced[0]))[-rank:]
    hold(sch, clear[1], *clear[-2:])
    return sch


def _is_packed(sch: Schedule, block) -> bool:
    return len(sch.get(block).writes[0].source.ty.shape) == 5


def _output_loops(sch: Schedule, acc, last, blocks: Any) -> list[Any]:
    """Order the loops over the output: batch, block tiles, rows, columns, blocks in a tile, channels in a block."""
    count, packed, first = 1 if blocks is None else blocks, _is_packed(sch, last), _channel_axis(sch, acc, last) == 1
    loops = sch.get_loops(last)
    if _is_pointwise(sch, acc):
        axis = 2 if first else 1
        _as_one_row(sch, acc, last, axis)
        loops = sch.get_loops(last)
        loops[axis : axis + 1] = sch.split(loops[axis], [1, None])
    if packed:
        n, o, y, x, lane = loops
        outer, several = sch.split(o, [None, count])
    else:
        n, c, y, x = loops if first else [loops[i] for i in (0, 3, 1, 2)]
        outer, several, lane = sch.split(c, [None, count, LANES])
    return [n, outer, y, x, several, lane]


def _is_pointwise(sch: Schedule, acc) -> bool:
    """Test whether an output pixel of a convolution reads only the input pixel at the same place."""
    held = sch.get(acc)
    _, _, high, wide, _ = held.writes[0].source.ty.shape
    source = [int(d) for d in held.reads[0].source.ty.shape]
    same = [int(high), int(wide)] in (source[1:3], source[2:4])
    return same and all(int(sch.get(loop).extent) == 1 for loop in sch.get_loops(acc)[6:8])


def _as_one_row(sch: Schedule, acc, last, axis: int) -> None:
    """Join the rows (axis `axis`) of a convolution's accumulator and output to a single row."""
    wide = extent(sch, sch.get_loops(last)[axis + 1])

    def joined(rows: int, rank: int) -> Any:
        def row(*at: Any) -> Sequence[Any]:
            return (*at[:rows], at[rows] * wide + at[rows + 1], *at[rows + 2 :])

        return IndexMap.from_func(row, rank)

    sch.transform_block_layout(acc, joined(2, len(sch.get_loops(acc))))
    sch.transform_block_layout(last, joined(axis, len(sch.get_loops(last))))
    sch.transform_layout(acc, ("write", 0), joined(2, 5))


def _channel_axis(sch: Schedule, acc, last) -> int:
    """Return the output axis (1 or 3) for channels or channel blocks, inferred from the accumulator's and output's
    shapes.
    """
    _, blocks, high, wide, lanes = (int(d) for d in sch.get(acc).writes[0].source.ty.shape)
    _, channels, *pixels = (extent(sch, loop) for loop in sch.get_loops(last))
    if _is_packed(sch, last):
        return 1
    return 1 if prod(pixels) == high * wide and (blocks - 1) * lanes < channels <= blocks * lanes else 3


def _vectors_of_channels(sch: Schedule, parallel: bool) -> Schedule | None:
    """Schedule pools, means over pixels and packed depthwise convolutions so that a pixel's channels stay in a
    register.
    """
    sums = reductions(sch)
    if len(sums) != 1:
        return None
    acc = sums[0]
    last = inline_around(sch, acc)
    if last is None or not any(_touches_packed(sch, block) for block in inner_blocks(sch)):
        return None
    clamped = clamp_max_pool(sch)
    if clamped is not sch:
        return _vectors_of_channels(clamped, parallel)
    if name_of(sch, last) == name_of(sch, acc):
        last = sch.cache_write(acc, 0, "global")
    pads = [b for b in inner_blocks(sch) if is_pad(sch, b, name_of(sch, acc))]
    packed = [_is_packed(sch, pad) for pad in pads]
    for pad, done in zip(pads, packed, strict=True):
        if not done:
            sch.transform_layout(pad, ("write", 0), lambda n, c, y, x: (n, c // LANES, y, x, c % LANES))
    n, c, *rest = sch.get_loops(last)
    if _is_packed(sch, last):
        *rest, lane = rest
    else:
        c, lane = sch.split(c, [None, LANES])
        sch.reorder(n, c, *rest, lane)
    if pads:
        rest[:1] = sch.split(rest[0], [None, max(_padded_rows(sch, pad, extent(sch, rest[0])) for pad in pads)])
    loops = (n, c, *rest)
    sch.compute_at(acc, loops[-1], preserve_unit_loops=True)
    for pad, done in zip(pads, packed, strict=True):
        sch.compute_at(pad, loops[2], preserve_unit_loops=True)
        *_, lanes = sch.get_loops(pad) if done else _lanes_last(sch, pad)
        sch.vectorize(lanes)
    axes, inside = iter_kinds(sch, acc), sch.get_loops(acc)[len(loops) :]
    channels = inside[4 if _is_packed(sch, acc) else 1]
    taps = inside[axes.count(False) :]
    sch.reorder(*taps, channels)
    sch.vectorize(lane)
    sch.vectorize(channels)
    if prod(extent(sch, t) for t in taps) <= _MOST_TAPS:
        for tap in taps:
            sch.unroll(tap)
    share(sch, loops[:3], parallel)
    sch.vectorize(sch.get_loops(sch.decompose_reduction(acc, taps[0]))[-1 if _is_packed(sch, acc) else len(loops) + 1])
    return sch


def _touches_packed(sch: Schedule, block) -> bool:
    held = sch.get(block)
    return any(
        len(region.source.ty.shape) == 5 and int(region.source.ty.shape[-1]) == LANES
        for region in (*held.reads, *held.writes)
    )


def _padded_rows(sch: Schedule, pad, rows: int) -> int:
    """Return how many of `rows` rows of outputs are computed from one padded copy of the rows that they read."""
    _, _, high, wide, lanes = (int(d) for d in sch.get(pad).writes[0].source.ty.shape)
    most = _COPIED // (4 * wide * lanes * -(-high // rows))
    return max(n for n in range(1, rows + 1) if n == 1 or (rows % n == 0 and n <= most))


def _lanes_last(sch: Schedule, pad) -> list[Any]:
    """Reorder loops over channels, rows and columns: channels become the last."""
    *_, c, y, x = sch.get_loops(pad)
    sch.reorder(y, x, c)
    return [y, x, c]


def _window(sch: Schedule, parallel: bool) -> Schedule | None:
    """Schedule pools and depthwise convolutions by rows of outputs, with the loops over taps outside the loop over a
    row.
    """
    sums = reductions(sch)
    if len(sums) != 1:
        return None
    acc = sums[0]
    axes = iter_kinds(sch, acc)
    if axes[:4] != [False] * 4 or len(sch.get_loops(acc)) != len(axes) or len(axes) < 5:
        return None
    last = inline_around(sch, acc)
    if last is None:
        return None
    same = name_of(sch, last) == name_of(sch, acc)
    _pads(sch, acc, parallel)
    if not same and len(sch.get_loops(last)) == 4:
        loops = sch.get_loops(last)
        sch.compute_at(acc, loops[2], preserve_unit_loops=True)
        space, taps = sch.get_loops(acc)[3 : -(len(axes) - 4)], sch.get_loops(acc)[-(len(axes) - 4) :]
    elif same:
        loops = sch.get_loops(acc)
        space, taps = loops[3:4], loops[4:]
    else:
        return None
    sch.reorder(*taps, *space)
    share(sch, loops[:3], parallel)
    sch.decompose_reduction(acc, taps[0])
    return sch


def _packed_product(sch: Schedule, parallel: bool, most: int) -> Schedule | None:
    """Schedule `direct_product`: a tile of rows and columns stays in registers over the whole reduction.

    Independent sums hide the latency of additions; a tile's rows share the loads from the right operand.
    """
    sums = [b for b in inner_blocks(sch) if name_of(sch, b) == "product_acc"]
    if len(sums) != 1:
        return None
    acc = sums[0]
    *_, filled, blocks, lanes = (int(d) for d in sch.get(acc).writes[0].source.ty.shape)
    stored = any(name_of(sch, b) == WIDENED for b in inner_blocks(sch))
    widens = stored and filled > tile_rows(filled, lanes)
    last = inline_around(sch, acc, (WIDENED,) if widens else ())
    if last is None or any(iter_kinds(sch, last)):
        return None
    *outer, row, column = sch.get_loops(last)
    rows, vectors = tile_rows(extent(sch, row), lanes), -(-lanes // LANES)
    wide = lanes == WIDE_LANES

    def fits(rows: int, several: int) -> bool:
        return 3 * (rows + 1) * several * vectors < 4 * most  # a row of weights is held beside the sums

    pairs = filled == 1 and lanes == 2 * LANES and blocks % 2 == 0 and not stored  # as `product_lanes` has a single row
    several = 2 if pairs else 1
    if not (wide or pairs):
        several = next(n for n in (4, 3, 2, 1) if n == 1 or (blocks % n == 0 and fits(rows, n)))
    rows = rows if wide else next(n for n in range(rows, 0, -1) if n == 1 or (rows % n == 0 and fits(n, several)))
    j, beside, inside = sch.split(column, [None, several, lanes])
    i, r = sch.split(row, [None, rows])
    sch.reorder(*outer, j, i, r, beside, inside)
    sch.compute_at(acc, i, preserve_unit_loops=True)
    if widens:
        _widen(sch, j)
    r, block, lane, depth = sch.get_loops(acc)[len(outer) + 2 :][-4:]
    v, lane = sch.split(lane, [None, 8 if wide else LANES])
    steps = MOST_STEPS if wide or fits(rows, several) else _PAIR if stored else 1
    outer_depth, step = split_steps(sch, depth, steps)
    inner = (block, v, step, r, lane) if stored and not widens else (step, block, r, v, lane)
    sch.reorder(outer_depth, *inner)
    sch.vectorize(lane)
    for loop in inner[:-1]:
        sch.unroll(loop)
    uneven = parallel and not widens and is_uneven(extent(sch, j))
    share(sch, (*outer, j, i) if uneven else (*outer, j), parallel)
    clear = sch.get_loops(sch.decompose_reduction(acc, outer_depth))
    sch.vectorize(clear[-1])
    for loop in clear[-4:-1]:
        sch.unroll(loop)
    return up_to_the_last(sch)


def _widen(sch: Schedule, tile: Any) -> None:
    """Compute a column tile's float weights once for all rows."""
    block = named(sch, WIDENED)
    sch.compute_at(block, tile, preserve_unit_loops=True)
    *_, depth, lane = sch.get_loops(block)
    sch.vectorize(lane)
    sch.unroll(split_steps(sch, depth, _PAIR)[-1])


def _product(sch: Schedule, parallel: bool) -> Schedule | None:
    """Schedule other products: up to sixteen columns at a time over the whole reduction."""
    sums = reductions(sch)
    if len(sums) != 1 or iter_kinds(sch, sums[0])[-2:] != [False, True] or any(iter_kinds(sch, sums[0])[:-1]):
        return None
    acc = sums[0]
    last = inline_around(sch, acc)
    if last is None:
        return None
    fused, loops = any(iter_kinds(sch, last)), sch.get_loops(last)
    if len(loops) != iter_kinds(sch, acc).count(False) + fused:  # a value of each row is read for all columns
        return None
    *outer, column = loops[:-1] if fused else loops
    lanes = max(d for d in range(1, LANES + 1) if int(sch.get(column).extent) % d == 0)
    j, v = sch.split(column, [None, lanes])
    if fused:
        depth, space = loops[-1], [v]
        sch.reorder(*outer, j, depth, v)
    else:
        sch.compute_at(acc, j, preserve_unit_loops=True)
        *space, depth = sch.get_loops(acc)[len(outer) + 1 :]
        sch.reorder(depth, *space)
    sch.vectorize(space[-1])
    share(sch, (*outer, j), parallel)
    sch.vectorize(sch.get_loops(sch.decompose_reduction(acc, depth))[-1])
    return sch


def _elementwise(sch: Schedule, parallel: bool) -> Schedule | None:
    if reductions(sch):
        return None
    outputs = [b for b in inner_blocks(sch) if not sch.get_consumers(b)]
    if len(outputs) > 1:  # a split: what lies before its parts is inlined into each of them
        names = [name_of(sch, b) for b in outputs]
        for block in inner_blocks(sch):
            if name_of(sch, block) not in names:
                sch.compute_inline(block)
        return sch
    last = inline_around(sch, None)
    if last is None:
        return None
    loops = fuse_in_order(sch, last)
    if len(loops) == 1 and extent(sch, loops[0]) % LANES == 0:
        loops = sch.split(loops[0], [None, LANES])
    if loops and parallel:
        share(sch, loops[:-1] if len(loops) > 1 else loops, parallel)
    return sch


_RULES: tuple[tuple[Callable[..., Schedule | None], bool], ...] = (  # and whether a rule takes `accumulators`
    (_convolution, True),
    (pointwise, True),
    (winograd, True),
    (_packed_product, True),
    (integers, False),
    (ranges, False),
    (_vectors_of_channels, False),
    (sums, False),
    (_window, False),
    (_product, False),
    (attention, True),
    (columns, False),
    (rows, False),
    (_elementwise, False),
)
