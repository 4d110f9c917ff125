"""Products of matrices on CUDA, on tensor cores for two bytes: a rule for the blocks of `cuda_compute`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import s_tir
from tvm.tirx import IndexMap, PrimFunc

from tvm_cascade.cost.tiles import FRAGMENT, Tiles
from tvm_cascade.errors import GraphError
from tvm_cascade.staging.kernels.blocks import Schedule, inner_blocks, name_of
from tvm_cascade.staging.kernels.cuda_compute import PRODUCT, ROWS, TF32, TILES
from tvm_cascade.staging.kernels.tensor_cores import MULTIPLIED, fragment_intrinsics, tf32_intrinsics

# for what is multiplied, of any size; for the sums, which never share its bytes
_SHARED, _SUMS = ("shared.dyn", "shared")
_LANES = 32  # threads of a warp
_HALVES, _FLOATS = 8, 4  # values of two bytes and of float32 that a thread loads at once


class Product:
    """A rule with dlight's interface."""

    def apply(self, func: Any, _target: Any, _tunable: bool) -> Schedule | None:
        """Schedule a product of `cuda_compute`; None for other kernels. Raises `GraphError` for a product without a
        kernel.
        """
        if not isinstance(func, PrimFunc):
            return None
        sch = s_tir.Schedule(func)
        acc = next((b for b in inner_blocks(sch) if name_of(sch, b) == PRODUCT), None)
        if acc is None:
            return None
        try:
            return product(sch, acc)
        except s_tir.ScheduleError:  # other rules would allocate memory for its rows, which nothing may in a CUDA graph
            raise GraphError("a product of this network has no kernel for CUDA: give --unit op") from None


def product(sch: Schedule, acc: Any) -> Schedule:
    """Split the product `acc`, and the element-wise operators behind, over blocks of threads as the annotation says."""
    tiles = Tiles(*(int(v) for v in sch.get(acc).annotations[TILES]))
    tf32 = TF32 in sch.get(acc).annotations
    for annotation in (TILES, *([TF32] if tf32 else [])):
        sch.unannotate(acc, annotation)
    last = inner_blocks(sch)[-1]
    for block in inner_blocks(sch):
        if name_of(sch, block) not in (PRODUCT, ROWS, name_of(sch, last)):
            sch.compute_inline(block)
    _as_matrix(sch, acc, last)
    dtype = str(sch.get(acc).reads[0].source.dtype)
    *_, k = sch.get_loops(acc)
    if tiles.slices > 1:
        _, s, _ = sch.split(k, [None, tiles.slices, tiles.depth])
        partial = sch.rfactor(s, 0)
        sch.set_scope(partial, 0, _SUMS)
    else:
        partial = acc
        acc = sch.cache_write(partial, 0, _SUMS)
    if dtype in MULTIPLIED:
        _tensor_cores(sch, partial, acc, last, tiles, fragment_intrinsics(dtype, _SHARED, _SUMS))
    elif tf32:
        _warps(sch, partial, acc, last, tiles)
    else:
        _lanes(sch, partial, acc, last, tiles)
    return sch


def _as_matrix(sch: Schedule, acc: Any, last: Any) -> None:
    """Give the last block the axes of the product: rows are the pixels, in order, and columns the channels."""
    product = sch.get(acc).writes[0].source
    region = next(r.region for r in sch.get(last).reads if r.source.same_as(product))
    axes = [v.var for v in sch.get(last).iter_vars]
    column = next(k for k, v in enumerate(axes) if v.same_as(region[1].min))
    extents = [int(v.dom.extent) for v in sch.get(last).iter_vars]

    def index(*at: Any) -> list[Any]:
        row: Any = 0
        for k, extent in enumerate(extents):
            if k != column:
                row = row * extent + at[k]
        return [row, at[column]]

    sch.transform_block_layout(last, IndexMap.from_func(index, ndim=len(extents)))


def _tensor_cores(sch: Schedule, partial: Any, acc: Any, last: Any, tiles: Tiles, names: Mapping[str, str]) -> None:
    """Schedule the product in fragments (`FRAGMENT` rows, columns and depth) by the intrinsics in `names`."""
    m, n, step, s, depth = _sliced(sch, partial, tiles)
    m, m_in = sch.split(m, [None, FRAGMENT])
    n, n_in = sch.split(n, [None, FRAGMENT])
    depth, k_in = sch.split(depth, [None, FRAGMENT])
    gm, wm, fm = sch.split(m, [None, tiles.warp_rows, tiles.rows // FRAGMENT // tiles.warp_rows])
    gn, wn, fn = sch.split(n, [None, tiles.warp_columns, tiles.columns // FRAGMENT // tiles.warp_columns])
    sch.reorder(gm, gn, s, wm, wn, step, depth, fm, fn, m_in, n_in, k_in)
    inner = partial
    outer = sch.blockize(m_in)
    grid, warps = _by_warps(sch, (gm, gn), (s, wm, wn))
    _stage(sch, outer, step, tiles, _HALVES)
    fragments = [sch.cache_read(outer, operand, f"wmma.matrix_{'ab'[operand]}") for operand in (0, 1)]
    for fragment in fragments:
        sch.compute_at(fragment, depth)
    store = sch.cache_write(outer, 0, "wmma.accumulator")
    sch.reverse_compute_at(store, warps)
    _epilogue(sch, acc, last, grid, tiles)
    init = sch.get_child_blocks(sch.decompose_reduction(outer, step))[0]
    for block, name in zip((*fragments, store), ("load_a", "load_b", "store"), strict=True):
        _by_fragments(sch, block, names[name])
    sch.tensorize(sch.get_loops(init)[-2], names["init"])
    sch.tensorize(sch.get_loops(inner)[-3], names["compute"])


def _by_fragments(sch: Schedule, block: Any, name: str) -> None:
    """Replace a copy, or an initialization, by intrinsics on whole fragments."""
    i, j = sch.get_loops(block)[-2:]
    i0, i1 = sch.split(i, [None, FRAGMENT])
    j0, j1 = sch.split(j, [None, FRAGMENT])
    sch.reorder(i0, j0, i1, j1)
    sch.unroll(i0)
    sch.unroll(j0)
    sch.tensorize(i1, name)


def _warps(sch: Schedule, partial: Any, acc: Any, last: Any, tiles: Tiles) -> None:
    """Schedule the float32 product on tensor cores: one call for all a warp multiplies in a step."""
    rows, columns = tiles.rows // tiles.warp_rows, tiles.columns // tiles.warp_columns
    names = tf32_intrinsics(rows, columns, tiles.depth, _SHARED, _SUMS)
    m, n, step, s, depth = _sliced(sch, partial, tiles)
    gm, wm, fm = sch.split(m, [None, tiles.warp_rows, rows])
    gn, wn, fn = sch.split(n, [None, tiles.warp_columns, columns])
    sch.reorder(gm, gn, s, wm, wn, step, fm, fn, depth)
    inner = partial
    outer = sch.blockize(fm)
    grid, warps = _by_warps(sch, (gm, gn), (s, wm, wn))
    _stage(sch, outer, step, tiles, _FLOATS)
    store = sch.cache_write(outer, 0, "wmma.accumulator")
    sch.reverse_compute_at(store, warps)
    _epilogue(sch, acc, last, grid, tiles)
    init = sch.get_child_blocks(sch.decompose_reduction(outer, step))[0]
    _by_fragments(sch, store, names["store"])
    _by_fragments(sch, init, names["init"])
    sch.tensorize(sch.get_loops(inner)[-3], names["compute"])


def _sliced(sch: Schedule, partial: Any, tiles: Tiles) -> list[Any]:
    """Return the loops over rows, columns, steps, slices, and a slice's products in a step."""
    m, n, *k = sch.get_loops(partial)
    return [m, n, *(k if tiles.slices > 1 else sch.split(k[0], [None, 1, tiles.depth]))]


def _by_warps(sch: Schedule, tiles: Sequence[Any], parts: Sequence[Any]) -> tuple[Any, Any]:
    """Bind a loop over tiles to thread blocks, and a loop over a tile's parts to warps; returns both."""
    grid, warps = sch.fuse(*tiles), sch.fuse(*parts)
    sch.bind(grid, "blockIdx.x")
    sch.bind(warps, "threadIdx.y")
    return grid, warps


def _stage(sch: Schedule, block: Any, step: Any, tiles: Tiles, lanes: int) -> None:
    """Read both operands for a step into shared memory; this includes gathering the pixels."""
    pixels, _ = (_to_shared(sch, block, operand, step, tiles, lanes) for operand in (0, 1))
    sch.compute_inline(sch.get_producers(pixels)[0])


def _to_shared(sch: Schedule, block: Any, operand: int, step: Any, tiles: Tiles, lanes: int) -> Any:
    """Read a step's factors into shared memory, with all threads, whole vectors at a time."""
    read = sch.cache_read(block, operand, _SHARED)
    sch.compute_at(read, step)
    fused = sch.fuse(*sch.get_loops(read)[-2:])
    _, y, x, vector = sch.split(fused, [None, tiles.warps, _LANES, lanes])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.vectorize(vector)
    sch.storage_align(read, 0, axis=-2, factor=2 * lanes, offset=lanes)
    return read


def _epilogue(sch: Schedule, acc: Any, last: Any, grid: Any, tiles: Tiles) -> None:
    """Add up the partial sums of a block and compute the operators behind them, with all threads."""
    sch.reverse_compute_at(acc, grid, preserve_unit_loops=True)
    sch.reverse_compute_at(last, grid, preserve_unit_loops=True)
    fused = sch.fuse(*sch.get_loops(last)[-2:])
    _, y, x = sch.split(fused, [None, tiles.warps, _LANES])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.compute_at(acc, x)
    sch.set_scope(acc, 0, "local")


def _lanes(sch: Schedule, partial: Any, acc: Any, last: Any, tiles: Tiles) -> None:
    """Schedule the product as a rectangle of results per thread; a warp has 4 rows with 8 threads each."""
    m, n, step, s, depth = _sliced(sch, partial, tiles)
    depth, k_in = sch.split(depth, [None, _FLOATS])
    gm, wm, lm, tm = sch.split(m, [None, tiles.warp_rows, 4, tiles.rows // tiles.warp_rows // 4])
    gn, wn, ln, tn = sch.split(n, [None, tiles.warp_columns, 8, tiles.columns // tiles.warp_columns // 8])
    sch.reorder(gm, gn, s, wm, wn, lm, ln, step, depth, k_in, tm, tn)
    grid, warps, lanes = sch.fuse(gm, gn), sch.fuse(s, wm, wn), sch.fuse(lm, ln)
    sch.bind(grid, "blockIdx.x")
    sch.bind(warps, "threadIdx.y")
    sch.bind(lanes, "threadIdx.x")
    staged = [_to_shared(sch, partial, operand, step, tiles, _FLOATS) for operand in (0, 1)]
    sch.compute_inline(sch.get_producers(staged[0])[0])
    for operand in (0, 1):
        read = sch.cache_read(partial, operand, "local")
        sch.compute_at(read, depth)
        sch.vectorize(sch.get_loops(read)[-1])
        sch.unroll(sch.get_loops(read)[-2])
    store = sch.cache_write(partial, 0, "local")
    sch.reverse_compute_at(store, lanes)
    _epilogue(sch, acc, last, grid, tiles)
    sch.decompose_reduction(partial, step)
    for loop in (k_in, tm, tn):
        sch.unroll(loop)
