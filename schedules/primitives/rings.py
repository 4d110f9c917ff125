"""Ring buffers of striped intermediates: slice s along an axis is stored at index `s % height`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.primitives.stripe_loops import Cut
from tvm_cascade.schedules.primitives.striping import Group, Stage, ring_height
from tvm_cascade.schedules.tir import Buffer, Expr, i32, ir, s_tir, tirx


class Rings:
    """Shortened buffers of all groups but the last, and blocks rewritten to use them.

    Along the axis of the first cut, a rolled group's buffer is a ring of slices still needed by readers. Along any
    further cut, a buffer needs only the current stripe. TVM's lowering derives that size from the loops by itself,
    except if stripes reach beyond the tensor: there it would allocate too much, and the buffer is shortened here.
    """

    def __init__(self, groups: Sequence[Group], cuts: Sequence[Cut], rolled: Collection[Group] = ()) -> None:
        self._heights: dict[Buffer, dict[int, int]] = {}
        for group in groups[:-1]:
            heights = self._heights.setdefault(group.head.buffer, {})
            for cut in cuts:
                span = cut.spans[group]
                if group in rolled and cut is cuts[0]:
                    heights[cut.axes[group]] = ring_height(span, cut.readers[group], cut.spans, cut.iterations)
                elif cut.guards(group, i32(0)):
                    heights[cut.axes[group]] = min(span.length, span.extent)
        self.buffers: Mapping[Buffer, Buffer] = {b: _shortened(b, h) for b, h in self._heights.items() if h}

    def block(self, stage: Stage) -> Any:
        """Rewrite a stage's block for the shortened buffers."""

        def slot(buffer: Buffer, axis: int, index: Expr) -> Expr:
            return tirx.floormod(index, i32(self._heights[buffer][axis]))

        return _over(stage.realize.block, self.buffers, self._heights, slot, lambda r: tir.int_value(r.extent) == 1)


def _shortened(buffer: Buffer, heights: Mapping[int, int]) -> Buffer:
    shape = [heights.get(k, d) for k, d in enumerate(tir.shape_of(buffer))]
    return tirx.decl_buffer(shape, tir.dtype_of(buffer), buffer.name)


def lengthened(realizes: Sequence[Any]) -> tuple[list[Any], dict[Buffer, Buffer]]:
    """Undo `Rings`: blocks over buffers of full length, and a map from the shortened buffers to the full ones."""
    whole: dict[Buffer, Buffer] = {}
    axes: dict[Buffer, set[int]] = {}
    for realize in realizes:
        store = next(iter(tir.stores(realize.block.body)))
        extents = {iv.var: int(iv.dom.extent) for iv in realize.block.iter_vars}
        lengths = {k: extents[i.a] for k, i in enumerate(store.indices) if isinstance(i, tirx.FloorMod)}
        if lengths:
            axes[store.buffer] = set(lengths)
            whole[store.buffer] = _shortened(store.buffer, lengths)

    def straight(_buffer: Buffer, _axis: int, index: Expr) -> Expr:
        return index.a if isinstance(index, tirx.FloorMod) else index

    blocks = [_over(r.block, whole, axes, straight, lambda r: isinstance(r.min, tirx.FloorMod)) for r in realizes]
    longer = [s_tir.SBlockRealize(r.iter_values, r.predicate, b) for r, b in zip(realizes, blocks, strict=True)]
    return longer, whole


def _over(
    block: Any,
    buffers: Mapping[Buffer, Buffer],
    axes: Mapping[Buffer, Collection[int]],
    at: Callable[[Buffer, int, Expr], Expr],
    is_single: Callable[[Any], bool],
) -> Any:
    """Replace a block's buffers by `buffers`; index i along one of `axes` becomes `at(buffer, axis, i)`.

    Along `axes`, read and write regions with a range that `is_single` accepts stay single elements; all others become
    whole.
    """

    def redirected(buffer: Buffer, indices: list[Expr]) -> tuple[Buffer, list[Expr]] | None:
        if buffer not in buffers:
            return None
        return buffers[buffer], [at(buffer, k, i) if k in axes[buffer] else i for k, i in enumerate(indices)]

    def region(old: Any) -> Any:
        if old.source not in buffers:
            return old
        ranges, shape = list(old.region), tir.shape_of(buffers[old.source])
        for axis in axes[old.source]:
            one = is_single(ranges[axis])
            low, extent = (at(old.source, axis, ranges[axis].min), 1) if one else (i32(0), shape[axis])
            ranges[axis] = ir.Range.from_min_extent(low, i32(extent))
        return tirx.BufferRegion(buffers[old.source], ranges)

    return s_tir.SBlock(
        block.iter_vars,
        [region(r) for r in block.reads],
        [region(r) for r in block.writes],
        block.name_hint,
        tir.relocated(block.body, redirected),
        None if block.init is None else tir.relocated(block.init, redirected),
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
