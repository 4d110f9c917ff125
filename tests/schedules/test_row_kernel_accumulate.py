"""Accumulating kernels: fed piece by piece they compute what the operator computes at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from tvm_cascade.schedules.kernels.accumulate import Accumulating, accumulate_kernel
from tvm_cascade.schedules.kernels.kernel import Param, Role
from tvm_cascade.schedules.tir.macs import count_macs
from tvm_cascade.testing.host_call import HostKernel
from tvm_cascade.testing.quick_build import quick_build


@pytest.fixture
def kernels_are_built_once() -> None:
    """They are the subject here: every test builds its own."""


def act(*shape: int, dtype: str = "int8", name: str = "x") -> te.Tensor:
    return te.placeholder(shape, dtype, name=name)


def requantize(acc):
    value = (acc.astype("int64") * tirx.const(1431655765, "int64")) >> tirx.const(40, "int64")
    return tirx.max(tirx.min(value, tirx.const(127, "int64")), tirx.const(-128, "int64")).astype("int8")


def mean(h: int, w: int, c: int) -> tirx.PrimFunc:
    x, ry, rx = act(1, h, w, c), te.reduce_axis((0, h)), te.reduce_axis((0, w))
    acc = te.compute(
        (1, 1, 1, c), lambda n, y, xx, k: te.sum(x[n, y * h + ry, xx * w + rx, k].astype("int32"), [ry, rx]), "m_acc"
    )
    out = te.compute(acc.shape, lambda *i: requantize(acc(*i) * 99999), "mean")
    return te.create_prim_func([x, out], index_dtype_override="int32")


def dense(k: int, units: int) -> tirx.PrimFunc:
    x, w, b, r = act(1, k), act(units, k, name="w"), act(units, dtype="int32", name="b"), te.reduce_axis((0, k))
    acc = te.compute(
        (1, units), lambda n, o: te.sum((x[n, r].astype("int32") - 3) * w[o, r].astype("int32"), r), "d_acc"
    )
    out = te.compute(acc.shape, lambda n, o: requantize((acc[n, o] + b[o]) * 4), "dense")
    return te.create_prim_func([x, w, b, out], index_dtype_override="int32")


def run(made: Accumulating, func: tirx.PrimFunc, arrays: Sequence[np.ndarray], cuts: Sequence[int]) -> np.ndarray:
    """Feed the input in the pieces between `cuts`; the accumulator starts as garbage."""
    macs = np.zeros(1, "int64")
    extra = (Param(Role.CONSTANT, -1, "int64"),)
    host = HostKernel(made.kernel, extra, count_macs(made.kernel.func))
    out_type = func.params[-1].ty
    out = np.full([int(d) for d in out_type.shape], 77, str(getattr(out_type.dtype, "dtype", out_type.dtype)))
    dtype = np.dtype(next(p.dtype for p in host.params if p.role is Role.ACCUMULATOR))
    acc = np.full(made.accumulator_bytes // dtype.itemsize, 77, dtype)
    flat = arrays[0].reshape(-1)
    for begin, end in pairwise(cuts):
        values = {(Role.CONSTANT, i): c for i, c in enumerate(arrays[1:])}
        values |= {(Role.INPUT, 0): flat[begin:end].copy(), (Role.ACCUMULATOR, 0): acc, (Role.OUTPUT, 0): out}
        values |= {(Role.BEGIN, 0): begin, (Role.END, 0): end, (Role.CONSTANT, -1): macs}
        values[Role.SCRATCH, 0] = np.full(made.kernel.scratch_bytes, 77, "int8")
        host(*(values[p.role, p.index] for p in host.params))
    assert macs[0] in (0, out.size * flat.size)
    return out


def check(func: tirx.PrimFunc, cuts: Sequence[int], granule: int, accumulator_bytes: int) -> None:
    rng = np.random.default_rng(0)
    kinds = [([int(d) for d in p.ty.shape], str(getattr(p.ty.dtype, "dtype", p.ty.dtype))) for p in func.params]
    arrays = [
        rng.standard_normal(s).astype(d) if d == "float32" else rng.integers(-99, 99, s).astype(d)
        for s, d in kinds[:-1]
    ]
    made = accumulate_kernel(func, arrays[1:])
    assert isinstance(made, Accumulating), made
    assert (made.granule, made.accumulator_bytes, made.elements) == (granule, accumulator_bytes, arrays[0].size)
    lib = quick_build(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    expected = tvm.runtime.tensor(np.zeros(*kinds[-1]))
    lib["main"](*(tvm.runtime.tensor(a) for a in arrays), expected)
    got = run(made, func, arrays, cuts)
    if got.dtype == np.float32:
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, expected.numpy())


@pytest.mark.parametrize("cuts", [(0, 105), (0, 35, 70, 105), (0, 7, 21, 28, 98, 105)])
def test_global_mean(cuts: Sequence[int]) -> None:
    check(mean(3, 5, 7), cuts, 7, 28)


@pytest.mark.parametrize("cuts", [(0, 60), (0, 12, 24, 60), (0, 1, 2, 59, 60)])
def test_dense(cuts: Sequence[int]) -> None:
    check(dense(60, 6), cuts, 1, 24)


def test_float_mean() -> None:
    x = act(1, 4, 5, 6, dtype="float32")
    check(te.create_prim_func([x, topi.divide(topi.sum(x, (1, 2), True), 20.0)]), (0, 30, 60, 120), 6, 24)
    planes = act(1, 6, 4, 5, dtype="float32")
    assert accumulate_kernel(te.create_prim_func([planes, topi.sum(planes, (2, 3), True)]), []) == (
        "the reduction does not run over the input's leading axes"
    )


def test_global_maximum() -> None:
    x = act(1, 4, 5, 6)
    check(te.create_prim_func([x, topi.max(x, (1, 2), True)]), (0, 30, 120), 6, 6)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda x: topi.nn.softmax(x, 3), "not read by one reduction"),
        (lambda x: topi.nn.relu(x), "not read by one reduction"),
        (
            lambda x: topi.nn.pool2d(x, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "max", layout="NHWC"),
            "several indices or under a condition",
        ),
        (
            lambda x: topi.nn.pool2d(x, (3, 3), (1, 1), (1, 1), (0, 0, 0, 0), "max", layout="NHWC"),
            "not each read once",
        ),
    ],
)
def test_refusals(make, reason: str) -> None:
    x = act(1, 4, 5, 6, dtype="float32")
    assert reason in str(accumulate_kernel(te.create_prim_func([x, make(x)]), []))
