"""Pools, depthwise convolutions and other short sums on CUDA: a thread computes whole results in turn."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import s_tir
from tvm.tirx import PrimFunc

from tvm_cascade.staging.kernels.blocks import (
    Schedule,
    extent,
    inner_blocks,
    is_reduction,
    iter_kinds,
    last_behind,
    name_of,
    reductions,
)

_MOST_STEPS = 64  # of a sum, written out so that its loads are under way together: longer ones are shared among threads
_THREADS = 128


class Elements:
    """A rule with dlight's interface."""

    def apply(self, func: Any, _target: Any, _tunable: bool) -> Schedule | None:
        """Schedule a kernel with a single short reduction; None for other reductions, one result, or products of two
        tensors.
        """
        if not isinstance(func, PrimFunc):
            return None
        sch = s_tir.Schedule(func)
        sums = reductions(sch)
        if len(sums) != 1 or _steps(sch, sums[0]) > _MOST_STEPS or _shares_operands(sch, sums[0]):
            return None
        return elements(sch, sums[0])


def _steps(sch: Schedule, block: Any) -> int:
    loops = sch.get_loops(block)
    return prod(extent(sch, loop) for loop, summed in zip(loops, iter_kinds(sch, block), strict=True) if summed)


def _shares_operands(sch: Schedule, acc: Any) -> bool:
    """Test whether two tensors are read along a reduction axis, as in a matrix product: shared operands ask for tiles."""
    block = sch.get(acc)
    summed = [v for v, s in zip(block.iter_vars, iter_kinds(sch, acc), strict=True) if s and int(v.dom.extent) > 1]
    return len(block.reads) > 1 and any(
        all(any(v.var.same_as(r.min) for r in read.region) for read in block.reads) for v in summed
    )


def elements(sch: Schedule, acc: Any) -> Schedule | None:
    """Compute the reduction `acc` at the use of the result, and fuse all other blocks into the last."""
    last = last_behind(sch, acc)
    for block in inner_blocks(sch):
        if name_of(sch, block) not in (name_of(sch, acc), name_of(sch, last)):
            sch.compute_inline(block)
    loops = sch.get_loops(last)
    if is_reduction(sch, last) or not loops:
        return None
    fused = sch.fuse(*loops)
    grid, thread = sch.split(fused, [None, _THREADS])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.compute_at(acc, thread)
    for k in range(len(sch.get(acc).writes)):  # argmax and argmin reduce to an index and a value
        sch.set_scope(acc, k, "local")
    for loop in sch.get_loops(acc)[2:]:
        sch.unroll(loop)
    return sch
