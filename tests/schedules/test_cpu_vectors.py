"""Loops over elements in order become vectors, and no other loops."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.script import tirx as T

from tvm_cascade.staging.kernels.cpu_compute import LANES
from tvm_cascade.staging.kernels.cpu_float import schedule_cpu
from tvm_cascade.staging.kernels.cpu_vectors import in_vectors
from tvm_cascade.staging.kernels.processors import accumulators, host_target

Kernel = Callable[..., Any]
CASES: dict[str, tuple[list[tuple[int, ...]], tuple[int, ...], Kernel, Kernel, int]] = {  # the last: vectors of a run; 0: none
    "sum of planes": (
        [(1, 4, 14, 14)] * 2, (1, 4, 14, 14),
        lambda x, y: lambda n, c, h, w: x[n, c, h, w] + y[n, c, h, w], lambda x, y: x + y, 49,
    ),
    "packed channels by a factor": (
        [(1, 2, 5, 7, 16), (1, 32, 1, 1)], (1, 2, 5, 7, 16),
        lambda x, y: lambda n, c, h, w, v: x[n, c, h, w, v] * y[n, c * 16 + v, 0, 0],
        lambda x, y: x * y.reshape(1, 2, 1, 1, 16), 70,
    ),
    "planes by a factor": (
        [(1, 3, 4, 8), (3,)], (1, 3, 4, 8), lambda x, y: lambda n, c, h, w: x[n, c, h, w] * y[c],
        lambda x, y: x * y.reshape(1, 3, 1, 1), 6,
    ),
    "a factor for each row": (
        [(5, 16, 1), (5, 16, 16)], (5, 16, 16), lambda x, y: lambda a, b, c: x[a, b, 0] - y[a, b, c], lambda x, y: x - y, 80,
    ),
    "planes without whole vectors": (
        [(1, 3, 7, 7), (3,)], (1, 3, 7, 7), lambda x, y: lambda n, c, h, w: x[n, c, h, w] * y[c],
        lambda x, y: x * y.reshape(1, 3, 1, 1), 0,
    ),
    "transposed": (
        [(16, 32)], (32, 16), lambda x: lambda a, b: x[b, a] + tirx.const(1.0, "float32"), lambda x: x.T + 1, 0,
    ),
    "backwards": (
        [(3, 16)], (3, 16), lambda x: lambda a, b: x[a, 15 - b] * tirx.const(2.0, "float32"), lambda x: 2 * x[:, ::-1], 0,
    ),
}  # fmt: skip


def vectors(func: Any) -> int:
    """Count the vectors that a kernel of a single nest of loops makes in a run."""
    loops: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.For, loops.append))
    lanes = [int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.VECTORIZED]
    assert lanes in ([], [LANES])
    return prod(int(loop.extent) for loop in loops) // LANES if lanes else 0


@pytest.mark.parametrize("parallel", [False, True], ids=["one core", "all cores"])
@pytest.mark.parametrize("name", CASES)
def test_elements_in_order_are_vectors(name: str, parallel: bool) -> None:
    shapes, shape, build, expected, count = CASES[name]
    given = [te.placeholder(s, "float32", f"x{k}") for k, s in enumerate(shapes)]
    func = te.create_prim_func([*given, te.compute(shape, build(*given), "made")])
    func = schedule_cpu(func, parallel, accumulators("llvm"))
    assert vectors(func) == count
    rng = np.random.default_rng(3)
    data = [rng.standard_normal(s).astype("float32") for s in shapes]
    result = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main").with_attr("tirx.is_scheduled", True)})
    tvm.compile(mod, host_target())["main"](*map(tvm.runtime.tensor, data), result)
    np.testing.assert_array_equal(result.numpy(), expected(*data))


@T.prim_func(s_tir=True)
def _halved(y: T.Buffer((33,), "float32")):
    for i in range(32):
        with T.sblock("halved"):
            v = T.axis.spatial(32, i)
            y[v + 1] = y[v] * T.float32(0.5)


def test_steps_that_read_what_others_store_stay_in_a_loop() -> None:
    assert in_vectors(_halved).same_as(_halved)
