"""Views and in-place operators, recognized by access pattern: outputs that alias, or may overwrite, an input."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm_ffi

from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.tir import PrimFunc, ir
from tvm_cascade.schedules.tir.macs import evaluate


def view_offsets(func: PrimFunc, activations: int) -> tuple[int, ...] | None:
    """Return each output's offset in elements in the only input, if every output is a contiguous part of it; else None."""
    outputs = tir.outputs_of(func)
    blocks = tir.leaf_blocks(func)
    if activations != 1 or len(blocks) != len(outputs) or len(func.params) != 1 + len(outputs):
        return None
    offsets: dict[object, int] = {}
    for realize in blocks:
        written = tir.stores(realize.block.body)
        if realize.block.init is not None or len(written) != 1 or not isinstance(written[0].value, ir.TensorLoad):
            return None
        offset = _offset(realize.block, written[0])
        if offset is None or not written[0].value.source.same_as(func.params[0]):
            return None
        offsets[written[0].buffer] = offset
    return tuple(offsets[o] for o in outputs) if len(offsets) == len(outputs) else None


def _offset(block: Any, store: Any) -> int | None:
    """Return the constant distance in elements from an output to the source, None if the distance varies."""
    env, read = grid_of(block), store.value
    try:
        distance = _flat(read.source, read.indices, env) - _flat(store.buffer, store.indices, env)
    except ValueError:
        return None
    first = int(np.asarray(distance).flat[0])
    return first if bool(np.all(distance == first)) else None


def grid_of(block: Any) -> dict[Any, np.ndarray]:
    """Return every value of a block's axes, by variable, as mutually broadcasting arrays (`np.ogrid`)."""
    grid = np.ogrid[tuple(slice(0, int(v.dom.extent)) for v in block.iter_vars)]
    return {v.var: axis for v, axis in zip(block.iter_vars, grid, strict=True)}


def _flat(buffer: Any, indices: Any, env: Any) -> np.ndarray:
    offset: Any = np.int64(0)
    for index, extent in zip(indices, tir.shape_of(buffer), strict=True):
        offset = offset * extent + evaluate(index, env)
    return offset


def in_place_inputs(func: PrimFunc, activations: int) -> tuple[int, ...]:
    """Return positions of inputs that the only output may overwrite: same shape and item size, read at the written index,
    and before that at most along the last axis of the same row, as softmax and normalizations do.

    An unread input, as after a clamp to a constant, does not count: nothing tells which rows correspond.
    """
    outputs = tir.outputs_of(func)
    blocks = [r.block for r in tir.leaf_blocks(func)]
    if len(outputs) != 1 or any(b.init is not None and _target(b).buffer.same_as(outputs[0]) for b in blocks):
        return ()
    candidates = [
        i
        for i, x in enumerate(func.params[:activations])
        if tir.shape_of(x) == tir.shape_of(outputs[0])
        and ITEM_BYTES.get(tir.dtype_of(x)) == ITEM_BYTES.get(tir.dtype_of(outputs[0]))
    ]
    rank = len(tir.shape_of(outputs[0]))
    read, elsewhere, inputs = set(), set(), set(func.params)
    for block in blocks:
        target = _target(block)
        for load in tir.collect(block.body, ir.TensorLoad):
            if _alike(load, target, len(load.indices)) and len(load.indices) == len(target.indices):
                read.add(load.source)
                continue
            known = load.source in inputs
            before = not known or not target.buffer.same_as(outputs[0])
            by_rows = rank - 1 <= min(len(load.indices), len(target.indices)) and _alike(load, target, rank - 1)
            if not (before and by_rows):
                if not known:
                    return ()
                elsewhere.add(load.source)
    return tuple(i for i in candidates if func.params[i] in read - elsewhere)


def _target(block: Any) -> Any:
    """Return a block's store."""
    return tir.stores(block.body)[0]


def _alike(load: Any, target: Any, axes: int) -> bool:
    """Test whether a load and a store have the same indices on the first axes; axes of one element count as the same."""
    indices = zip(load.indices, target.indices, tir.shape_of(load.source), strict=False)
    return all(d == 1 or tvm_ffi.structural_equal(a, b) for a, b, d in list(indices)[:axes])
