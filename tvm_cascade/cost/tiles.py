"""Tiles for a matrix product on a GPU: the part computed by a thread block, and a model of its time.

A product at batch 1 has few results with long sums. Large tiles, which read every value least often, then leave most of
a GPU idle; small tiles with split sums fill it. The fastest tiles follow from the extents: `choose_tiles` asks a model
fitted to measured kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_cascade.cost.interface import OpFeatures
from tvm_cascade.operators.table import CONVOLUTIONS

FRAGMENT = 16  # rows, columns and depth of a product on tensor cores


@dataclass(frozen=True, slots=True)
class Tiles:
    """The sharing of a matrix product among thread blocks and warps.

    A block computes `rows * columns` results. It reads `slices * depth` matrix columns at a time; each of `slices` warp
    groups multiplies `depth` columns, and the sums are added up at the end: few results with long sums fill a GPU too.
    Each group is `warp_rows * warp_columns` warps.
    """

    rows: int
    columns: int
    depth: int
    slices: int = 1
    warp_rows: int = 1
    warp_columns: int = 1

    @property
    def chunk(self) -> int:
        """Return the matrix columns read by a block at a time."""
        return self.slices * self.depth

    @property
    def warps(self) -> int:
        return self.slices * self.warp_rows * self.warp_columns


@dataclass(frozen=True, slots=True)
class Extents:
    """A matrix product: `rows` pixels by `columns` channels, sums over `depth` products from `taps` window taps."""

    rows: int
    columns: int
    depth: int
    taps: int = 1


@dataclass(frozen=True, slots=True)
class _Fit:
    """The terms of `microseconds`, in microseconds: fitted to measured kernels."""

    launch: float
    wait: float  # for memory, in a step
    gathered: float  # a vector of rows, in every warp
    read: float  # a vector of weights
    multiplied: float  # a fragment
    added: float  # a value of the sums of all slices
    window: float  # factor on what is gathered of a window
    shared: float  # share of another warp's time that a warp waits for


_FIT_HALVES = _Fit(1.8253, 0.128, 0.0134, 0.0204, 0.0049, 0.0102, 3.9642, 0.2936)
_FIT_TF32 = replace(_FIT_HALVES, multiplied=2 * _FIT_HALVES.multiplied)  # half of the rate; not measured
_FIT_FLOATS = _Fit(1.9591, 0.0, 0.0016, 0.0248, 0.122, 0.0015, 11.6417, 0.354)
_UNITS = 132  # multiprocessors
SHARED_BYTES = 48 << 10  # of a block, on any architecture, without asking for more
# Tiles that measured kernels took least time with at batch 1, for float16 and for float32. Those of 128 rows or columns are for
# larger batches, where the model expects them to save time: nobody has measured them.
HALVES = (
    Tiles(16, 16, 32, 8),
    Tiles(16, 32, 64, 4),
    Tiles(32, 32, 64, 1, 2, 2),
    Tiles(64, 64, 32, 1, 2, 2),
    Tiles(64, 64, 64, 1, 2, 2),
    Tiles(128, 64, 32, 1, 4, 2),
    Tiles(64, 128, 32, 1, 2, 2),
)
FLOATS = (
    Tiles(16, 16, 16, 8),
    Tiles(32, 32, 16, 4),
    Tiles(32, 32, 32, 1, 2, 1),
    Tiles(64, 32, 16, 2, 2, 1),
    Tiles(128, 64, 16, 1, 4, 2),
)
_TF32_TILES = tuple(replace(t, depth=t.depth // 2) for t in HALVES)  # as many bytes a step


@dataclass(frozen=True, slots=True)
class _Arithmetic:
    """The computation for a single kind of product: tile sets, bytes per value, and fitted times."""

    tiles: tuple[Tiles, ...]
    item: int
    fit: _Fit


_HALF = _Arithmetic(HALVES, 2, _FIT_HALVES)
_ARITHMETIC = {
    "float32": _Arithmetic(FLOATS, 4, _FIT_FLOATS),
    "float16": _HALF,
    "bfloat16": _HALF,
    "tf32": _Arithmetic(_TF32_TILES, 4, _FIT_TF32),
}


def tile_sets(multiplied: str) -> tuple[Tiles, ...]:
    """List the tiles for products in "float32", "float16", "bfloat16" or "tf32" (float32 on tensor cores)."""
    return _ARITHMETIC[multiplied].tiles


def extents_of(op: OpFeatures, multiplied: str) -> Extents | None:
    """Derive the matrix product from an operator's features; None if there is none, or only one per group."""
    if op.kind not in CONVOLUTIONS | {"dense"} or not op.weight_bytes or not op.macs:
        return None
    # the weights' and, fused, a bias's
    columns = max(1, op.weight_bytes // (_ARITHMETIC[multiplied].item * op.reduction))
    while op.output_elements % columns:
        columns -= 1
    return Extents(op.output_elements // columns, columns, op.reduction, _taps(op) if op.kind in CONVOLUTIONS else 1)


def _taps(op: OpFeatures) -> int:
    """Return the taps of a convolution's window, stored in `shape` behind the tensors, or in front for merged
    operators.
    """
    if op.shape[:1] == (-4,):
        return op.shape[1] * op.shape[2]
    ends = [k for k, value in enumerate(op.shape) if value == -1]
    window = op.shape[ends[1] + 1 :] if len(ends) > 1 else ()
    return window[0] * window[4] if len(window) > 4 and min(window[0], window[4]) > 0 else 1


def choose_tiles(extents: Extents, multiplied: str) -> Tiles:
    """Choose the tiles in `tile_sets` with the least `microseconds` for a product."""
    return min(tile_sets(multiplied), key=lambda t: microseconds(extents, t, multiplied))


def best_microseconds(extents: Extents, multiplied: str) -> float:
    """Return a product's time with the tiles from `choose_tiles`, without the launch."""
    return microseconds(extents, choose_tiles(extents, multiplied), multiplied) - _ARITHMETIC[multiplied].fit.launch


def shared_bytes(tiles: Tiles, multiplied: str) -> int:
    """Return a block's shared memory: the values multiplied in a step, rows padded by 16 bytes, and the sums."""
    rows = (tiles.rows + tiles.columns) * (tiles.chunk * _ARITHMETIC[multiplied].item + 16)
    return rows + tiles.slices * tiles.rows * tiles.columns * 4


def microseconds(extents: Extents, tiles: Tiles, multiplied: str) -> float:
    """Estimate a product's time by a model fitted to an H200, to compare tiles.

    Blocks run in waves. In each step a block waits for memory, fetches its vectors (windows need more instructions),
    and multiplies; warps on the same multiprocessor share the instruction slots.
    """
    fit, item = _ARITHMETIC[multiplied].fit, _ARITHMETIC[multiplied].item
    blocks = -(-extents.rows // tiles.rows) * -(-extents.columns // tiles.columns)
    steps = -(-extents.depth // tiles.chunk)
    fitting = max(1, min(64 // tiles.warps, (227 << 10) // (shared_bytes(tiles, multiplied) + 1024), 32))
    together, waves = min(-(-blocks // _UNITS), fitting), -(-blocks // (_UNITS * fitting))
    vectors = tiles.chunk * item / 16 / (32 * tiles.warps)
    shared = tiles.rows * tiles.columns * tiles.depth / (FRAGMENT**3 * tiles.warp_rows * tiles.warp_columns)
    gathered = tiles.rows * vectors * fit.gathered * (fit.window if extents.taps > 1 else 1.0)
    work = gathered + tiles.columns * vectors * fit.read + shared * fit.multiplied
    slower = 1 + together * tiles.warps * fit.shared
    ends = tiles.slices * tiles.rows * tiles.columns / (32 * tiles.warps) * fit.added * slower
    return fit.launch + waves * (steps * (fit.wait + work * slower) + ends)
