"""Products of matrices for CUDA: what their TE computes, how they are tiled, and what the rule makes of them."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TVM_NUM_THREADS", "2")

from itertools import product as combinations
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from tvm_cascade.cost.interface import OpFeatures, features
from tvm_cascade.cost.tiles import (
    FLOATS,
    FRAGMENT,
    HALVES,
    SHARED_BYTES,
    Extents,
    Tiles,
    best_microseconds,
    choose_tiles,
    extents_of,
    microseconds,
    shared_bytes,
    tile_sets,
)
from tvm_cascade.staging.kernels.cuda_compute import (
    convolution_as_product,
    dense_as_product,
    pack_rows,
    product_conv2d,
)
from tvm_cascade.staging.kernels.cuda_default import on_tensor_cores, schedule_cuda
from tvm_cascade.staging.kernels.tensor_cores import MULTIPLIED, fragment_intrinsics
from tvm_cascade.testing.quick_build import linked, quick_build
from tvm_cascade.testing.threads_in_turn import in_turn

KINDS = ("float32", "float16", "bfloat16", "tf32")  # what products multiply
SHAPES = {  # layout: input, weights OIHW, strides, padding, dilation
    "NHWC": ((2, 9, 7, 5), (11, 5, 3, 2), (2, 1), (1, 0, 2, 1), (1, 2)),
    "NCHW": ((1, 8, 6, 10), (4, 8, 1, 7), (1, 1), (0, 3, 0, 3), (1, 1)),
}


def _convolved(x: np.ndarray, w: np.ndarray, strides: Any, padding: Any, dilation: Any, layout: str) -> np.ndarray:
    """The convolution in float64, tap by tap."""
    image = np.transpose(x, [layout.index(a) for a in "NCHW"]).astype("float64")
    top, left, bottom, right = padding
    image = np.pad(image, [(0, 0), (0, 0), (top, bottom), (left, right)])
    kh, kw = w.shape[2:]
    oh = (image.shape[2] - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    ow = (image.shape[3] - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    out = np.zeros((x.shape[0], w.shape[0], oh, ow))
    for i, j in combinations(range(kh), range(kw)):
        y, z = i * dilation[0], j * dilation[1]
        part = image[
            :, :, y : y + (oh - 1) * strides[0] + 1 : strides[0], z : z + (ow - 1) * strides[1] + 1 : strides[1]
        ]
        out += np.einsum("nchw,oc->nohw", part, w[:, :, i, j].astype("float64"))
    return np.transpose(out, ["NCHW".index(a) for a in layout])


def _run(compute: Any, *data: np.ndarray) -> np.ndarray:
    inputs = [te.placeholder(d.shape, str(d.dtype), name=f"x{k}") for k, d in enumerate(data)]
    out = compute(*inputs)
    func = te.create_prim_func([*inputs, out]).with_attr("global_symbol", "main")
    built = linked(quick_build(tvm.IRModule({"main": func})).mod)["main"]
    made = tvm.runtime.tensor(np.zeros([int(d) for d in out.shape], "float32"))
    built(*map(tvm.runtime.tensor, data), made)
    return made.numpy()


@pytest.mark.parametrize("tiles", [*HALVES, *FLOATS], ids=str)
@pytest.mark.parametrize("layout", SHAPES)
def test_convolutions(layout: str, tiles: Tiles) -> None:
    """Every tile, with rows, columns and depth that fill none."""
    shape, weights, strides, padding, dilation = SHAPES[layout]
    rng = np.random.default_rng(0)
    dtype = "float16" if tiles in HALVES else "float32"
    x, w = (rng.standard_normal(s).astype(dtype) for s in (shape, weights))
    expected = _convolved(x, w, strides, padding, dilation, layout)

    def compute(image: Any, packed: Any) -> Any:
        return product_conv2d(image, packed, weights[0], weights[2:], (strides, padding, dilation), layout, tiles)

    made = _run(compute, x, pack_rows(w, tiles))
    np.testing.assert_allclose(made, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("shape", [(19, 12), (2, 5, 7, 24)])
def test_products_of_a_tensor_with_a_matrix(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype("float32") for s in (shape, (shape[-1], 10)))
    packed, compute = dense_as_product(shape, w, "float32")
    made = _run(compute, x, packed)
    expected = x.astype("float64") @ w.astype("float64")
    np.testing.assert_allclose(made, expected, atol=1e-5 * np.abs(expected).max())


def test_tiles_fit_every_architecture() -> None:
    """48 KiB of shared memory and 1,024 threads, and vectors that the threads of a block share evenly."""
    for tiles, kind in [(t, k) for k in KINDS for t in tile_sets(k)]:
        assert shared_bytes(tiles, kind) <= SHARED_BYTES and tiles.warps <= 32
        lanes = 8 if kind.endswith("float16") else 4
        assert tiles.rows * tiles.chunk % (32 * lanes * tiles.warps) == 0
        assert tiles.columns * tiles.chunk % (32 * lanes * tiles.warps) == 0
        assert kind == "float32" or tiles.rows // FRAGMENT % tiles.warp_rows == tiles.depth % 8 == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_tiles_of_least_time_are_chosen(kind: str) -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        rows, columns, depth, taps = (int(v) for v in rng.integers(1, (4000, 800, 4000, 10)))
        extents = Extents(rows, columns, depth, taps)
        times = {t: microseconds(extents, t, kind) for t in tile_sets(kind)}
        assert times[choose_tiles(extents, kind)] == min(times.values())
        assert 0 < best_microseconds(extents, kind) < min(times.values())


def test_few_results_with_long_sums_are_split() -> None:
    """The convolutions of Inception's last blocks: large tiles would give work to a tenth of the GPU."""
    few, many = Extents(64, 384, 4032, 9), Extents(21609, 64, 288, 9)
    for kind in KINDS:
        assert choose_tiles(few, kind).slices >= 8
        assert choose_tiles(many, kind).rows > choose_tiles(few, kind).rows


def test_larger_tiles_are_for_larger_batches() -> None:
    """A convolution of Inception at the end, at batch 1 and 128: many results read what they share less often."""
    for kind in KINDS:
        one, many = (choose_tiles(Extents(64 * batch, 384, 4032, 9), kind) for batch in (1, 128))
        assert many.rows * many.columns == 128 * 64 > one.rows * one.columns


def test_products_are_known_by_their_features() -> None:
    item = 4
    conv = features("conv2d", [(1, 8, 10, 10)], [(1, 12, 8, 8)], macs=12 * 64 * 72, weight_bytes=(12 * 72 + 12) * item,
                    shape=(3, 1, 1, 0, 3, 1, 1, 0))  # fmt: skip
    assert extents_of(conv, "float32") == Extents(64, 12, 72, 9)
    merged = OpFeatures(
        "conv2d", 20 * 64 * 72, weight_bytes=20 * 72 * item, output_elements=20 * 64, reduction=72, shape=(-4, 3, 3)
    )
    assert extents_of(merged, "float32") == Extents(64, 20, 72, 9)
    assert extents_of(features("add", [(1, 8)], [(1, 8)]), "float32") is None


def _kernel(kind: str, layout: str) -> tvm.IRModule:
    """A convolution with a bias and a ReLU."""
    dtype = "float32" if kind == "tf32" else kind
    shape, oihw = ((1, 17, 17, 128), (192, 128, 7, 1)) if layout == "NHWC" else ((1, 128, 17, 17), (192, 128, 7, 1))
    packed, compute = convolution_as_product(shape, layout, np.zeros(oihw, dtype), ((1, 1), (3, 0, 3, 0), (1, 1)), kind)
    x, w = te.placeholder(shape, dtype, name="x"), te.placeholder(packed.shape, dtype, name="w")
    b = te.placeholder((192,), "float32", name="b")
    y = compute(x, w)
    axis = layout.index("C")
    z = te.compute(y.shape, lambda *i: y(*i) + b[i[axis]], name="add")
    out = te.compute(y.shape, lambda *i: tirx.max(z(*i), tirx.const(0, "float32")).astype(dtype), name="out")
    return tvm.IRModule({"main": te.create_prim_func([x, w, b, out]).with_attr("global_symbol", "main")})


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_kernel_without_memory_of_its_own(kind: str, layout: str) -> None:
    """Nothing is stored between the product and what is fused into it; float16 is multiplied on tensor cores."""
    made: Any = schedule_cuda(_kernel(kind, layout), "cuda -arch=sm_80")["main"]
    assert on_tensor_cores(made) == (kind != "float32")
    scopes = {str(b.scope()) for b in made.body.block.alloc_buffers}
    assert "global" not in scopes and {"shared", "shared.dyn"} <= scopes
    grid = made.body.block.body
    assert grid.thread_binding.thread_tag == "blockIdx.x"
    tiles = choose_tiles(Extents(17 * 17, 192, 128 * 7, 7), kind)
    assert int(grid.extent) == -(-289 // tiles.rows) * (192 // tiles.columns)


@pytest.mark.parametrize(
    ("kind", "tiles"), [(k, t) for k in ("float16", "float32", "tf32") for t in tile_sets(k)], ids=str
)
@pytest.mark.parametrize("layout", SHAPES)
def test_threads_in_turn_compute_the_same(
    layout: str, kind: str, tiles: Tiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule's own loops, with shared memory and sums by slices, on a CPU; there are no tensor cores there, so that
    fragments are loaded, multiplied and stored by the loops that stand for them."""
    shape, weights, strides, padding, dilation = SHAPES[layout]
    rng = np.random.default_rng(3)
    dtype = "float16" if kind == "float16" else "float32"
    data, w = (rng.standard_normal(s).astype(dtype) for s in (shape, weights))
    packed = pack_rows(w, tiles)
    x, f = te.placeholder(data.shape, dtype, name="x"), te.placeholder(packed.shape, dtype, name="w")
    y = product_conv2d(x, f, weights[0], weights[2:], (strides, padding, dilation), layout, tiles, kind == "tf32")
    out = te.compute(y.shape, lambda *i: tirx.max(y(*i), tirx.const(0, "float32")), name="out")
    monkeypatch.setattr(s_tir.Schedule, "tensorize", lambda *_: None)
    func = schedule_cuda(tvm.IRModule({"main": te.create_prim_func([x, f, out])}), "cuda -arch=sm_80")["main"]
    made = tvm.runtime.tensor(np.zeros([int(d) for d in out.shape], "float32"))
    module = tvm.IRModule({"main": in_turn(func).with_attr("global_symbol", "main")})
    linked(quick_build(module).mod)["main"](tvm.runtime.tensor(data), tvm.runtime.tensor(packed), made)
    expected = np.maximum(_convolved(data, w, strides, padding, dilation, layout), 0)
    np.testing.assert_allclose(made.numpy(), expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", MULTIPLIED)
def test_intrinsics_are_made_without_the_library_of_tvm(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import parses hundreds of functions."""
    monkeypatch.setitem(sys.modules, "tvm.s_tir.tensor_intrin", None)
    names = fragment_intrinsics.__wrapped__(dtype, "shared", "shared")
    assert sorted(names) == ["compute", "init", "load_a", "load_b", "store"]
    for name in names.values():
        assert len(s_tir.TensorIntrin.get(name).impl.params) == len(s_tir.TensorIntrin.get(name).desc.params)
