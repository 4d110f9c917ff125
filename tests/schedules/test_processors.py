"""Accumulator tiles of stage kernels fit into the vector registers of the processor that they are compiled for."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import te

from tvm_cascade.staging.kernels.cpu_compute import (
    LANES,
    PACKED,
    direct_conv2d,
    direct_pointwise,
    direct_product,
    pack,
    pack_columns,
    pack_rows,
)
from tvm_cascade.staging.kernels.cpu_float import default_pixels, schedule_cpu
from tvm_cascade.staging.kernels.processors import accumulators, processor, written

MODELS = {"skylake-avx512": 24, "haswell": 6, "znver3": 6, "x86-64": 3}


def convolution(wide: int):
    x = te.placeholder((1, 2, 6, wide, LANES), name="x")
    weight = te.placeholder((2, 2, 3, 3, LANES, LANES), name="weight")
    made = pack(direct_conv2d(x, weight, 2 * LANES, (1, 1), (0, 0, 0, 0), (1, 1), PACKED))
    return te.create_prim_func([x, weight, made])


def pointwise(channels: int, depth: int, high: int, wide: int):
    x = te.placeholder((1, depth, high, wide), name="x")
    weight = te.placeholder(pack_rows(np.zeros((channels, depth, 1, 1), "float32")).shape, name="weight")
    return te.create_prim_func([x, weight, direct_pointwise(x, weight, channels)])


def product(rows: int):
    x = te.placeholder((rows, 40), name="x")
    weight = te.placeholder(pack_columns(np.zeros((40, 64), "float32"), rows).shape, name="weight")
    return te.create_prim_func([x, weight, direct_product(x, weight, 64)])


def spills(func: tvm.tirx.PrimFunc, target: str, most: int) -> int:
    """Vectors that are written to the stack."""
    scheduled = schedule_cpu(func, False, most).with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": scheduled}), processor(target))
    code = built.mod.inspect_source("asm")
    return len(re.findall(r"v?mov[au]ps\s+%[xyz]mm\d+, -?\d*\(%rsp\)", code))


@pytest.mark.parametrize("model", MODELS)
def test_tiles_fit_into_registers(model):
    target = f"llvm -mcpu={model}"
    assert accumulators(target) == MODELS[model]
    for func in (convolution(15), convolution(57), pointwise(18, 90, 8, 8), product(1), product(13)):
        assert spills(func, target, accumulators(target)) <= 10  # of what surrounds the loops
    assert spills(convolution(64), target, 64) > 20


def test_tiles_hold_few_pixels_behind_the_end_of_a_row():
    assert [default_pixels(w, 6) for w in (4, 6, 13, 27, 55, 56)] == [4, 6, 5, 4, 5, 4]
    assert [default_pixels(w, 24) for w in (13, 24, 27, 55, 56)] == [13, 24, 14, 14, 14]


def test_targets_are_read_and_written():
    text = "llvm -mcpu=x86-64-v3 -mattr=+avx2,+fma"
    assert written(processor(text)) == text
    assert written(tvm.target.Target({"kind": "llvm"})) == "llvm -mcpu=generic"
    assert accumulators("llvm") == accumulators(written(processor("llvm")))


@pytest.mark.parametrize("most", [3, 6, 24])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("shape", [(20, 9, 7, 9), (6, 5, 4, 4), (7, 16, 1, 17), (64, 33, 16, 6)])
def test_pointwise_convolutions_of_any_extents(shape, parallel, most):
    channels, depth, high, wide = shape
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, depth, high, wide)).astype("float32")
    weight = rng.standard_normal((channels, depth, 1, 1)).astype("float32")
    func = schedule_cpu(pointwise(*shape), parallel, most).with_attr("global_symbol", "main")
    assert "T.vectorized" in str(func) and ("T.parallel" in str(func)) == parallel
    given = [
        tvm.runtime.tensor(v) for v in (x, pack_rows(weight), np.full((1, channels, high, wide), np.nan, "float32"))
    ]
    tvm.compile(tvm.IRModule({"main": func}), processor("llvm"))["main"](*given)
    expected = np.einsum("oi,bihw->bohw", weight[:, :, 0, 0], x)
    np.testing.assert_allclose(given[-1].numpy(), expected, rtol=1e-5, atol=1e-5)
