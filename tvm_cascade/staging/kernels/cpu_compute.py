"""Float32 operators for CPUs as TE computes over packed weights and plain or packed tensors.

A tensor `[n][channels][h][w]` is packed as `[n][channels/v][h][w][v]`, v the lanes of a vector. Computes read both
layouts and write the plain layout; `pack` behind a compute and `unpack` in front are fused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.tirx import all as tir_all
from tvm.tirx import if_then_else

LANES = 16  # float32 in a 512-bit vector; two instructions on 256-bit machines
PACKED = f"NCHW{LANES}c"
ROWS = (
    6  # channels in an accumulator tile of `direct_pointwise`: with `LANES` pixels, three quarters of AVX's registers
)
WIDE_LANES = 24  # columns in an accumulator tile of a product of many rows: three of AVX's registers
_WIDE_ROWS = 4  # of that tile, which has twelve sums
_AVX = 6  # vectors of `LANES` that AVX has registers for, in an accumulator tile


def pack(x: Any) -> Any:
    """Convert a plain tensor `[n][c][h][w]` to packed layout; c is a multiple of `LANES` (see `whole`)."""
    n, c, h, w = x.shape
    return te.compute((n, c // LANES, h, w, LANES), lambda b, o, r, q, v: x[b, o * LANES + v, r, q], name="pack")


def whole(channels: int) -> int:
    """Round `channels` up to whole vectors of `LANES`."""
    return -(-channels // LANES) * LANES


def unpack(x: Any) -> Any:
    """Convert a packed tensor to plain layout, with all channels of the vectors."""
    n, o, h, w, v = x.shape
    return te.compute((n, o * v, h, w), lambda b, c, r, q: x[b, c // LANES, r, q, c % LANES], name="unpack")


def direct_conv2d(
    x: Any,
    weight: Any,
    channels: int,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    layout: str = "NCHW",
) -> Any:
    """Compute a convolution without groups; `weight` is from `pack_weights`, `padding` top, left, bottom, right.

    `layout` of `x`: NCHW, NHWC or `PACKED`. The result is NCHW, or NHWC for NHWC.
    """
    blocks, _, kh, kw, depth, lanes = (int(d) for d in weight.shape)
    h, w = (int(x.shape[layout.index(a)]) for a in "HW")
    oh, ow = output_extents((h, w), (kh, kw), strides, padding, dilation)
    source = padded(x, layout, padding, "conv_pad") if any(padding) else x
    axes: Any = [
        te.reduce_axis((0, e), name)
        for e, name in ((int(weight.shape[1]), "rc"), (kh, "ry"), (kw, "rx"), (depth, "ri"))
        if name != "ri" or layout == PACKED
    ]

    def multiply(b, o, r, q, v):
        rc, ry, rx, *inside = axes
        y, z = r * strides[0] + ry * dilation[0], q * strides[1] + rx * dilation[1]
        at = (b, y, z, rc) if layout == "NHWC" else (b, rc, y, z, *inside)
        return te.sum(source[at] * weight[o, rc, ry, rx, inside[0] if inside else 0, v], axis=axes)

    acc: Any = te.compute((x.shape[0], blocks, oh, ow, lanes), multiply, name="conv_acc")

    def result(b, c, r, q):
        return acc[b, c // lanes, r, q, c % lanes]

    if layout == "NHWC":
        return te.compute((x.shape[0], oh, ow, channels), lambda b, r, q, c: result(b, c, r, q), name="conv_out")
    return te.compute((x.shape[0], channels, oh, ow), result, name="conv_out")


def takes_pixels(shape: Sequence[int], channels: int) -> bool:
    """Test whether a convolution of a single tap of a plain input to `channels` is faster as `direct_pointwise`, by pixel
    vectors.

    `shape` is the input's in NCHW; the pixels have to fill a vector. Counted are steps of vectors: pixels are filled up to
    pairs of vectors and copied, and channels are filled up to tiles; the kernel with vectors of channels fills up these alone.
    """
    depth, pixels = int(shape[1]), int(shape[2]) * int(shape[3])
    by_pixels = 2 * -(-pixels // (2 * LANES)) * ROWS * -(-channels // ROWS) * depth + pixels * depth // LANES
    return pixels >= LANES and by_pixels <= pixels * depth * whole(channels) // LANES


def direct_pointwise(x: Any, weight: Any, channels: int) -> Any:
    """Compute a convolution of one tap, stride 1, without padding, from NCHW to NCHW; `weight` is from `pack_rows`.

    Vectors hold pixels (at least one vector), so channels need no padding. The kernel is a product of the weight matrix
    with a matrix of pixels, copied tile by tile (Goto and van de Geijn, ACM TOMS 2008).
    """
    n, _, high, wide = (int(d) for d in x.shape)  # of channels there may be more, which fill up a vector
    pixels, (blocks, depth, rows) = high * wide, (int(d) for d in weight.shape)
    k: Any = te.reduce_axis((0, depth), "k")

    def pixel(b, t, c, v):
        at = t * LANES + v
        value = x[b, c, tirx.floordiv(at, wide), tirx.floormod(at, wide)]
        return value if pixels == tiles * LANES else if_then_else(at < pixels, value, 0.0)

    tiles = 2 * -(-pixels // (2 * LANES))  # schedules take one or two at a time, without a condition
    tile: Any = te.compute((n, tiles, depth, LANES), pixel, name="point_pad")

    def multiply(b, o, r, at):
        return te.sum(tile[b, tirx.floordiv(at, LANES), k, tirx.floormod(at, LANES)] * weight[o, k, r], axis=[k])

    acc: Any = te.compute((n, blocks, rows, tiles * LANES), multiply, name="point_acc")

    def result(b, c, r, q):
        return acc[b, c // rows, c % rows, r * wide + q]

    return te.compute((n, channels, high, wide), result, name="point_out")


def direct_depthwise(
    x: Any, weight: Any, strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Any:
    """Compute a depthwise convolution of a packed tensor; `weight` is from `pack_taps`."""
    n, blocks, h, w, lanes = (int(d) for d in x.shape)
    kh, kw = (int(d) for d in weight.shape[1:3])
    oh, ow = output_extents((h, w), (kh, kw), strides, padding, dilation)
    source = padded(x, PACKED, padding, "taps_pad") if any(padding) else x
    axes: Any = [te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")]

    def multiply(b, o, r, q, v):
        ry, rx = axes
        y, z = r * strides[0] + ry * dilation[0], q * strides[1] + rx * dilation[1]
        return te.sum(source[b, o, y, z, v] * weight[o, ry, rx, v], axis=axes)

    acc: Any = te.compute((n, blocks, oh, ow, lanes), multiply, name="taps_acc")
    return te.compute(
        (n, blocks * lanes, oh, ow), lambda b, c, r, q: acc[b, c // lanes, r, q, c % lanes], name="taps_out"
    )


def output_extents(
    size: Sequence[int], window: Sequence[int], strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """Compute the rows and columns of a convolution's output."""
    return tuple(
        (size[a] + padding[a] + padding[a + 2] - (window[a] - 1) * dilation[a] - 1) // strides[a] + 1 for a in (0, 1)
    )


def padded(x: Any, layout: str, padding: Sequence[int], name: str) -> Any:
    """Compute `x` with zeros around rows and columns; `padding`: top, left, bottom, right."""
    top, left, bottom, right = padding
    axis = layout.index("H")
    before, (h, w), behind = x.shape[:axis], x.shape[axis : axis + 2], x.shape[axis + 2 :]

    def value(*at):
        r, q = at[axis] - top, at[axis + 1] - left
        within = tir_all(r >= 0, r < h, q >= 0, q < w)
        return if_then_else(within, x[(*at[:axis], r, q, *at[axis + 2 :])], 0.0)

    return te.compute((*before, h + top + bottom, w + left + right, *behind), value, name=name)


def pack_weights(oihw: np.ndarray, depth: int = 1) -> np.ndarray:
    """Pack OIHW weights as `[oc/v][ic/depth][kh][kw][depth][v]`, with v = `LANES`; the last blocks are filled with
    zeros.
    """
    o, i, h, w = oihw.shape
    deep = -(-i // depth)
    full = np.zeros((whole(o), deep * depth, h, w), oihw.dtype)
    full[:o, :i] = oihw
    parts = full.reshape(-1, LANES, deep, depth, h, w)
    return np.ascontiguousarray(parts.transpose(0, 2, 4, 5, 3, 1))


def pack_rows(oihw: np.ndarray) -> np.ndarray:
    """Pack pointwise weights `[o][i][1][1]` as `[o/r][i][r]`, with r = `ROWS`; the last block is filled with zeros."""
    o, i = oihw.shape[:2]
    full = np.zeros((-(-o // ROWS) * ROWS, i), oihw.dtype)
    full[:o] = oihw[:, :, 0, 0]
    return np.ascontiguousarray(full.reshape(-1, ROWS, i).transpose(0, 2, 1))


def pack_taps(oihw: np.ndarray) -> np.ndarray:
    """Pack depthwise weights `[c][1][kh][kw]` as `[c/v][kh][kw][v]`, with v = `LANES`; the last block is filled with
    zeros.
    """
    c, _, h, w = oihw.shape
    full = np.zeros((whole(c), h, w), oihw.dtype)
    full[:c] = oihw[:, 0]
    return np.ascontiguousarray(full.reshape(-1, LANES, h, w).transpose(0, 2, 3, 1))


def direct_product(x: Any, weight: Any, columns: int) -> Any:
    """Compute `x @ w` for `x` [..., rows, depth]; `weight` is w packed by `pack_columns`.

    Rows are summed in whole tiles of `tile_rows`; rows that fill up the last tile repeat the last row and are not read.
    """
    *outer, rows, depth = (int(d) for d in x.shape)
    blocks, _, lanes = (int(d) for d in weight.shape)
    tile = tile_rows(rows, lanes)
    filled = -(-rows // tile) * tile
    k: Any = te.reduce_axis((0, depth), "k")

    def multiply(*at):
        *head, row, j, v = at
        return te.sum(x[(*head, row if filled == rows else tirx.min(row, rows - 1), k)] * weight[j, k, v], axis=[k])

    acc: Any = te.compute((*outer, filled, blocks, lanes), multiply, name="product_acc")
    return te.compute(
        (*outer, rows, columns), lambda *at: acc[(*at[:-1], at[-1] // lanes, at[-1] % lanes)], name="product_out"
    )


def tile_rows(rows: int, lanes: int = LANES, most: int = ROWS) -> int:
    """Return the rows in a product's accumulator tile with the fewest instructions, at most `ROWS` or `most`."""
    most = _WIDE_ROWS if lanes == WIDE_LANES else min(most, ROWS)
    return min(range(min(rows, most), 0, -1), key=lambda r: -(-rows // r) * _instructions(r, lanes))


def _instructions(rows: int, lanes: int) -> int:
    """Return the instructions per step of a tile in 256-bit registers: products, row broadcasts, column loads."""
    registers = lanes // 8
    return rows * registers + rows + registers


def product_lanes(rows: int, columns: int, most: int | None = None) -> int:
    """Return the columns in an accumulator tile of a product, with `most` vectors of `LANES` in the tile.

    They are `LANES`; with AVX's registers `WIDE_LANES`, if that takes fewer instructions. For a single row the sums of four
    times `LANES` hide the latency of additions: of two blocks, if there are pairs of blocks, as a processor fetches two
    streams of weights from memory faster than one.
    """
    if rows == 1:
        return LANES * 2 if -(-columns // (LANES * 2)) % 2 == 0 else min(LANES * 4, whole(columns))

    def instructions(lanes: int) -> int:
        tile = tile_rows(rows, lanes)
        return -(-columns // lanes) * -(-rows // tile) * _instructions(tile, lanes)

    return min((LANES, WIDE_LANES), key=instructions) if most == _AVX else LANES


def pack_columns(weight: np.ndarray, rows: int, most: int | None = None) -> np.ndarray:
    """Pack a right operand (depth, columns) as `[columns/v][depth][v]`, so a tile of `rows` rows reads contiguously.

    v is `product_lanes`.
    """
    depth, columns = weight.shape
    lanes = product_lanes(rows, columns, most)
    blocks = -(-columns // lanes)
    full = np.zeros((depth, blocks * lanes), weight.dtype)
    full[:, :columns] = weight
    return np.ascontiguousarray(full.reshape(depth, blocks, lanes).transpose(1, 0, 2))


def attention_scores(q: Any, k: Any, filled: int | None = None) -> Any:
    """Compute `q @ k` for q [..., rows, depth] and k [..., depth, columns] with equal leading axes; packs k by column
    vectors.

    `filled`: columns of the result, `whole(columns)`; columns that fill up the last vector are zeros. None: no such columns.
    """
    *heads, depth, columns = (int(d) for d in k.shape)
    several = [int(d) for d in q.shape[:-2]]
    blocks = whole(columns) // LANES

    def key(*at):
        *head, j, d, v = at
        column = j * LANES + v
        return if_then_else(column < columns, k[(*head, d, column)], 0.0)

    keys: Any = te.compute((*heads, blocks, depth, LANES), key, name="keys_pack")
    axis: Any = te.reduce_axis((0, depth), "d")

    def multiply(*at):
        *head, r, j, v = at
        return te.sum(q[(*head, r, axis)] * keys[(*head, j, axis, v)], axis=[axis])

    acc: Any = te.compute((*several, q.shape[-2], blocks, LANES), multiply, name="scores_acc")
    return te.compute(
        (*several, q.shape[-2], filled or columns),
        lambda *at: acc[(*at[:-1], at[-1] // LANES, at[-1] % LANES)],
        name="scores",
    )


def attention_dots(q: Any, k: Any, filled: int | None = None) -> Any:
    """Compute `q @ k` as `attention_scores` does, for few rows and k stored with contiguous depth, whole vectors of `LANES`.

    Keys are read once for every row where they lie: packing would take more instructions than all products.
    """
    *heads, depth, columns = (int(d) for d in k.shape)
    rows = int(q.shape[-2])
    j: Any = te.reduce_axis((0, depth // LANES), "j")
    lane: Any = te.reduce_axis((0, LANES), "l")

    def multiply(*at: Any) -> Any:
        *head, r, c, v = at
        d = j * LANES + v
        return te.sum(q[(*head, r, d)] * k[(*head, d, c)], axis=[j])

    parts: Any = te.compute((*heads, rows, columns, LANES), multiply, name="scores_part")
    acc: Any = te.compute(
        (*heads, rows, columns), lambda *at: te.sum(parts[(*at, lane)], axis=[lane]), name="scores_acc"
    )

    def score(*at: Any) -> Any:
        return acc[at] if filled in (None, columns) else if_then_else(at[-1] < columns, acc[at], 0.0)

    return te.compute((*heads, rows, filled or columns), score, name="scores")


def attention_mix(scores: Any, values: Any) -> Any:
    """Compute `softmax(scores) @ values` for scores [..., rows, whole(columns)] and values [..., columns, depth].

    Largest values and sums of a row are vectors first. The result, and no weight, is divided by the sum.
    """
    *rows, filled = (int(d) for d in scores.shape)
    *heads, columns, depth = (int(d) for d in values.shape)

    def inside(s: Any, value: Any, otherwise: float) -> Any:
        return value if filled == columns else tirx.Select(s < columns, value, tirx.const(otherwise, "float32"))

    def by_vectors(reducer: Any, value: Any, name: str) -> Any:
        j: Any = te.reduce_axis((0, filled // LANES), "j")
        lane: Any = te.reduce_axis((0, LANES), "l")

        def part(*at: Any) -> Any:
            return reducer(value(*at[:-1], j * LANES + at[-1]), axis=[j])

        parts: Any = te.compute((*rows, LANES), part, name=f"{name}_part")
        return te.compute(rows, lambda *at: reducer(parts[(*at, lane)], axis=[lane]), name=name)

    largest = by_vectors(te.max, lambda *at: inside(at[-1], scores[at], -float("inf")), "mix_max")
    powers: Any = te.compute(
        scores.shape,
        lambda *at: tirx.exp(inside(at[-1], scores[at] - largest[at[:-1]], -float("inf"))),
        name="softmax_exp",
    )
    total = by_vectors(te.sum, lambda *at: powers[at], "mix_sum")
    if filled != columns:
        values = te.compute(
            (*heads, filled, depth),
            lambda *at: if_then_else(at[-2] < columns, values[at], 0.0),
            name="values_rows",
        )
    k: Any = te.reduce_axis((0, filled), "k")

    def multiply(*at: Any) -> Any:
        *head, r, c = at
        return te.sum(powers[(*head, r, k)] * values[(*head, k, c)], axis=[k])

    acc: Any = te.compute((*rows, depth), multiply, name="mix_acc")
    return te.compute((*rows, depth), lambda *at: acc[at] / total[at[:-1]], name="mix")


def softmax(x: Any) -> Any:
    """Compute the softmax over the last axis."""
    *rows, columns = x.shape
    r1, r2 = (te.reduce_axis((0, columns), "s") for _ in range(2))
    largest: Any = te.compute(rows, lambda *at: te.max(x[(*at, r1)], axis=[r1]), name="softmax_maxelem")
    powers: Any = te.compute(x.shape, lambda *at: tirx.exp(x[at] - largest[at[:-1]]), name="softmax_exp")
    total: Any = te.compute(rows, lambda *at: te.sum(powers[(*at, r2)], axis=[r2]), name="softmax_expsum")
    return te.compute(x.shape, lambda *at: powers[at] / total[at[:-1]], name="softmax_norm")
