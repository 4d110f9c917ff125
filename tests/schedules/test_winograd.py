"""Winograd's form of 3x3 convolutions beside sums of products in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvm_cascade.cost.winograd import winograd_size
from tvm_cascade.staging.kernels.cpu_compute import LANES, pack
from tvm_cascade.staging.kernels.cpu_float import schedule_cpu
from tvm_cascade.staging.kernels.cpu_winograd import SIZES, pack_winograd, winograd_conv2d
from tvm_cascade.staging.kernels.processors import accumulators, host_target

ERROR = {2: 2e-6, 4: 1e-5}  # largest difference, relative to the largest output


def reference(x: np.ndarray, oihw: np.ndarray, padding: tuple[int, int, int, int]) -> np.ndarray:
    """A convolution of `[channels][h][w]` in double precision."""
    top, left, bottom, right = padding
    wide = np.pad(x.astype("float64"), ((0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (1, 2))
    return np.einsum("ihwab,oiab->ohw", windows, oihw.astype("float64"))


def run(x, oihw, padding, m: int, parallel: bool, packed: bool) -> np.ndarray:
    """`max(conv + 1, 0)` of `[channels][h][w]` in whole vectors, by the kernel as it is scheduled."""
    i, h, w = x.shape
    values = np.ascontiguousarray(x.reshape(1, i // LANES, LANES, h, w).transpose(0, 1, 3, 4, 2))
    weights = pack_winograd(oihw, m)
    channels = len(oihw) if not packed else len(weights) * LANES
    source, weight = (te.placeholder(a.shape, name=n) for a, n in ((values, "x"), (weights, "w")))
    conv = winograd_conv2d(source, weight, channels, padding, m)
    out = te.compute(conv.shape, lambda *at: tirx.max(conv[at] + 1.0, 0.0), name="act")
    func = schedule_cpu(
        te.create_prim_func([source, weight, pack(out) if packed else out]), parallel, accumulators("llvm")
    )
    assert "vectorized" in str(func)
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main").with_attr("tirx.is_scheduled", True)})
    result = tvm.runtime.tensor(np.full([int(d) for d in func.params[-1].ty.shape], np.nan, "float32"))
    tvm.compile(mod, host_target())["main"](*map(tvm.runtime.tensor, (values, weights)), result)
    made = result.numpy()[0]
    return made.transpose(0, 3, 1, 2).reshape(-1, *made.shape[1:3])[: len(oihw)] if packed else made


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize(
    "channels, size, padding",
    [((32, 24), (9, 14), (1, 1, 1, 1)), ((16, 32), (8, 7), (0, 2, 1, 0)), ((48, 16), (3, 31), (0, 0, 0, 0))],
)
def test_equals_sums_of_products(m, channels, size, padding):
    rng = np.random.default_rng(m)
    x = rng.standard_normal((channels[0], *size)).astype("float32")
    oihw = rng.standard_normal((channels[1], channels[0], 3, 3)).astype("float32")
    expected = np.maximum(reference(x, oihw, padding) + 1, 0)
    made = run(x, oihw, padding, m, parallel=False, packed=True)
    assert np.abs(made - expected).max() <= ERROR[m] * np.abs(expected).max()
    for parallel, packed in ((True, False), (True, True)):
        np.testing.assert_array_equal(run(x, oihw, padding, m, parallel, packed), made)


def test_several_blocks_of_tiles_shared_by_threads():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 66, 66)).astype("float32")
    oihw = rng.standard_normal((16, 16, 3, 3)).astype("float32")
    made = run(x, oihw, (1, 1, 1, 1), 2, parallel=True, packed=True)
    expected = np.maximum(reference(x, oihw, (1, 1, 1, 1)) + 1, 0)
    assert np.abs(made - expected).max() <= ERROR[2] * np.abs(expected).max()


def test_the_form_of_least_work():
    assert winograd_size((64, 256), (13, 13), 4) == 4
    assert winograd_size((64, 256), (13, 13), 2) == 2
    assert winograd_size((64, 256), (13, 13), 0) is None
    assert winograd_size((448, 384), (8, 8), 4) == 2  # larger tiles have more weights
    assert winograd_size((64, 64), (1, 1), 4) is None
