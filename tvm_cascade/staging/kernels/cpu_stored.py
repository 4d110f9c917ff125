"""Products with weights that stay as a file stores them: integers of 8 or 4 bits, with scales for blocks of the depth.

A kernel computes `(number - zero point) * scale`, the float32 weight of the file's definition, where a tile reads the weight.
A product of many rows computes each vector of weights once for all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.passes.stored_constants import FEWEST, Blocked, StoredConstant
from tvm_cascade.staging.kernels.cpu_compute import LANES, direct_product, product_lanes

_SINGLE = 2 * LANES  # columns in a tile of a single row: scales and sums stay in AVX's registers
WIDENED = "weights_wide"  # name of the block that computes float weights


@dataclass(frozen=True, slots=True, eq=False)
class StoredColumns:
    """A stored matrix, packed for tiles of columns; columns that fill up the last tile have scale zero."""

    values: np.ndarray  # int8 `[columns/v][depth][v]`; 4 bits: uint8 `[columns/v][depth/2][v]`, the first lowest
    scales: np.ndarray  # float32 `[columns/v][depth/size][v]`
    zeros: np.ndarray | None  # zero points, float32, like `scales`; None if all are `zero`
    depth: int
    size: int  # rows of a block, which have the same scales and zero points
    bits: int  # of a number: 8, signed, or 4, unsigned
    zero: int = 0  # zero point of all numbers, without `zeros`

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return the constants of a kernel."""
        return (self.values, self.scales) if self.zeros is None else (self.values, self.scales, self.zeros)

    def product(self, x: Any, columns: int, values: Any, scales: Any, zeros: Any = None) -> Any:
        """Compute `x @ w` for `x` [..., rows, depth] and the `columns` of w, whose constants are `arrays`."""
        blocks, _, lanes = (int(d) for d in values.shape)

        def weight(j: Any, k: Any, v: Any) -> Any:
            if self.bits == 8:
                number = values[j, k, v].astype("float32")
            else:
                byte = values[j, tirx.floordiv(k, 2), v].astype("int32")
                number = ((byte >> (tirx.floormod(k, 2) * 4).astype("int32")) & 15).astype("float32")
            block = tirx.floordiv(k, self.size)
            if zeros is not None:
                number = number - zeros[j, block, v]
            elif self.zero:
                number = number - tirx.const(float(self.zero), "float32")
            return number * scales[j, block, v]

        return direct_product(x, te.compute((blocks, self.depth, lanes), weight, name=WIDENED), columns)


def pack_stored(stored: StoredConstant, rows: int, most: int | None = None) -> StoredColumns | None:
    """Pack a matrix `[depth][columns]` for a product of `rows` rows, as `pack_columns` does.

    Returns None for small floats, and for a matrix that takes no fewer bytes so than as float32.
    """
    if stored.scale is None or stored.floats or stored.values.ndim != 2 or stored.values.size < FEWEST:
        return None
    depth, columns = stored.values.shape
    size = min(depth, *(Blocked.of(a).block[0] for a in (stored.scale, stored.zero)))
    lanes = min(_SINGLE, -(-columns // LANES) * LANES) if rows == 1 else product_lanes(rows, columns, most)
    whole = -(-columns // lanes) * lanes
    numbers = stored.values.astype(np.int32)
    centred, zeros, zero = numbers - stored.zero, None, 0
    bits = 4 if int(numbers.max()) - int(numbers.min()) <= 15 else 8
    if bits == 8 and int(centred.min()) >= -128 and int(centred.max()) <= 127:
        numbers = centred
    else:
        first = int(numbers.min()) + (0 if bits == 4 else 128)
        numbers, points = numbers - first, stored.zero - first
        zeros, zero = (None, int(points.flat[0])) if points.min() == points.max() else (points[::size], 0)
    values = _tiles(numbers.astype(np.uint8).view(np.int8), whole, lanes)
    packed = StoredColumns(
        _nibbles(values) if bits == 4 else values, _tiles(stored.scale[::size].astype(np.float32), whole, lanes),
        None if zeros is None else _tiles(zeros.astype(np.float32), whole, lanes), depth, size, bits, zero,
    )  # fmt: skip
    taken = sum(a.nbytes for a in packed.arrays)
    return packed if taken < depth * whole * ITEM_BYTES["float32"] else None


def _tiles(matrix: np.ndarray, whole: int, lanes: int) -> np.ndarray:
    """Cut a matrix into tiles of `lanes` columns, as many as `whole` columns have."""
    rows, columns = matrix.shape
    full = np.zeros((rows, whole), matrix.dtype)
    full[:, :columns] = matrix
    return np.ascontiguousarray(full.reshape(rows, -1, lanes).transpose(1, 0, 2))


def _nibbles(values: np.ndarray) -> np.ndarray:
    """Join numbers below 16 of rows in pairs to bytes, the first lowest."""
    rows = values.shape[1]
    even = np.pad(values, [(0, 0), (0, rows % 2), (0, 0)]).astype(np.uint8)
    return even[:, ::2] | (even[:, 1::2] << 4)
