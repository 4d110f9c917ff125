"""Attention on CPUs, and other kernels of several reductions along rows, such as softmax and layer normalization.

One loop over tiles of rows holds everything: a tile's scores, the softmax and the product with the values stay in the
nearest cache, and only the result is written. A tile's rows are independent, so a reduction's steps overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm_cascade.staging.kernels.blocks import (
    Schedule,
    consumer_in_order,
    extent,
    inner_blocks,
    iter_kinds,
    last_behind,
    name_of,
    named,
    producer,
    reductions,
    share,
)
from tvm_cascade.staging.kernels.cpu_compute import LANES

_ROWS = 8  # of a tile
_VECTORS = 2  # of a row in an accumulator tile


def attention(sch: Schedule, parallel: bool, most: int) -> Schedule | None:
    """Schedule `softmax(f(q @ k)) @ v` for CPUs: heads are shared by threads, with tiles of rows inside.

    `most`: vectors in an accumulator tile. Returns None for kernels in another form.
    """
    sums = reductions(sch)
    if [name_of(sch, b) for b in sums[:1]] != ["scores_acc"] or len(sums) != 4:
        return None
    first, largest, total, second = sums
    last = last_behind(sch, second)
    kept = {name_of(sch, b) for b in (named(sch, "softmax_exp"), named(sch, "softmax_norm"), last)}
    kept |= {"keys_pack", *(name_of(sch, b) for b in sums)}
    query = producer(sch, first, 0)
    if query is not None:
        kept.add(name_of(sch, query))
    for block in inner_blocks(sch):
        if name_of(sch, block) not in kept:
            sch.compute_inline(block)
    loops = consumer_in_order(sch, second, last)
    if loops is None:
        return None
    *heads, row, column = loops
    sch.reorder(*heads, row, column)
    head = sch.fuse(*heads)
    tile, _ = sch.split(row, [None, min(_ROWS, most, extent(sch, row))])
    inner = [second, named(sch, "softmax_norm"), total, named(sch, "softmax_exp"), largest, first]
    for block in [*inner, *([] if query is None else [query])]:
        sch.compute_at(block, tile, preserve_unit_loops=True)
    sch.compute_at(named(sch, "keys_pack"), head, preserve_unit_loops=True)
    share(sch, [head], parallel)  # before reductions are cut from their beginnings, where TVM proves nothing any more
    sch.vectorize(sch.get_loops(named(sch, "keys_pack"))[-1])
    _product(sch, first, sch.get_loops(first)[-4:])
    for block in (largest, total):
        _interleave(sch, block)
    r, c, k = sch.get_loops(second)[-3:]
    lanes = max(d for d in range(1, LANES + 1) if extent(sch, c) % d == 0)
    vectors = _VECTORS if most >= _ROWS * _VECTORS and extent(sch, c) % (lanes * _VECTORS) == 0 else 1
    block, lane = sch.split(c, [None, lanes * vectors])
    sch.reorder(block, r, lane, k)
    _product(sch, second, (r, block, lane, k), lanes)
    return sch


def _product(sch: Schedule, acc: Any, loops: Sequence[Any], lanes: int = LANES) -> None:
    """Keep a tile of rows and columns in registers over the whole reduction. `loops`: row, block of columns, column,
    depth.
    """
    r, block, column, depth = loops
    v, lane = sch.split(column, [None, lanes])
    sch.reorder(block, depth, r, v, lane)
    for loop in (r, v):
        sch.unroll(loop)
    sch.vectorize(lane)
    *_, r, v, lane = sch.get_loops(sch.decompose_reduction(acc, depth))
    sch.vectorize(lane)
    for loop in (r, v):
        sch.unroll(loop)


def _interleave(sch: Schedule, acc: Any) -> None:
    """Move the loop over a tile's rows inside the reduction of a row, and unroll both."""
    *_, r, k = sch.get_loops(acc)
    sch.reorder(k, r)
    sch.unroll(r)
    sch.unroll(sch.get_loops(sch.decompose_reduction(acc, k))[-1])


def rows(sch: Schedule, parallel: bool) -> Schedule | None:
    """Schedule several reductions along the last axes of a tensor, and their uses, row by row; None for other kernels."""
    sums = reductions(sch)
    if len(sums) < 2:
        return None
    last = last_behind(sch, sums[-1])
    outer = {iter_kinds(sch, b).count(False) for b in sums}
    if len(outer) != 1 or any(iter_kinds(sch, last)):
        return None
    (count,) = outer
    loops = sch.get_loops(last)
    if count >= len(loops) or not all(_same_rows(sch, b, last, count) for b in sums):
        return None
    kept = {name_of(sch, b) for b in sums} | {name_of(sch, last)}
    kept |= {name_of(sch, b) for b in inner_blocks(sch) if name_of(sch, b).removeprefix("T_") == "softmax_exp"}
    for block in inner_blocks(sch):
        if name_of(sch, block) not in kept:
            sch.compute_inline(block)
    row = sch.fuse(*loops[:count])
    for block in [b for b in inner_blocks(sch) if name_of(sch, b) in kept - {name_of(sch, last)}][::-1]:
        sch.compute_at(block, row, preserve_unit_loops=True)
    share(sch, [row], parallel)
    return sch


def _same_rows(sch: Schedule, acc: Any, last: Any, count: int) -> bool:
    """Test whether a reduction has a value for each row of the last block; rows are the first `count` axes."""
    return [extent(sch, loop) for loop in sch.get_loops(acc)[:count]] == [
        extent(sch, loop) for loop in sch.get_loops(last)[:count]
    ]
