"""Attention on CPUs, and other kernels of several reductions along rows, such as softmax and layer normalization.

One loop over tiles of rows holds everything: a tile's scores, the softmax and the product with the values stay in the
nearest cache, and only the result is written. A tile's rows are independent, so a reduction's steps overlap.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from math import prod
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from tvm_cascade.staging.kernels.blocks import (
    MOST_STEPS,
    Schedule,
    consumer_in_order,
    extent,
    inline_around,
    inner_blocks,
    is_uneven,
    iter_kinds,
    last_behind,
    name_of,
    named,
    partial_reductions,
    producer,
    reductions,
    share,
    split_steps,
)
from tvm_cascade.staging.kernels.cpu_compute import LANES

_ROWS = 8  # of a tile
_UNEVEN = 1.05  # more work of tiles that end behind the last row, whose stores are guarded
_ONCE = ("keys_pack", "values_rows")  # blocks that are computed once for a head
_LEAST_LANES = 4  # of a vector of partial sums
_VECTORS = 2  # of a row in an accumulator tile


def attention(sch: Schedule, parallel: bool, most: int) -> Schedule | None:
    """Schedule `softmax(f(q @ k)) @ v` for CPUs: heads are shared by threads, with tiles of rows inside.

    `most`: vectors in an accumulator tile. Returns None for kernels in another form.
    """
    sums = reductions(sch)
    dots = [b for b in sums if name_of(sch, b) == "scores_part"]
    sums = sums[len(dots) :]
    if [name_of(sch, b) for b in sums[:1]] != ["scores_acc"] or len(sums) not in (4, 6):
        return None
    first, second = sums[0], next((b for b in sums if name_of(sch, b) == "mix_acc"), sums[-1])
    softmax = [b for b in sums if name_of(sch, b) not in (name_of(sch, first), name_of(sch, second))]
    last = last_behind(sch, second)
    names = [name_of(sch, b) for b in inner_blocks(sch)]
    kept = {name for name in names if name.removeprefix("T_") in ("softmax_exp", "softmax_norm", *_ONCE)}
    kept |= {name_of(sch, b) for b in (*dots, *sums, last)}
    if not dots:
        kept.add(name_of(sch, producer(sch, first, 0) or sch.cache_read(first, 0, "global")))
    by_vectors = [b for b in sums if name_of(sch, b).endswith("_part")]
    products = {name_of(sch, b) + part for b in (*dots, first, second, *by_vectors) for part in ("_init", "_update")}
    for block in inner_blocks(sch):
        if name_of(sch, block) not in kept:
            sch.compute_inline(block)
    loops = consumer_in_order(sch, second, last)
    if loops is None:
        return None
    *heads, row, column = loops
    sch.reorder(*heads, row, column)
    head = sch.fuse(*heads or [sch.add_unit_loop(row)])  # matrices alone have no heads
    tile, row = sch.split(row, [None, _tile_rows(extent(sch, row), most)])
    lanes = max(d for d in range(1, LANES + 1) if extent(sch, column) % d == 0)
    vectors = _VECTORS if most >= _ROWS * _VECTORS and extent(sch, column) % (lanes * _VECTORS) == 0 else 1
    columns, lane = sch.split(column, [None, lanes * vectors])
    sch.reorder(tile, columns, row, lane)
    sch.compute_at(second, columns, preserve_unit_loops=True)
    once = [named(sch, name) for name in _ONCE if name in names]
    outside = {name_of(sch, b) for b in (*once, second, last)}
    for block in [b for b in inner_blocks(sch) if name_of(sch, b) not in outside][::-1]:
        sch.compute_at(block, tile, preserve_unit_loops=True)
    apart = parallel and is_uneven(extent(sch, head))
    for block in once:
        if apart:
            share(sch, sch.get_loops(block)[:-1], parallel)
        else:
            sch.compute_at(block, head, preserve_unit_loops=True)
    # before reductions are cut from their beginnings, where TVM proves nothing any more
    share(sch, [head, tile] if apart else [head], parallel)
    if dots:
        _dots(sch, dots[0], first)
    else:
        _packed_scores(sch, first)
    for block in softmax:
        (_interleave_vectors if block in by_vectors else _interleave)(sch, block)
    r, c, k = sch.get_loops(second)[-3:]
    block, c = sch.split(c, [1, None])
    sch.reorder(block, r, c, k)
    _clear(sch, second, _tile(sch, (r, block, c, k), lanes))
    return _unguarded(sch, products)


def _packed_scores(sch: Schedule, first: Any) -> None:
    """Schedule a row tile's scores over packed keys."""
    sch.vectorize(sch.get_loops(named(sch, "keys_pack"))[-1])
    _, block, *_ = loops = sch.get_loops(first)[-4:]
    depth = _tile(sch, loops)
    written = sch.cache_write(first, 0, "local")  # else its tile is stored in every step of the reduction
    sch.reverse_compute_at(written, block, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(written)[-1])
    _clear(sch, first, depth)


def _dots(sch: Schedule, part: Any, first: Any) -> None:
    """Schedule scores as dot products of vectors (`attention_dots`)."""
    *_, lane, j = sch.get_loops(part)
    sch.reorder(j, lane)
    sch.vectorize(lane)
    if extent(sch, j) <= MOST_STEPS:
        sch.unroll(j)
    sch.vectorize(sch.get_loops(sch.decompose_reduction(part, j))[-1])
    lane = sch.get_loops(first)[-1]
    sch.unroll(sch.get_loops(sch.decompose_reduction(first, lane))[-1])
    sch.unroll(lane)


def _unguarded(sch: Schedule, names: Set[str]) -> Schedule:
    """Drop the conditions on blocks that compute rows of the last tile which do not exist, from rows of buffers of the
    tile's size; conditions inside a reduction would be asked in each step.
    """
    func = sch.mod["main"]

    def always(realize: Any) -> Any:
        if realize.block.name_hint not in names:
            return realize
        return s_tir.SBlockRealize(realize.iter_values, tirx.const(True, "bool"), realize.block)

    return s_tir.Schedule(func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlockRealize, always))))


def _tile_rows(rows: int, most: int) -> int:
    """Return the rows of a tile, a divisor of all rows if their steps take few more instructions (`tile_rows`)."""

    def instructions(r: int) -> float:
        return -(-rows // r) * (3 * r + 2) * (1 if rows % r == 0 else _UNEVEN)

    return min(range(min(_ROWS, most, rows), 0, -1), key=instructions)


def _tile(sch: Schedule, loops: Sequence[Any], lanes: int = LANES) -> Any:
    """Keep a tile of rows and columns in registers over the whole reduction, whose outer loop is returned.

    `loops`: row, block of columns, column, depth.
    """
    r, block, column, depth = loops
    v, lane = sch.split(column, [None, lanes])
    depth, step = split_steps(sch, depth, MOST_STEPS)
    sch.reorder(block, depth, step, r, v, lane)
    for loop in (step, r, v):
        sch.unroll(loop)
    sch.vectorize(lane)
    return depth


def _clear(sch: Schedule, acc: Any, depth: Any) -> None:
    """Cut the tile's first values from its reduction."""
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


def _interleave_vectors(sch: Schedule, part: Any) -> None:
    """Move the loops over a tile's rows and a vector's lanes inside the reduction of vectors, and unroll the rows."""
    *_, r, lane, j = sch.get_loops(part)
    sch.reorder(j, r, lane)
    sch.vectorize(lane)
    sch.unroll(r)
    *_, r, lane = sch.get_loops(sch.decompose_reduction(part, j))
    sch.vectorize(lane)
    sch.unroll(r)


def rows(sch: Schedule, parallel: bool) -> Schedule | None:
    """Schedule reductions along the last axes of a tensor, and their uses, row by row; None for other kernels.

    A single reduction needs a use by every element of the row, as an RMS normalization has.
    """
    sums = reductions(sch)
    if not sums:
        return None
    last = last_behind(sch, sums[-1])
    outer = {iter_kinds(sch, b).count(False) for b in sums}
    if len(outer) != 1 or any(iter_kinds(sch, last)):
        return None
    (count,) = outer
    loops = sch.get_loops(last)
    if count > len(loops) - (len(sums) == 1) or not all(_same_rows(sch, b, last, count) for b in sums):
        return None
    row = sch.fuse(*loops[:count])
    inner = _inlined_but(sch, sums, last)
    parts = {name_of(sch, b): partial_reductions(sch, b, LANES) for b in sums}
    for block in inner[::-1]:
        sch.compute_at(block, row, preserve_unit_loops=True)
        part = parts.get(name_of(sch, block))
        if part is not None:
            sch.compute_at(part, row, preserve_unit_loops=True)
    share(sch, [row], parallel)  # before reductions are cut from their beginnings, where TVM proves nothing any more
    for part in parts.values():
        if part is not None:
            _sum_by_vectors(sch, part)
    return sch


def sums(sch: Schedule, parallel: bool) -> Schedule | None:
    """Schedule a single reduction along the last axes of a plain tensor, such as a mean of planes; None for other kernels.

    Vectors are as long as the longest that divides the reduction.
    """
    found = reductions(sch)
    if len(found) != 1:
        return None
    (acc,) = found
    kinds, loops = iter_kinds(sch, acc), sch.get_loops(acc)
    count = kinds.count(False)
    if len(loops) != len(kinds) or any(kinds[:count]) or count == 0 or len(sch.get(acc).reads) != 1:
        return None
    reduced = prod(extent(sch, loop) for loop in loops[count:])
    lanes = max(d for d in range(1, LANES + 1) if reduced % d == 0)
    last = inline_around(sch, acc) if lanes >= _LEAST_LANES else None
    if last is None or any(iter_kinds(sch, last)):
        return None
    same = name_of(sch, last) == name_of(sch, acc)
    if not same and len(sch.get_loops(last)) != count:
        return None
    part = partial_reductions(sch, acc, lanes)
    if part is None:
        return None
    row = sch.fuse(*sch.get_loops(last)[:count])
    if not same:
        sch.compute_at(acc, row, preserve_unit_loops=True)
    sch.compute_at(part, row, preserve_unit_loops=True)
    share(sch, [row], parallel)  # before the reduction is cut from its beginning, where TVM proves nothing any more
    _sum_by_vectors(sch, part)
    return sch


def _sum_by_vectors(sch: Schedule, part: Any) -> None:
    """Schedule a block of `partial_reductions`: the lanes, its first axis, inside the reduction, its last."""
    lane, *space, depth = sch.get_loops(part)[-len(iter_kinds(sch, part)) :]
    sch.reorder(*space, depth, lane)
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(sch.decompose_reduction(part, depth))[-1])


def columns(sch: Schedule, parallel: bool) -> Schedule | None:
    """Schedule several reductions along one axis before the last, such as a softmax of channels; None for other kernels.

    Vectors hold columns: the loop over the axis is outside the loops over the axes behind it.
    """
    sums = reductions(sch)
    axis = _reduced_axis(sch, sums[0]) if len(sums) > 1 else None
    if axis is None or any(_reduced_axis(sch, b) != axis for b in sums):
        return None
    last = last_behind(sch, sums[-1])
    loops = sch.get_loops(last)
    beside = [extent(sch, loop) for k, loop in enumerate(loops) if k != axis]
    if any(iter_kinds(sch, last)) or any([extent(sch, v) for v in sch.get_loops(b)[:-1]] != beside for b in sums):
        return None
    inner = _inlined_but(sch, sums, last)
    if axis > 0:
        outer = sch.fuse(*loops[:axis])
        for block in inner[::-1]:
            sch.compute_at(block, outer, preserve_unit_loops=True)
        share(sch, [outer], parallel)
    for block in sums:
        *space, depth = sch.get_loops(block)[-len(beside) - 1 :] if axis == 0 else sch.get_loops(block)[1:]
        sch.reorder(depth, *space)
        sch.decompose_reduction(block, depth)
    return sch


def _reduced_axis(sch: Schedule, acc: Any) -> int | None:
    """Return the only axis along which a reduction reads its operand; None for a reduction along the last or several."""
    kinds, held = iter_kinds(sch, acc), sch.get(acc)
    if kinds.count(True) != 1 or not kinds[-1] or len(held.reads) == 0:
        return None
    region, var = held.reads[0].region, held.iter_vars[-1].var
    axis = next((k for k, r in enumerate(region) if r.min.same_as(var)), None)
    return None if axis is None or axis == len(region) - 1 else axis


def _inlined_but(sch: Schedule, sums: Sequence[Any], last: Any) -> list[Any]:
    """Inline all blocks except the reductions, a softmax's powers and the last block. Return the kept blocks without
    the last.
    """
    kept = {name_of(sch, b) for b in sums} | {name_of(sch, last)}
    kept |= {name_of(sch, b) for b in inner_blocks(sch) if name_of(sch, b).removeprefix("T_") == "softmax_exp"}
    for block in inner_blocks(sch):
        if name_of(sch, block) not in kept:
            sch.compute_inline(block)
    return [b for b in inner_blocks(sch) if name_of(sch, b) in kept - {name_of(sch, last)}]


def _same_rows(sch: Schedule, acc: Any, last: Any, count: int) -> bool:
    """Test whether a reduction has a value for each row of the last block; rows are the first `count` axes."""
    return [extent(sch, loop) for loop in sch.get_loops(acc)[:count]] == [
        extent(sch, loop) for loop in sch.get_loops(last)[:count]
    ]
