"""Convolutions and products for CUDA as a single matrix product, in the shape tiled by `cuda_product`.

A convolution reads its input as a matrix of a row for every pixel of the result and a column for every tap and channel,
which nobody stores (implicit im2col); weights are packed to the same columns. Rows, columns and results are filled up to
whole tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from math import gcd, prod
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.tirx import all as tir_all
from tvm.tirx import if_then_else

from tvm_cascade.cost.tiles import Extents, Tiles, choose_tiles
from tvm_cascade.staging.kernels.cpu_compute import output_extents

ROWS, PRODUCT = "gemm_rows", "gemm_acc"  # blocks that `cuda_product` schedules, and annotations of the second:
TILES, TF32 = "tiles", "tf32"  # its tiles, and whether it multiplies float32 on tensor cores


def convolution_as_product(
    shape: Sequence[int], layout: str, oihw: np.ndarray, geometry: Sequence[Sequence[int]], multiplied: str
) -> tuple[np.ndarray, Callable[[Any, Any], Any]]:
    """Return the packed weights for a convolution without groups, and the TE function over tensor and weights.

    `shape`: the tensor's, in `layout`. `geometry`: strides, padding and dilation. `multiplied`: as in `cost.tiles`.
    """
    strides, padding, dilation = geometry
    n, _, h, w = (int(shape[layout.index(a)]) for a in "NCHW")
    high, wide = (int(d) for d in output_extents((h, w), oihw.shape[2:], strides, padding, dilation))
    tiles = choose_tiles(Extents(n * high * wide, oihw.shape[0], oihw[0].size, oihw[0, 0].size), multiplied)

    def convolved(x: Any, weight: Any) -> Any:
        return product_conv2d(
            x, weight, oihw.shape[0], oihw.shape[2:], geometry, layout, tiles, tf32=multiplied == "tf32"
        )

    return pack_rows(oihw, tiles), convolved


def dense_as_product(
    shape: Sequence[int], weight: np.ndarray, multiplied: str
) -> tuple[np.ndarray, Callable[[Any, Any], Any]]:
    """Return packed weights and TE function for the product of a tensor with a matrix, as `convolution_as_product`
    does.
    """
    tiles = choose_tiles(Extents(prod(shape[:-1]), weight.shape[1], weight.shape[0]), multiplied)

    def product(x: Any, packed: Any) -> Any:
        return product_dense(x, packed, weight.shape[1], tiles, tf32=multiplied == "tf32")

    return pack_rows(weight, tiles), product


def pack_rows(weight: np.ndarray, tiles: Tiles) -> np.ndarray:
    """Pack weights `[o][i][kh][kw]` or `[depth][columns]` as rows, tap by tap with all channels, padded to whole tiles."""
    rows = weight.transpose(0, 2, 3, 1).reshape(weight.shape[0], -1) if weight.ndim == 4 else weight.T
    more = [(0, -rows.shape[0] % tiles.columns), (0, -rows.shape[1] % tiles.chunk)]
    return np.ascontiguousarray(np.pad(rows, more))


def product_conv2d(
    x: Any,
    weight: Any,
    channels: int,
    window: Sequence[int],
    geometry: Sequence[Sequence[int]],
    layout: str,
    tiles: Tiles,
    tf32: bool = False,
) -> Any:
    """Compute a convolution without groups with a `window` (rows, columns); `weight` is from `pack_rows`.

    `geometry`: strides, padding (top, left, bottom, right) and dilation. The result is in `layout`.
    """
    strides, padding, dilation = geometry
    n, c, h, w = (int(x.shape[layout.index(a)]) for a in "NCHW")
    kh, kw = (int(d) for d in window)
    top, left, bottom, right = (int(p) for p in padding)
    oh, ow = (int(d) for d in output_extents((h, w), (kh, kw), strides, padding, dilation))
    rows, depth, lanes = n * oh * ow, kh * kw * c, gcd(c, 8)

    def read(m: Any, k: Any) -> Any:
        tap, channel = k // lanes // (c // lanes), k // lanes % (c // lanes) * lanes + k % lanes
        b, r, q = m // (oh * ow), m // ow % oh, m % ow
        y = r * strides[0] + tap // kw * dilation[0] - top
        z = q * strides[1] + tap % kw * dilation[1] - left
        within = [m < rows] if rows % tiles.rows else []
        within += [k // lanes < depth // lanes] if depth % tiles.chunk else []
        within += [y >= 0, y < h] if top or bottom else []
        within += [z >= 0, z < w] if left or right else []
        value = x[(b, y, z, channel) if layout == "NHWC" else (b, channel, y, z)]
        return if_then_else(tir_all(*within), value, tirx.const(0, x.dtype)) if within else value

    acc = _product(read, rows, weight, tiles, tf32)
    if layout == "NHWC":
        return te.compute((n, oh, ow, channels), lambda b, r, q, o: acc[(b * oh + r) * ow + q, o], name="gemm_out")
    return te.compute((n, channels, oh, ow), lambda b, o, r, q: acc[(b * oh + r) * ow + q, o], name="gemm_out")


def product_dense(x: Any, weight: Any, columns: int, tiles: Tiles, tf32: bool = False) -> Any:
    """Compute the product of a tensor's last axis with a matrix; `weight` is from `pack_rows`."""
    shape = [int(d) for d in x.shape]
    rows, depth = prod(shape[:-1]), shape[-1]

    def read(m: Any, k: Any) -> Any:
        at = [m // prod(shape[axis + 1 : -1]) % shape[axis] for axis in range(len(shape) - 1)]
        within = [m < rows] if rows % tiles.rows else []
        within += [k < depth] if depth % tiles.chunk else []
        return if_then_else(tir_all(*within), x[(*at, k)], tirx.const(0, x.dtype)) if within else x[(*at, k)]

    acc = _product(read, rows, weight, tiles, tf32)

    def result(*at: Any) -> Any:
        row: Any = 0
        for axis in range(len(shape) - 1):
            row = row * shape[axis] + at[axis]
        return acc[row, at[-1]]

    return te.compute((*shape[:-1], columns), result, name="gemm_out")


def _product(read: Any, rows: int, weight: Any, tiles: Tiles, tf32: bool) -> Any:
    """Build the TE of a product with float32 sums, with `rows` rounded up to whole tiles."""
    columns, depth = (int(d) for d in weight.shape)
    filled = -(-rows // tiles.rows) * tiles.rows
    left: Any = te.compute((filled, depth), read, name=ROWS)
    k = te.reduce_axis((0, depth), "k")
    return te.compute(
        (filled, columns),
        lambda i, j: te.sum(left[i, k].astype("float32") * weight[j, k].astype("float32"), axis=[k]),
        name=PRODUCT,
        attrs={TILES: list(astuple(tiles)), **({TF32: 1} if tf32 else {})},
    )
