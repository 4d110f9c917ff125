"""Convolutions of 3x3 windows on CPUs by Winograd's minimal filtering (Lavin and Gray, CVPR 2016, section 4), packed tensors.

F(m x m, 3 x 3) computes tiles of m x m outputs of t x t inputs, t = m + 2: `A' [(G w G') * (B' x B)] A`. The products
of all tiles are t * t matrix products of fewer multiplications: 2.25 times for m = 2, 4 times for m = 4. Tiles are
computed in blocks so that transformed inputs stay in the cache. Weights are transformed when the program is built.
`cost.winograd` says for which convolutions this is less work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_cascade.staging.kernels.blocks import (
    Schedule,
    default_pixels,
    extent,
    inner_blocks,
    iter_kinds,
    name_of,
    reductions,
    share,
)
from tvm_cascade.staging.kernels.cpu_compute import LANES, PACKED, padded, whole

_INPUT = {  # B' of F(m x m, 3 x 3)
    2: ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    4: (
        (4, 0, -5, 0, 1, 0),
        (0, -4, -4, 1, 1, 0),
        (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0),
        (0, 2, -1, -2, 1, 0),
        (0, 4, 0, -5, 0, 1),
    ),
}
_OUTPUT = {  # A'
    2: ((1, 1, 1, 0), (0, 1, -1, -1)),
    4: ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
}
_WEIGHTS = {  # G
    2: ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}
SIZES = tuple(_INPUT)  # m, of the outputs of a tile
_CACHED = 192 * 1024  # bytes of the transformed inputs of a block of tiles
_FEWEST_TILES = 12  # of a block, where there are as many
_MANY_BLOCKS = 8  # of tiles, from which on threads share blocks, else what is in a block


def pack_winograd(oihw: np.ndarray, m: int) -> np.ndarray:
    """Transform and pack 3x3 OIHW weights as `[oc/v][t * t][ic/v][v of ic][v of oc]`, with t = m + 2; padded with
    zeros.
    """
    o, i, *_ = oihw.shape
    g = np.array(_WEIGHTS[m])
    full = np.zeros((whole(o), whole(i), m + 2, m + 2))
    full[:o, :i] = np.einsum("ak,oikl,bl->oiab", g, oihw.astype("float64"), g)
    parts = full.reshape(-1, LANES, whole(i) // LANES, LANES, (m + 2) ** 2)
    return np.ascontiguousarray(parts.transpose(0, 4, 2, 3, 1).astype(oihw.dtype))


def winograd_conv2d(x: Any, weight: Any, channels: int, padding: Sequence[int], m: int) -> Any:
    """Compute a 3x3 convolution, stride 1, from a packed tensor with batch 1 to `channels`, in plain layout.

    `weight` is from `pack_winograd`, `padding` top, left, bottom, right.
    """
    _, depth, h, w, _ = (int(d) for d in x.shape)
    blocks, t = int(weight.shape[0]), m + 2
    oh, ow = h + padding[0] + padding[2] - 2, w + padding[1] + padding[3] - 2
    high, wide = -(-oh // m), -(-ow // m)
    tiles = high * wide
    block = _tiles_of_a_block(tiles, depth, t)
    several = -(-tiles // block) * block
    around = (*padding[:2], high * m + 2 - h - padding[0], wide * m + 2 - w - padding[1])
    source = padded(x, PACKED, around, "wino_pad")

    def rows(i, p, a, j, v):
        tile: Any = tirx.min(p, tiles - 1) if several > tiles else p
        y, z = tile // wide * m, tile % wide * m + j
        return _row(a, _INPUT[m], lambda k: source[0, i, y + k, z, v])

    half: Any = te.compute((depth, several, t, t, LANES), rows, name="wino_rows")
    inputs: Any = te.compute(
        (t * t, depth, several, LANES),
        lambda e, i, p, v: _row(e % t, _INPUT[m], lambda k: half[i, p, e // t, k, v]),
        name="wino_inputs",
    )
    rc, ri = te.reduce_axis((0, depth), "rc"), te.reduce_axis((0, LANES), "ri")

    def multiply(e, o, p, v):
        return te.sum(inputs[e, rc, p, ri] * weight[o, e, rc, ri, v], axis=[rc, ri])

    acc: Any = te.compute((t * t, blocks, several, LANES), multiply, name="wino_acc")
    folded: Any = te.compute(
        (blocks, several, m, t, LANES),
        lambda o, p, y, b, v: _row(y, _OUTPUT[m], lambda k: acc[k * t + b, o, p, v]),
        name="wino_columns",
    )
    made: Any = te.compute(
        (blocks, several, m, m, LANES),
        lambda o, p, y, z, v: _row(z, _OUTPUT[m], lambda k: folded[o, p, y, k, v]),
        name="wino_outputs",
    )
    return te.compute(
        (1, channels, oh, ow),
        lambda b, c, r, q: made[c // LANES, r // m * wide + q // m, r % m, q % m, c % LANES],
        name="conv_out",
    )


def _tiles_of_a_block(tiles: int, depth: int, t: int) -> int:
    most = max(_FEWEST_TILES, _CACHED // (t * t * depth * LANES * 4))
    return -(-tiles // -(-tiles // most))


def _row(k: Any, matrix: Sequence[Sequence[int]], at: Callable[[int], Any]) -> Any:
    """Compute row `k` of a matrix times the vector `at(0)`, `at(1)`, ...; k's loop is unrolled, so a single row
    remains.
    """
    value = _weighted(matrix[-1], at)
    for i in range(len(matrix) - 2, -1, -1):
        value = tirx.Select(k == i, _weighted(matrix[i], at), value)
    return value


def _weighted(row: Sequence[int], at: Callable[[int], Any]) -> Any:
    """Compute a weighted sum, terms with weight 1 first."""
    terms = sorted(((c, i) for i, c in enumerate(row) if c), key=lambda term: term[0] != 1)
    (first, i), *others = terms
    total = at(i) if first == 1 else at(i) * float(first)
    for c, i in others:
        total = total + at(i) if c == 1 else total - at(i) if c == -1 else total + at(i) * float(c)
    return total


def winograd(sch: Schedule, parallel: bool, most: int) -> Schedule | None:
    """Schedule a `winograd_conv2d` by blocks of tiles, and by blocks of channels inside. `most`: see `cpu_float`."""
    sums = [b for b in inner_blocks(sch) if name_of(sch, b) == "wino_acc"]
    if len(sums) != 1 or len(reductions(sch)) != 1:
        return None
    (acc,) = sums
    last = inner_blocks(sch)[-1]
    if any(iter_kinds(sch, last)) or len(sch.get_loops(last)) not in (4, 5):
        return None
    for block in inner_blocks(sch)[:-1]:
        if not name_of(sch, block).startswith("wino_"):
            sch.compute_inline(block)
    pad, half, inputs, columns, outputs = (
        sch.get_sblock(f"wino_{name}") for name in ("pad", "rows", "inputs", "columns", "outputs")
    )
    depth, _, t, *_ = (int(d) for d in sch.get(half).writes[0].source.ty.shape)
    block, o, tile = _loops(sch, last, t - 2, depth)
    share(sch, sch.get_loops(pad)[1:3], parallel)
    sch.vectorize(sch.get_loops(pad)[-1])
    for stage in (outputs, columns):
        sch.compute_at(stage, tile, preserve_unit_loops=True)
        _in_registers(sch, sch.get_loops(stage)[-3:])
    sch.compute_at(acc, o, preserve_unit_loops=True)
    _products(sch, acc, most)
    sch.compute_at(inputs, block, preserve_unit_loops=True)
    element, i, p, lane = sch.get_loops(inputs)[-4:]
    row, column = sch.split(element, [t, t])
    sch.reorder(i, p, row, column, lane)
    _in_registers(sch, (row, column, lane))
    sch.compute_at(half, p, preserve_unit_loops=True)
    _in_registers(sch, sch.get_loops(half)[-3:])
    if parallel:
        for loop in (block,) if extent(sch, block) >= _MANY_BLOCKS else (sch.get_loops(inputs)[-5], o):
            sch.parallel(loop)
    clear = sch.decompose_reduction(acc, sch.get_loops(acc)[-4])
    _in_registers(sch, sch.get_loops(clear)[-2:])
    return sch


def _loops(sch: Schedule, last: Any, m: int, depth: int) -> tuple[Any, Any, Any]:
    """Order the loops over the output: blocks of tiles, blocks of channels, tiles; loops inside a tile are unrolled.

    `depth`: blocks of input channels.
    """
    loops = sch.get_loops(last)
    packed = len(loops) == 5
    if packed:
        n, o, r, q, lane = loops
    else:
        n, c, r, q = loops
        o, lane = sch.split(c, [None, LANES])
    tiles = -(-extent(sch, r) // m) * -(-extent(sch, q) // m)
    high, y = sch.split(r, [None, m])
    wide, z = sch.split(q, [None, m])
    sch.reorder(n, high, wide, o, y, z, lane)
    outer, tile = sch.split(sch.fuse(n, high, wide), [None, _tiles_of_a_block(tiles, depth, m + 2)])
    sch.reorder(outer, o, tile, y, z, lane)
    if packed:
        _in_registers(sch, (y, z, lane))
    return outer, o, tile


def _products(sch: Schedule, acc: Any, most: int) -> None:
    """Tiles of registers over all input channels."""
    element, o, p, lane, rc, ri = sch.get_loops(acc)[-6:]
    outer, tile = sch.split(p, [None, default_pixels(extent(sch, p), most)])
    sch.reorder(element, o, outer, rc, ri, tile, lane)
    _in_registers(sch, (tile, lane))


def _in_registers(sch: Schedule, loops: Sequence[Any]) -> None:
    """Unroll all loops but the last, which is over a vector."""
    *several, lane = loops
    sch.vectorize(lane)
    for loop in several:
        sch.unroll(loop)
