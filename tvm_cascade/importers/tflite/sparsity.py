"""Expand sparse constants in `.tflite` files to dense arrays.

`SparsityParameters` in the schema: dimensions in `traversal_order`, each dense or in compressed rows (segments and
indices); block dimensions follow the tensor's own, and `block_map` assigns them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.site import InvalidForm

_VECTORS = {1: tflite.Int32Vector, 2: tflite.Uint16Vector, 3: tflite.Uint8Vector}  # of the union SparseIndexVector
_DENSE, _COMPRESSED = 0, 1


def dense(sparsity: Any, shape: Sequence[int], values: np.ndarray) -> np.ndarray:
    """Return the array with `shape`: `values` at the places given by `sparsity`, zeros elsewhere.

    Raises
    ------
    InvalidForm
        For a sparsity that contradicts the shape or the number of values.
    """
    rank, levels = len(shape), sparsity.DimMetadataLength()
    order = [int(sparsity.TraversalOrder(k)) for k in range(sparsity.TraversalOrderLength())]
    blocked = [int(sparsity.BlockMap(k)) for k in range(sparsity.BlockMapLength())]
    whole = sorted(order) == list(range(levels)) and levels == rank + len(blocked)
    _require(whole and all(0 <= d < rank for d in blocked) and len({*blocked}) == len(blocked))
    sizes = [1] * levels  # of dense dimensions, by dimension
    coordinates: dict[int, np.ndarray] = {}
    places = np.zeros(1, "int64")  # of what is found so far, in the level
    for level, dimension in enumerate(order):
        sizes[dimension], parents, own, places = _expanded(sparsity.DimMetadata(level), places, prod(shape))
        coordinates = {d: c[parents] for d, c in coordinates.items()} | {dimension: own}
    _require(np.array_equal(np.sort(places), np.arange(values.size)))
    index = [coordinates[d] for d in range(rank)]
    for k, dimension in enumerate(blocked):
        index[dimension] = index[dimension] * sizes[rank + k] + coordinates[rank + k]
    _require(all(not i.size or (i.min() >= 0 and i.max() < extent) for i, extent in zip(index, shape, strict=True)))
    result = np.zeros(shape, values.dtype)
    result[tuple(index)] = values[places]
    return result


def _expanded(metadata: Any, places: np.ndarray, most: int) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Return a dense level's size (1 for a compressed level), and for each element its parent's position in `places`,
    its coordinate, and its place in the level.
    """
    if metadata.Format() == _DENSE:
        size = int(metadata.DenseSize())
        _require(size > 0 and places.size * size <= most)
        own = np.tile(np.arange(size), places.size)
        parents = np.repeat(np.arange(places.size), size)
        return size, parents, own, places[parents] * size + own
    _require(metadata.Format() == _COMPRESSED)
    segments = _vector(metadata.ArraySegmentsType(), metadata.ArraySegments())
    indices = _vector(metadata.ArrayIndicesType(), metadata.ArrayIndices())
    _require(places.size == 0 or int(places.max()) + 1 < segments.size)
    first, last = segments[places], segments[places + 1]
    _require(
        bool(np.all((first >= 0) & (first <= last) & (last <= indices.size))) and int((last - first).sum()) <= most
    )
    parents = np.repeat(np.arange(places.size), last - first)
    within = np.arange(parents.size) - np.repeat(np.cumsum(last - first) - (last - first), last - first)
    found = first[parents] + within
    return 1, parents, indices[found], found


def _vector(kind: int, table: Any | None) -> np.ndarray:
    if kind not in _VECTORS or table is None:
        raise InvalidForm("its sparsity has no segments or indices")
    vector = _VECTORS[kind]()
    vector.Init(table.Bytes, table.Pos)
    return np.array([int(vector.Values(k)) for k in range(vector.ValuesLength())], "int64")


def _require(holds: bool) -> None:
    if not holds:
        raise InvalidForm("its sparsity contradicts its shape or its values")
