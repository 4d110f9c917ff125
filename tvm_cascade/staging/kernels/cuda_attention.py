"""Attention on CUDA as a single kernel: a thread block for some rows of a head, with scores in shared memory."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tvm import s_tir
from tvm.tirx import PrimFunc

from tvm_cascade.errors import GraphError
from tvm_cascade.parallel.attention import MOST_COLUMNS
from tvm_cascade.staging.kernels.blocks import (
    Schedule,
    consumer_in_order,
    extent,
    inner_blocks,
    last_behind,
    name_of,
    named,
    producer,
    reductions,
)

_SHARED = MOST_COLUMNS  # values of one of the three tensors that a block of threads keeps in 48 KiB of shared memory
_MOST_ROWS = 8
_NO_KERNEL = GraphError("an attention of this network has no kernel for CUDA: give --unit op")
_THREADS = 128  # of a block, or 32 for each of its rows


class Attention:
    """A rule with dlight's interface."""

    def apply(self, func: Any, _target: Any, _tunable: bool) -> Schedule | None:
        """Schedule an attention kernel; None for other kernels.

        Raises `GraphError` for an attention without a schedule: other rules would allocate memory for the scores, which
        is forbidden inside a CUDA graph.
        """
        if not isinstance(func, PrimFunc) or not is_attention(s_tir.Schedule(func)):
            return None
        try:
            return attention(s_tir.Schedule(func))
        except s_tir.ScheduleError:
            raise _NO_KERNEL from None


def is_attention(sch: Schedule) -> bool:
    """Test whether a kernel's reductions are a product, a softmax and another product."""
    names = [name_of(sch, b).removeprefix("T_") for b in reductions(sch)]
    return len(names) == 4 and names[1:3] == ["softmax_maxelem", "softmax_expsum"]


def attention(sch: Schedule) -> Schedule:
    """Schedule `softmax(f(q @ k)) @ v`: the threads of a block share score rows, and the elements of the rows' results."""
    sums = reductions(sch)
    first, largest, total, second = sums
    rows, columns = (extent(sch, loop) for loop in sch.get_loops(largest)[-2:])
    tile = max(d for d in range(1, min(_MOST_ROWS, _SHARED // columns) + 1) if rows % d == 0)
    last = last_behind(sch, second)
    scores = producer(sch, largest, 0)
    if name_of(sch, scores) == name_of(sch, first):
        scores = sch.cache_write(first, 0, "shared")
    whole = [named(sch, "softmax_norm"), total, named(sch, "softmax_exp"), largest, scores]
    kept = {name_of(sch, b) for b in (*sums, *whole, last)}
    for block in inner_blocks(sch):
        if name_of(sch, block) not in kept:
            sch.compute_inline(block)
    loops = consumer_in_order(sch, second, last)
    if loops is None:
        raise _NO_KERNEL
    *heads, row, column = loops
    sch.reorder(*heads, row, column)
    outer, inside = sch.split(row, [None, tile])
    grid = sch.fuse(*heads, outer)
    sch.bind(grid, "blockIdx.x")
    lanes = max(32, _THREADS // (1 << (tile - 1).bit_length()))
    thread = _bind(sch, inside, column, lanes)
    sch.compute_at(second, thread, preserve_unit_loops=True)
    sch.set_scope(second, 0, "local")
    for block in whole:
        sch.compute_at(block, grid, preserve_unit_loops=True)
        sch.set_scope(block, 0, "shared")
    row, column = sch.get_loops(scores)[-2:]
    thread = _bind(sch, row, column, lanes)
    sch.compute_at(first, thread, preserve_unit_loops=True)
    sch.set_scope(first, 0, "local")
    for block in (whole[0], total, whole[2], largest):
        row, column = sch.get_loops(block)[-2:]
        _bind(sch, row, column, lanes)
    for block in (first, second):
        with suppress(
            s_tir.ScheduleError
        ):  # behind a view of the scores TVM proves no reduction: its beginning stays inside
            sch.decompose_reduction(block, sch.get_loops(block)[-1])
    return sch


def _bind(sch: Schedule, row: Any, column: Any, lanes: int) -> Any:
    """Give each row to `lanes` threads, and split the columns among them; returns the loop over these threads."""
    sch.bind(row, "threadIdx.y")
    _, x = sch.split(column, [None, lanes])
    sch.bind(x, "threadIdx.x")
    return x
