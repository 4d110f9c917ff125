"""Storage of striped intermediates: slice s of an axis lies at `s % height`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tvm_cascade.schedules.primitives.stripe_loops import Cut
from tvm_cascade.schedules.primitives.striping import Group, Stage, ring_height
from tvm_cascade.schedules.tir import Buffer, Expr, dtype_of, i32, int_value, ir, s_tir, shape_of, stores, tirx, tvm_ffi


class Rings:
    """Shortened buffers of the groups but the last, and blocks rewritten to use them.

    A rolled group keeps, along the axis of the first cut, what readers still need. Any other axis of a stripe holds the
    stripe alone; that is left to TVM's lowering, which sees it from the loops, but where stripes reach beyond the tensor:
    there it allocates too much.
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
        """A stage's block over the shortened buffers."""
        return _exchanged(stage.realize.block, self._rewritten, self._region)

    def _rewritten(self, node: Any) -> Any:
        def load(access: Any) -> Any:
            ring = self.buffers.get(access.source)
            return access if ring is None else tirx.BufferLoad(ring, self._place(access.source, access.indices))

        def store(access: Any) -> Any:
            ring = self.buffers.get(access.buffer)
            if ring is None:
                return access
            return tirx.BufferStore(ring, access.value, self._place(access.buffer, access.indices))

        return tvm_ffi.structural_map(node, [(ir.TensorLoad, load), (tirx.BufferStore, store)], order="post")

    def _place(self, buffer: Buffer, indices: Sequence[Expr]) -> list[Expr]:
        heights = self._heights[buffer]
        return [tirx.floormod(i, i32(heights[k])) if k in heights else i for k, i in enumerate(indices)]

    def _region(self, region: Any) -> Any:
        ring = self.buffers.get(region.source)
        if ring is None:
            return region
        places = self._place(region.source, [r.min for r in region.region])
        ranges = list(region.region)
        for axis in self._heights[region.source]:
            one = int_value(ranges[axis].extent) == 1
            low, extent = (places[axis], 1) if one else (i32(0), shape_of(ring)[axis])
            ranges[axis] = ir.Range.from_min_extent(low, i32(extent))
        return tirx.BufferRegion(ring, ranges)


def _shortened(buffer: Buffer, heights: Mapping[int, int]) -> Buffer:
    shape = [heights.get(k, d) for k, d in enumerate(shape_of(buffer))]
    return tirx.decl_buffer(shape, dtype_of(buffer), buffer.name)


def lengthened(realizes: Sequence[Any]) -> tuple[list[Any], dict[Buffer, Buffer]]:
    """Blocks over buffers as long as the axes that write them, and those buffers by the shortened ones: undoes `Rings`."""
    whole: dict[Buffer, Buffer] = {}
    axes: dict[Buffer, set[int]] = {}
    for realize in realizes:
        store = next(iter(stores(realize.block.body)))
        extents = {iv.var: int(iv.dom.extent) for iv in realize.block.iter_vars}
        lengths = {k: extents[i.a] for k, i in enumerate(store.indices) if isinstance(i, tirx.FloorMod)}
        if lengths:
            axes[store.buffer] = set(lengths)
            whole[store.buffer] = _shortened(store.buffer, lengths)

    def straight(buffer: Buffer, indices: Sequence[Expr]) -> list[Expr]:
        return [i.a if k in axes[buffer] and isinstance(i, tirx.FloorMod) else i for k, i in enumerate(indices)]

    def load(access: Any) -> Any:
        buffer = whole.get(access.source)
        return access if buffer is None else tirx.BufferLoad(buffer, straight(access.source, access.indices))

    def store_(access: Any) -> Any:
        buffer = whole.get(access.buffer)
        if buffer is None:
            return access
        return tirx.BufferStore(buffer, access.value, straight(access.buffer, access.indices))

    def region_(region: Any) -> Any:
        buffer = whole.get(region.source)
        if buffer is None:
            return region
        ranges = list(region.region)
        for axis in axes[region.source]:
            one = isinstance(ranges[axis].min, tirx.FloorMod)
            low, extent = (ranges[axis].min.a, 1) if one else (i32(0), shape_of(buffer)[axis])
            ranges[axis] = ir.Range.from_min_extent(low, i32(extent))
        return tirx.BufferRegion(buffer, ranges)

    rewrites = [(ir.TensorLoad, load), (tirx.BufferStore, store_)]
    made = [
        s_tir.SBlockRealize(
            r.iter_values,
            r.predicate,
            _exchanged(r.block, lambda n: tvm_ffi.structural_map(n, rewrites, order="post"), region_),
        )
        for r in realizes
    ]
    return made, whole


def _exchanged(block: Any, change: Callable[[Any], Any], region: Callable[[Any], Any]) -> Any:
    """A block with its body and its regions changed."""
    return s_tir.SBlock(
        block.iter_vars,
        [region(r) for r in block.reads],
        [region(r) for r in block.writes],
        block.name_hint,
        change(block.body),
        None if block.init is None else change(block.init),
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
