"""ONNX operators that place elements by position: Hardmax, TopK, and ScatterND."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tvm_cascade.importers.onnx.resize import text
from tvm_cascade.passes.main_rewriting import Value, constant_of, relax, shape_of


def hardmax(bb: Any, inputs: Sequence[Value], attrs: dict[str, Any]) -> Value:
    """Return 1 at the first largest element along an axis, else 0: `max, equal -> position -> min, equal`.

    Before opset 13 `axis` (default 1) splits the tensor into a matrix; since 13 it is one axis, by default the last.
    TVM's importer uses 64-bit positions, and always a single axis.
    """
    x, early = inputs[0], int(attrs["tvm_custom"]["opset"]) < 13
    shape, dtype = shape_of(x), str(x.ty.dtype)
    axis = int(attrs.get("axis", 1 if early else -1))
    if early:
        at = axis % (len(shape) + 1) if axis >= 0 else axis % len(shape)
        x, axis = bb.normalize(relax.op.reshape(x, (prod(shape[:at]), prod(shape[at:])))), 1
    extents = shape_of(x)
    axis %= len(extents)
    along = [1] * len(extents)
    along[axis] = extents[axis]
    positions = relax.const(np.arange(extents[axis], dtype="int32").reshape(along), "int32")
    largest = bb.normalize(relax.op.equal(x, bb.normalize(relax.op.max(x, axis, keepdims=True))))
    where = bb.normalize(relax.op.where(largest, positions, relax.const(extents[axis], "int32")))
    first = bb.normalize(relax.op.equal(positions, bb.normalize(relax.op.min(where, axis, keepdims=True))))
    made = bb.normalize(relax.op.astype(first, dtype))
    return relax.op.reshape(made, shape) if early else made


def top_k(_bb: Any, inputs: Sequence[Value], attrs: dict[str, Any]) -> Value:
    """Convert TopK with a constant `k`, always sorted. TVM's importer reads `k` as an attribute in opset 10."""
    x, axis = inputs[0], int(attrs.get("axis", -1))
    given = np.array(attrs.get("k", 1)) if len(inputs) < 2 or inputs[1] is None else constant_of(inputs[1])
    if given is None:
        raise NotImplementedError("k that the network computes: make it a constant")
    k, extent = int(given.reshape(-1)[0]), shape_of(x)[axis]
    if not 0 < k <= extent:
        raise NotImplementedError(f"the {k} first of {extent} elements")
    return relax.op.topk(x, k, axis, "both", bool(attrs.get("largest", 1)), "int64")


def scatter_nd(bb: Any, inputs: Sequence[Value], attrs: dict[str, Any]) -> Value | None:
    """Replace parts of the data, addressed by index rows over its leading axes; replace a box by slices and concats."""
    shape, rows, given = shape_of(inputs[0]), shape_of(inputs[1]), None if inputs[1] is None else constant_of(inputs[1])
    if not rows or (given is not None and not given.size):
        return None
    extents, kind = shape[: rows[-1]], text(attrs, "reduction", "none")
    places = counted_from_start(bb, inputs[1], extents) if given is None else inside(given, extents)
    known = None if places is None else constant_of(places)
    if known is not None and kind == "none" and (box := box_of(known)) is not None:
        return placed(bb, inputs[0], inputs[2], box)
    return None if places is None else relax.op.scatter_nd(inputs[0], places, inputs[2], kind.replace("none", "update"))


def box_of(indices: np.ndarray) -> list[tuple[int, int]] | None:
    """Return the box `[first, last)` per leading axis, if the rows of `indices` fill it in row-major order; else None."""
    rows = indices.reshape(-1, indices.shape[-1])
    first, last = rows.min(axis=0), rows.max(axis=0) + 1
    filled = np.indices(tuple(last - first)).reshape(len(first), -1).T
    if filled.shape != rows.shape or (filled + first != rows).any():
        return None
    return [(int(a), int(b)) for a, b in zip(first, last, strict=True)]


def placed(bb: Any, data: Value, updates: Value, box: Sequence[tuple[int, int]]) -> Value:
    """Return `data` with the box of its leading axes replaced by `updates`: `concat(before, updates, behind)`, axis by axis."""
    inner = [b - a for a, b in box]
    shaped = bb.normalize(relax.op.reshape(updates, (*inner, *shape_of(data)[len(box) :])))
    return _placed(bb, data, shaped, box, 0)


def _placed(bb: Any, data: Value, updates: Value, box: Sequence[tuple[int, int]], axis: int) -> Value:
    if axis == len(box):
        return updates
    (first, last), extent = box[axis], shape_of(data)[axis]

    def part(begin: int, end: int) -> Value:
        whole = (begin, end) == (0, extent)
        return data if whole else bb.normalize(relax.op.strided_slice(data, [axis], [begin], [end], [1]))

    middle = _placed(bb, part(first, last), updates, box, axis + 1)
    parts = [part(a, b) for a, b in ((0, first),) if a < b] + [middle]
    parts += [part(a, b) for a, b in ((last, extent),) if a < b]
    return parts[0] if len(parts) == 1 else bb.normalize(relax.op.concat(parts, axis))


def inside(indices: np.ndarray, extents: Sequence[int]) -> Value:
    """Return constant indices as int32, counted from the start. Raises `ValueError` for an index outside its axis."""
    bounds = np.array(extents)
    if indices.size == 0 or (indices < -bounds).any() or (indices >= bounds).any():
        raise ValueError(f"indices outside of an axis of {', '.join(map(str, extents))}")
    return relax.const((indices % bounds).reshape(indices.shape).astype("int32"), "int32")


def counted_from_start(bb: Any, indices: Value, extents: Sequence[int]) -> Value | None:
    """Return computed indices counted from the start, of which the importer asks the network for the extents; None for others."""
    dtype = str(getattr(getattr(indices, "ty", None), "dtype", ""))
    if dtype not in ("int32", "int64"):
        return None
    bounds = relax.const(np.array(extents if len(extents) > 1 else extents[0], dtype), dtype)
    below = bb.normalize(relax.op.less(indices, relax.const(0, dtype)))
    return bb.normalize(relax.op.where(below, bb.normalize(relax.op.add(indices, bounds)), indices))
