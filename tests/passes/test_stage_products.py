"""Dense layers in staged programs for CPUs: tiles of rows and columns, whatever rows are left for the last tile."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx

from tvm_cascade.staging.kernels.cpu_compute import direct_product, pack_columns, product_lanes, tile_rows
from tvm_cascade.staging.kernels.cpu_float import schedule_cpu


def product(x: np.ndarray, weight: np.ndarray, most: int) -> np.ndarray:
    """Compute `x @ weight` by the kernel with accumulator tiles of at most `most` vectors, in a buffer of NaN."""
    packed = pack_columns(weight, x.shape[-2], most)
    args = [te.placeholder(v.shape, "float32", name) for v, name in ((x, "x"), (packed, "w"))]
    func = te.create_prim_func([*args, direct_product(*args, weight.shape[1])])
    scheduled = schedule_cpu(func, False, most)
    assert not tvm_ffi.structural_equal(scheduled, func)
    out = tvm.runtime.tensor(np.full((*x.shape[:-1], weight.shape[1]), np.nan, "float32"))
    tvm.compile(scheduled, target="llvm")(tvm.runtime.tensor(x), tvm.runtime.tensor(packed), out)
    return out.numpy()


@pytest.mark.parametrize("most", [3, 6, 24])  # vectors of SSE, AVX2 and AVX-512
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [
        (1, 7, 5),
        (1, 64, 130),
        (2, 3, 16),
        (5, 12, 33),
        (7, 8, 64),
        (13, 30, 48),
        (128, 4, 32),
        (197, 6, 17),
        (8, 16, 24),
        (9, 10, 70),
        (4, 7, 1000),
        (3, 8, 24),
    ],
)
def test_products_are_those_of_numpy(rows, depth, columns, most):
    random = np.random.default_rng(rows)
    x, weight = (random.standard_normal(shape).astype("float32") for shape in ((2, rows, depth), (depth, columns)))
    np.testing.assert_allclose(product(x, weight, most), x @ weight, rtol=1e-5, atol=1e-5)


def test_nan_stays_in_its_row():
    x, weight = np.ones((7, 4), "float32"), np.ones((4, 20), "float32")
    x[6, 1] = np.nan
    assert np.isnan(product(x, weight, 6)).all(axis=1).tolist() == [False] * 6 + [True]


def test_columns_of_a_tile_take_the_fewest_instructions():
    """A tile of 4 rows and 24 columns takes 19 instructions for 12 products, one of 6 and 16 takes 20; the last may be wasted."""
    assert [product_lanes(128, columns, 6) for columns in (16, 24, 64, 128, 192, 512)] == [16, 24, 16, 16, 24, 24]
    assert [product_lanes(rows, 192, 6) for rows in (1, 2, 4, 6, 197)] == [32, 24, 24, 16, 24]
    assert [product_lanes(1, columns) for columns in (5, 32, 33, 64, 65, 96, 1000, 1408)] == [
        16,
        32,
        32,
        32,
        64,
        64,
        32,
        32,
    ]
    assert product_lanes(128, 192, 24) == product_lanes(128, 192) == 16


@pytest.mark.parametrize(("rows", "tile"), [(1, 1), (3, 3), (7, 4), (12, 6), (16, 4), (128, 6), (197, 6)])
def test_tiles_waste_few_rows(rows, tile):
    assert tile_rows(rows) == tile


def test_no_condition_stands_in_the_loop_over_columns():
    """512 columns in tiles of 24, the last of 8: a condition on the column would keep compilers from vectorizing a GELU there."""
    x, packed = te.placeholder((128, 16), "float32", "x"), te.placeholder((22, 16, 24), "float32", "w")
    made = direct_product(x, packed, 512)
    curved = te.compute(made.shape, lambda i, j: te.erf(made[i, j]), name="curved")
    scheduled = schedule_cpu(te.create_prim_func([x, packed, curved]), False, 6)
    realized: list[s_tir.SBlockRealize] = []
    tvm_ffi.structural_walk(scheduled.body, (s_tir.SBlockRealize, realized.append))
    (last,) = [r for r in realized if r.block.name_hint == "curved"]
    assert bool(last.predicate)
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(scheduled.body, (tirx.For, loops.append))
    assert sum(isinstance(loop.extent, tirx.Min) for loop in loops) == 1
