"""Products of integers for CPUs: activations that are quantized as the network runs, and int8 weights.

A kernel sums in int32, exactly, and writes float32. A step multiplies as many numbers as the processor's instruction sums up:
four with VNNI (vpdpbusd) and NEON's dot products (sdot, on int8), two with AVX2 (vpmaddwd, on int16), else one. No step
saturates, unlike vpmaddubsw.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_cascade.staging.kernels.blocks import (
    Schedule,
    extent,
    inline_around,
    inner_blocks,
    iter_kinds,
    name_of,
    named,
    reductions,
    share,
    split_steps,
)
from tvm_cascade.staging.kernels.cpu_compute import LANES, tile_rows
from tvm_cascade.staging.kernels.dots import AVX2, NEON, PLAIN, VNNI, Dot

_DOTS = (VNNI, AVX2, NEON, PLAIN)
_SUM, _WIDE = "integer_acc", "integer_wide"
_HALF = 128  # between uint8 and int8
_VNNI_ROWS = 8  # of a tile with two vectors of sums a row


def pack_integers(weights: np.ndarray, dot: Dot, rows: int) -> np.ndarray:
    """Pack an int8 matrix (depth, columns) as `[columns/v][depth/step][v][step]` for a product with `rows` rows.

    A tile has v columns; those behind the last are zeros. A single row has more of them, which share the reads of the row.
    """
    (depth, columns), step = weights.shape, dot.step
    vectors = 4 if rows == 1 else 2 if dot == VNNI else 1
    lanes = min(vectors * LANES, -(-columns // LANES) * LANES)
    full = np.zeros((-(-depth // step) * step, -(-columns // lanes) * lanes), np.int8)
    full[:depth, :columns] = weights
    tiles = full.reshape(-1, step, full.shape[1] // lanes, lanes)
    return np.ascontiguousarray(tiles.transpose(2, 0, 3, 1))


def integer_product(x: Any, zero: Any, scale: Any, weight: Any, sums: Any, factors: Any, reads: str = "uint8") -> Any:
    """Compute `(x - zero) @ w * (scale * factors)` in float32 for uint8 `x` [..., rows, depth].

    `weight` is w packed by `pack_integers`, `sums` int32 and `factors` float32 have a number for each column. The depth is a
    multiple of the step. `reads`: type that the processor multiplies (`Dot`).
    """
    *outer, rows, _ = (int(d) for d in x.shape)
    blocks, deep, lanes, step = (int(d) for d in weight.shape)
    tile = integer_rows(rows, next(d for d in _DOTS if (d.step, d.reads) == (step, reads)))
    filled = -(-rows // tile) * tile
    less = _HALF if reads == "int8" else 0

    def converted(*at: Any) -> Any:
        return (x[at].astype("int16") - tirx.const(less, "int16")).astype(reads) if less else x[at].astype(reads)

    wide: Any = x if reads == "uint8" else te.compute(x.shape, converted, name=_WIDE)
    k: Any = te.reduce_axis((0, deep), "k")
    s: Any = te.reduce_axis((0, step), "s")

    def multiply(*at: Any) -> Any:
        *head, row, j, v = at
        row = row if filled == rows else tirx.min(row, rows - 1)
        left, right = wide[(*head, row, k * step + s)], weight[j, k, v, s]
        return te.sum(left.astype("int32") * right.astype("int32"), axis=[k, s])

    acc: Any = te.compute((*outer, filled, blocks, lanes), multiply, name=_SUM)

    def result(*at: Any) -> Any:
        *head, row, c = at
        total = acc[(*head, row, c // lanes, c % lanes)] - (zero[()].astype("int32") - less) * sums[c]
        return total.astype("float32") * (scale[()] * factors[c])

    return te.compute((*outer, rows, sums.shape[0]), result, name="integer_out")


def integer_rows(rows: int, dot: Dot) -> int:
    """Return the rows of an accumulator tile."""
    if dot != VNNI:
        return tile_rows(rows)
    tiles = -(-rows // _VNNI_ROWS)
    return -(-rows // tiles)


def integers(sch: Schedule, parallel: bool) -> Schedule | None:
    """Schedule an `integer_product`: a tile of rows and columns stays in registers over the whole reduction."""
    sums = [b for b in inner_blocks(sch) if name_of(sch, b) == _SUM]
    if len(sums) != 1 or len(reductions(sch)) != 1:
        return None
    acc = sums[0]
    left, right = (region.source.ty for region in sch.get(acc).reads)
    *_, lanes, step = (int(d) for d in right.shape)
    dot = next(d for d in _DOTS if (d.step, d.reads) == (step, str(left.dtype)))
    last = inline_around(sch, acc, (_WIDE,))
    if last is None or any(iter_kinds(sch, last)):
        return None
    *outer, row, column = sch.get_loops(last)
    i, r = sch.split(row, [None, integer_rows(extent(sch, row), dot)])
    j, inside = sch.split(column, [None, lanes])
    sch.reorder(*outer, j, i, r, inside)
    if dot.reads != "uint8":
        *rows, depth = sch.get_loops(named(sch, _WIDE))
        sch.vectorize(split_steps(sch, depth, LANES)[-1])
        share(sch, rows, parallel)
    sch.compute_at(acc, i, preserve_unit_loops=True)
    r, block, lane, k, s = sch.get_loops(acc)[len(outer) + 2 :][-5:]
    v, lane = sch.split(lane, [None, dot.lanes])
    k, inner = split_steps(sch, k, 2)
    sch.reorder(k, inner, block, r, v, *((lane, s) if dot.intrinsic else (s, lane)))
    if not dot.intrinsic:
        sch.vectorize(lane)
    for loop in (inner, block, r, v):
        sch.unroll(loop)
    share(sch, (*outer, j), parallel)
    clear = sch.get_loops(sch.decompose_reduction(acc, k))
    sch.vectorize(clear[-1])
    for loop in clear[-4:-1]:
        sch.unroll(loop)
    if dot.intrinsic:
        from tvm_cascade.staging.kernels.cpu_dots import register  # TVMScript takes half a second to read

        register()
        sch.tensorize(lane, dot.intrinsic)
    return sch


def dynamic_range(x: Any) -> Sequence[Any]:
    """Compute scale and zero point (uint8) of all values of `x`, as ONNX's DynamicQuantizeLinear does; scale 1 for zeros."""
    shape, total = [int(d) for d in x.shape], prod(int(d) for d in x.shape)
    lanes = next(n for n in (4 * LANES, LANES, 1) if total % n == 0)

    def flat(at: Any) -> Any:
        index = []
        for size in reversed(shape):
            index.append(tirx.floormod(at, size))
            at = tirx.floordiv(at, size)
        return x[tuple(reversed(index))]

    def reduced(reducer: Any, name: str) -> Any:
        depth: Any = te.reduce_axis((0, total // lanes), "d")
        lane: Any = te.reduce_axis((0, lanes), "l")
        part: Any = te.compute((lanes,), lambda v: reducer(flat(depth * lanes + v), axis=[depth]), name=f"{name}_part")
        return te.compute((1,), lambda _: reducer(part[lane], axis=[lane]), name=name)

    high: Any = reduced(te.max, "range_max")
    low: Any = reduced(te.min, "range_min")
    nought: Any = tirx.const(0, "float32")

    def steps() -> Any:
        most: Any = tirx.max(high[0], nought)
        width = most - tirx.min(low[0], nought)
        return tirx.Select(width.equal(nought), tirx.const(1, "float32"), width / tirx.const(255, "float32"))

    scale: Any = te.compute((), steps, name="range_scale")

    def point() -> Any:
        exact: Any = nought - tirx.min(low[0], nought) / scale[()]
        return tirx.nearbyint(tirx.min(tirx.max(exact, nought), tirx.const(255, "float32"))).astype("uint8")

    return [scale, te.compute((), point, name="range_zero")]


def dynamic_quantize(x: Any, scale: Any, zero: Any) -> Any:
    """Quantize `x` to uint8; ties are rounded to even numbers."""

    def value(*at: Any) -> Any:
        point = zero[()].astype("float32")
        exact = tirx.min(tirx.max(x[at] / scale[()], -point), tirx.const(255, "float32") - point)
        return (tirx.nearbyint(exact) + point).astype("int32").astype("uint8")

    return te.compute(x.shape, value, name="quantized")


def ranges(sch: Schedule, parallel: bool) -> Schedule | None:
    """Schedule a `dynamic_range`: vectors of largest and smallest values first, on one core."""
    names = [name_of(sch, b) for b in reductions(sch)]
    if names != ["range_max_part", "range_max", "range_min_part", "range_min"]:
        return None
    for name in names[::2]:
        part = named(sch, name)
        lane, depth = sch.get_loops(part)
        sch.reorder(depth, lane)
        sch.vectorize(lane)
        sch.vectorize(sch.get_loops(sch.decompose_reduction(part, depth))[-1])
    return sch
