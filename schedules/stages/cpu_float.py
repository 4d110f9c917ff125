"""CPU schedules of float32 kernels, for one core or all; the loops are the same, so both compute the same bits.

`direct_conv2d` has the most optimized schedule: weights packed `[oc/v][ic][kh][kw][v]`, and an accumulator tile of
v channels and some pixels of a row held in vector registers over the whole reduction. On a core with 512-bit vectors it
reaches about 120 GMAC/s. `direct_product` and other products have tiles, too; pools, depthwise convolutions and
element-wise operators are only split over threads by output rows, and vectorized by the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import s_tir, te
from tvm.tirx import IterVar, PrimFunc, if_then_else
from tvm.tirx import all as tir_all

Schedule = Any  # s_tir.Schedule, whose stubs type every primitive by its widest form

LANES = 16  # float32 in a 512-bit vector; two instructions on 256-bit machines
_MAX_ROWS = 12  # most rows of a product's accumulator tile
_MAX_TILE = 16  # most pixels of an accumulator tile: 16 vectors, leaving registers for weights and inputs


def direct_conv2d(
    x: Any,
    weight: Any,
    channels: int,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    layout: str = "NCHW",
) -> Any:
    """Convolution without groups as a TE compute; `weight` is from `pack_weights`, `padding` top, left, bottom, right."""
    nchw = layout == "NCHW"
    n, ic, h, w = x.shape if nchw else (x.shape[0], x.shape[3], x.shape[1], x.shape[2])
    blocks, _, kh, kw, lanes = (int(d) for d in weight.shape)
    top, left, bottom, right = padding
    high, wide = int(h) + top + bottom, int(w) + left + right
    oh = (high - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    ow = (wide - (kw - 1) * dilation[1] - 1) // strides[1] + 1

    def read(b, c, r, q):
        return x[b, c, r, q] if nchw else x[b, r, q, c]

    if any(padding):

        def padded(b, c, r, q):
            inside = tir_all(r >= top, r < int(h) + top, q >= left, q < int(w) + left)
            return if_then_else(inside, read(b, c, r - top, q - left), 0.0)

        source: Any = te.compute((n, ic, high, wide), padded, name="conv_pad")
    else:
        source = read
    rc: Any
    ry: Any
    rx: Any
    rc, ry, rx = (te.reduce_axis((0, e), name) for e, name in ((ic, "rc"), (kh, "ry"), (kw, "rx")))

    def multiply(b, o, r, q, v):
        at = (b, rc, r * strides[0] + ry * dilation[0], q * strides[1] + rx * dilation[1])
        return te.sum((source(*at) if callable(source) else source[at]) * weight[o, rc, ry, rx, v], axis=[rc, ry, rx])

    acc: Any = te.compute((n, blocks, oh, ow, lanes), multiply, name="conv_acc")
    if nchw:
        return te.compute(
            (n, channels, oh, ow), lambda b, c, r, q: acc[b, c // lanes, r, q, c % lanes], name="conv_out"
        )
    return te.compute((n, oh, ow, channels), lambda b, r, q, c: acc[b, c // lanes, r, q, c % lanes], name="conv_out")


def pack_weights(oihw: np.ndarray) -> np.ndarray:
    """OIHW weights as `[oc/v][ic][kh][kw][v]`, the last block filled with zeros."""
    o, i, h, w = oihw.shape
    blocks = -(-o // LANES)
    full = np.zeros((blocks * LANES, i, h, w), oihw.dtype)
    full[:o] = oihw
    return np.ascontiguousarray(full.reshape(blocks, LANES, i, h, w).transpose(0, 2, 3, 4, 1))


def direct_product(x: Any, weight: Any, columns: int) -> Any:
    """`x @ w` for `x` [..., depth] as a TE compute; `weight` is packed by `pack_columns`."""
    *rows, depth = x.shape
    blocks, _, lanes = (int(d) for d in weight.shape)
    k: Any = te.reduce_axis((0, int(depth)), "k")

    def multiply(*at):
        *row, j, v = at
        return te.sum(x[(*row, k)] * weight[j, k, v], axis=[k])

    acc: Any = te.compute((*rows, blocks, lanes), multiply, name="product_acc")
    return te.compute(
        (*rows, columns), lambda *at: acc[(*at[:-1], at[-1] // lanes, at[-1] % lanes)], name="product_out"
    )


def pack_columns(weight: np.ndarray, rows: int) -> np.ndarray:
    """A right operand (depth, columns) as `[columns/v][depth][v]`, so that a tile of `rows` rows reads contiguously."""
    depth, columns = weight.shape
    lanes = LANES * (4 if rows == 1 else 2)
    lanes = min(lanes, -(-columns // LANES) * LANES)
    blocks = -(-columns // lanes)
    full = np.zeros((depth, blocks * lanes), weight.dtype)
    full[:, :columns] = weight
    return np.ascontiguousarray(full.reshape(depth, blocks, lanes).transpose(1, 0, 2))


def schedule_cpu(func: PrimFunc, parallel: bool) -> PrimFunc:
    """The kernel under the first rule that fits, for one core or (`parallel`) all; unchanged where no rule fits."""
    for rule in (_convolution, _packed_product, _window, _product, _elementwise):
        schedule = rule(s_tir.Schedule(func), parallel)
        if schedule is not None:
            return schedule.mod["main"]
    return func


def _blocks(sch: Schedule) -> list[Any]:
    return sch.get_child_blocks(sch.get_sblock("root"))


def _iters(sch: Schedule, block) -> list[bool]:
    """Per axis of the block, whether it is a reduction."""
    return [v.iter_type == IterVar.CommReduce for v in sch.get(block).iter_vars]


def _reductions(sch: Schedule) -> list[Any]:
    return [b for b in _blocks(sch) if any(_iters(sch, b))]


def _name(sch: Schedule, block) -> str:
    return sch.get(block).name_hint


def _inline_around(sch: Schedule, anchor) -> Any:
    """Inline all blocks but `anchor`, its padding and the last one, which is returned.

    None where the kernel has reductions other than `anchor`.
    """
    if len(_reductions(sch)) != (0 if anchor is None else 1):
        return None
    blocks = _blocks(sch)
    mark = None if anchor is None else _name(sch, anchor)
    for block in blocks[:-1]:
        if _name(sch, block) != mark and not _is_pad(sch, block, mark):
            sch.compute_inline(block)
    return _blocks(sch)[-1]


def _is_pad(sch: Schedule, block, mark: str | None) -> bool:
    return mark is not None and "pad" in _name(sch, block) and "pool" not in _name(sch, block)


def _thread(sch: Schedule, loops: Sequence, parallel: bool) -> None:
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    if parallel:
        sch.parallel(fused)


def _pads(sch: Schedule, anchor, parallel: bool) -> None:
    for block in _blocks(sch):
        if _is_pad(sch, block, _name(sch, anchor)):
            loops = sch.get_loops(block)
            _thread(sch, loops[:-2] if len(loops) > 3 else loops[:1], parallel)


def default_pixels(extent: int) -> int:
    """Pixels of an accumulator tile: a divisor of the row where there is a good one."""
    if extent <= _MAX_TILE + 4:
        return extent
    divisor = max(d for d in range(1, _MAX_TILE + 1) if extent % d == 0)
    return divisor if divisor >= 5 else 12


@dataclass(frozen=True)
class Tiling:
    """Tile sizes and loop order of a convolution. Sizes are integers or variables that a schedule has sampled."""

    pixels: Any  # pixels of a row in an accumulator tile
    blocks: Any = None  # blocks of `LANES` channels in an accumulator tile; None: one
    rows_first: bool = False  # loop over rows outside of the loop over blocks of channels, else inside
    taps_first: bool = False  # loops over the window's taps outside of the loop over input channels, else inside


def _convolution(sch: Schedule, parallel: bool) -> Schedule | None:
    shape = convolution_shape(sch)
    return None if shape is None else tile_convolution(sch, Tiling(default_pixels(shape[1])), parallel)


def convolution_shape(sch: Schedule) -> tuple[int, int, int] | None:
    """Blocks of channels, pixels of a row and taps of the window of a `direct_conv2d`; None for other kernels.

    Side effect: inlines the element-wise blocks after the convolution.
    """
    sums = [b for b in _blocks(sch) if _name(sch, b) == "conv_acc"]
    if len(sums) != 1:
        return None
    last = _inline_around(sch, sums[0])
    if last is None or any(_iters(sch, last)) or len(sch.get_loops(last)) != 4:
        return None
    _, blocks, _, wide, _ = (int(d) for d in sch.get(sums[0]).writes[0].source.ty.shape)
    *_, ry, rx = (int(sch.get(loop).extent) for loop in sch.get_loops(sums[0]))
    return blocks, wide, ry * rx


def tile_convolution(sch: Schedule, tiling: Tiling, parallel: bool) -> Schedule:
    """Schedule a convolution, to be called after `convolution_shape`: one loop nest, the outer loops parallel."""
    acc = sch.get_sblock("conv_acc")
    last = _blocks(sch)[-1]
    *_, lanes = (int(d) for d in sch.get(acc).writes[0].source.ty.shape)
    channels_first = _channel_axis(sch, acc, last) == 1
    n, c, y, x = sch.get_loops(last) if channels_first else [sch.get_loops(last)[i] for i in (0, 3, 1, 2)]
    outer, *inner = sch.split(c, [None, lanes] if tiling.blocks is None else [None, tiling.blocks, lanes])
    x_outer, x_inner = sch.split(x, [None, tiling.pixels])
    loops = (n, y, x_outer, outer) if tiling.rows_first else (n, outer, y, x_outer)
    sch.reorder(*loops, *inner[:-1], x_inner, inner[-1])
    _pads(sch, acc, parallel)
    sch.compute_at(acc, loops[-1], preserve_unit_loops=True)
    *space, rc, ry, rx = sch.get_loops(acc)[4:]
    reduced = (ry, rx, rc) if tiling.taps_first else (rc, ry, rx)
    sch.reorder(*reduced, *space)
    unrolled = (-2,) if tiling.blocks is None else (-2, -4)  # pixels; blocks of channels
    sch.vectorize(space[-1])
    for k in unrolled:
        sch.unroll(space[k])
    _thread(sch, loops[:2] if tiling.rows_first else loops[:3], parallel)
    clear = sch.get_loops(sch.decompose_reduction(acc, reduced[0]))
    sch.vectorize(clear[-1])
    for k in unrolled:
        sch.unroll(clear[k])
    return sch


def _channel_axis(sch: Schedule, acc, last) -> int:
    """The channel axis of the output (1 or 3), inferred from the shapes of accumulator and output."""
    _, blocks, high, wide, lanes = (int(d) for d in sch.get(acc).writes[0].source.ty.shape)
    out = [int(sch.get(loop).extent) for loop in sch.get_loops(last)]
    return 1 if out[2:] == [high, wide] and (blocks - 1) * lanes < out[1] <= blocks * lanes else 3


def _window(sch: Schedule, parallel: bool) -> Schedule | None:
    """Pools and depthwise convolutions: one row of outputs at a time, loops over taps outside of the row's."""
    reductions = _reductions(sch)
    if len(reductions) != 1:
        return None
    acc = reductions[0]
    axes = _iters(sch, acc)
    if axes[:4] != [False] * 4 or len(sch.get_loops(acc)) != len(axes) or len(axes) < 5:
        return None
    last = _inline_around(sch, acc)
    if last is None:
        return None
    same = _name(sch, last) == _name(sch, acc)
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
    _thread(sch, loops[:3], parallel)
    sch.decompose_reduction(acc, taps[0])
    return sch


def _packed_product(sch: Schedule, parallel: bool) -> Schedule | None:
    """`direct_product`: a tile of rows and columns stays in registers over the whole reduction.

    Independent sums hide the latency of additions; the rows of a tile share the loads of the right operand.
    """
    sums = [b for b in _blocks(sch) if _name(sch, b) == "product_acc"]
    if len(sums) != 1:
        return None
    acc = sums[0]
    last = _inline_around(sch, acc)
    if last is None or any(_iters(sch, last)):
        return None
    *_, lanes = (int(d) for d in sch.get(acc).writes[0].source.ty.shape)
    *outer, row, column = sch.get_loops(last)
    tile = min(int(sch.get(row).extent), _MAX_ROWS)
    j, inside = sch.split(column, [None, lanes])
    i, r = sch.split(row, [None, tile])
    sch.reorder(*outer, j, i, r, inside)
    sch.compute_at(acc, i, preserve_unit_loops=True)
    r, block, lane, depth = sch.get_loops(acc)[len(outer) + 2 :][-4:]
    v, lane = sch.split(lane, [None, LANES])
    sch.reorder(depth, block, r, v, lane)
    sch.vectorize(lane)
    sch.unroll(r)
    sch.unroll(v)
    _thread(sch, (*outer, j), parallel)
    clear = sch.get_loops(sch.decompose_reduction(acc, depth))
    sch.vectorize(clear[-1])
    sch.unroll(clear[-2])
    sch.unroll(clear[-3])
    return sch


def _product(sch: Schedule, parallel: bool) -> Schedule | None:
    """Other products: up to sixteen columns at a time over the whole reduction."""
    reductions = _reductions(sch)
    if len(reductions) != 1 or _iters(sch, reductions[0])[-2:] != [False, True] or any(_iters(sch, reductions[0])[:-1]):
        return None
    acc = reductions[0]
    last = _inline_around(sch, acc)
    if last is None:
        return None
    fused, loops = any(_iters(sch, last)), sch.get_loops(last)
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
    _thread(sch, (*outer, j), parallel)
    sch.vectorize(sch.get_loops(sch.decompose_reduction(acc, depth))[-1])
    return sch


def _elementwise(sch: Schedule, parallel: bool) -> Schedule | None:
    if _reductions(sch):
        return None
    outputs = [b for b in _blocks(sch) if not sch.get_consumers(b)]
    if len(outputs) > 1:  # a split: what lies before its parts is inlined into each of them
        names = [_name(sch, b) for b in outputs]
        for block in _blocks(sch):
            if _name(sch, block) not in names:
                sch.compute_inline(block)
        return sch
    last = _inline_around(sch, None)
    if last is None:
        return None
    loops = sch.get_loops(last)
    if loops and parallel:
        _thread(sch, loops[:-1] if len(loops) > 1 else loops, parallel)
    return sch
