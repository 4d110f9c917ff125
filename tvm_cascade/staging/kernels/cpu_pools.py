"""Padding for max pools on CPUs without copying the tensor."""

from __future__ import annotations

from typing import Any

from tvm_cascade.schedules.tir import (
    int_value,
    is_if_then_else,
    loads,
    replace,
    s_tir,
    substitute,
    sym,
    tirx,
    tvm_ffi,
    uses,
)
from tvm_cascade.staging.kernels.blocks import Schedule, inner_blocks, is_pad, name_of, reductions

_POOL = "pool_max"


def clamp_max_pool(sch: Schedule) -> Schedule:
    """Let a max pool of a packed tensor read the nearest element in place of padding; other schedules stay as they are.

    The element nearest to a place in the padding lies in every window over that place that has an element at all, as the
    taps of a window are neighbours.
    """
    pools = [b for b in reductions(sch) if name_of(sch, b).startswith(_POOL)]
    pads = [b for b in inner_blocks(sch) if is_pad(sch, b, _POOL)]
    if len(pools) != 1 or len(pads) != 1:
        return sch
    pool, pad = sch.get(pools[0]), sch.get(pads[0])
    if not is_if_then_else(pad.body.value) or len(loads(pad.body.value)) != 1:
        return sch
    if not tvm_ffi.structural_equal(pad.body.value.args[2], pool.init.value):  # padding that may be the largest
        return sch
    (inside,) = loads(pad.body.value)
    shape = [int(d) for d in inside.source.ty.shape]
    read = next((load for load in loads(pool.body) if load.source.same_as(pad.body.buffer)), None)
    if read is None or len(shape) != len(read.indices) + 1:
        return sch
    at: list[Any] = []
    for index, size in zip(inside.indices, shape, strict=True):
        axis = next((k for k, v in enumerate(pad.iter_vars) if _is_along(index, v.var)), None)
        at.append(index)
        if axis is None or int(pad.iter_vars[axis].dom.extent) == size:
            continue
        tap = read.indices[axis]
        if not _has_elements(pool, tap, substitute(index, {pad.iter_vars[axis].var: tap}), size):
            return sch
        at[-1] = tirx.max(tirx.min(index, size - 1), 0)
    nearest = tirx.BufferStore(pad.body.buffer, tirx.BufferLoad(inside.source, at), pad.body.indices)

    def clamped(block: Any) -> Any:
        if block.name_hint != pad.name_hint:
            return block
        fields = (block.iter_vars, block.reads, block.writes, "pool_source", nearest, block.init)
        return s_tir.SBlock(*fields, block.alloc_buffers, block.match_buffers, block.annotations)

    func = sch.mod["main"]
    return s_tir.Schedule(func.with_body(replace(func.body, s_tir.SBlock, clamped)))


def _is_along(index: Any, var: Any) -> bool:
    """Test whether an index is a variable, or a number more or less."""
    return uses(index, var) and int_value(sym.Analyzer().simplify(index - var)) is not None


def _has_elements(pool: Any, tap: Any, place: Any, size: int) -> bool:
    """Test whether the taps of a pool along an axis are neighbours, and every window has one inside of the axis.

    `tap`: index of a tap in the padded tensor; `place`: the same in the tensor of `size` elements, below 0 in the padding.
    """
    used = [v for v in pool.iter_vars if uses(tap, v.var)]
    taps = [v for v in used if v.iter_type == tirx.IterVar.CommReduce]
    if len(taps) != 1:
        return False
    analyzer = sym.Analyzer()
    neighbours = int_value(analyzer.simplify(substitute(tap, {taps[0].var: taps[0].var + 1}) - tap)) == 1

    def at(last_window: bool, last_tap: bool) -> Any:
        ends = {v.var: v.dom.extent - 1 if (last_tap if v is taps[0] else last_window) else 0 for v in used}
        return int_value(
            analyzer.simplify(substitute(place, {v: tirx.const(int(e), v.ty.dtype) for v, e in ends.items()}))
        )

    first, last = at(False, True), at(True, False)
    return neighbours and first is not None and last is not None and first >= 0 and last < size
