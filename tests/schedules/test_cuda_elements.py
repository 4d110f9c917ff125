"""Short sums on CUDA: a thread for every result, nothing stored in between, and long sums left to other rules."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir

from tvm_cascade.relax_pipeline import cascade_pipeline
from tvm_cascade.staging.kernels.cuda_default import cuda_target
from tvm_cascade.staging.kernels.cuda_elements import Elements
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.specs import Spec
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.quick_build import quick_build
from tvm_cascade.testing.threads_in_turn import in_turn

TARGET = "cuda -arch=sm_80"


def _depthwise(net: Net) -> Any:
    return net.relu(net.depthwise(net.relu(net.input((2, 6, 9, 7), "x")), 5, stride=2, padding=2))


def _pooled(net: Net) -> Any:
    return net.avg_pool(net.input((1, 5, 11, 10), "x"), 3, 1, 1)


def _largest(net: Net) -> Any:
    return net.max_pool(net.input((1, 5, 11, 10), "x"), 3, 2)


def _mean(net: Net) -> Any:
    return net.global_pool(net.input((1, 40, 7, 7), "x"))


def _kernel(make: Any, layout: str = "NCHW") -> Any:
    net = Net("float32", layout, seed=1)
    graph = stage_graph(net.finish(make(net)))
    ops = tuple(op.index for op in graph.graph.ops if not op.view)
    (kernel,) = build_kernels(graph, [Spec(ops)], cpu=False)
    return kernel


def _run(func: Any, arrays: list[np.ndarray]) -> np.ndarray:
    held = [tvm.runtime.tensor(a) for a in arrays]
    quick_build(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))["main"](*held)
    return held[-1].numpy()


@pytest.mark.parametrize("make", [_depthwise, _pooled, _largest, _mean])
def test_threads_in_turn_compute_the_same(make: Any) -> None:
    kernel = _kernel(make)
    with cuda_target(TARGET):
        made = Elements().apply(kernel.func, None, False)
    assert made is not None
    func = made.mod["main"]
    assert {str(b.scope()) for b in func.body.block.alloc_buffers} == {"local"}
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([int(d) for d in p.ty.shape]).astype("float32") for p in kernel.func.params]
    np.testing.assert_allclose(_run(in_turn(func), arrays), _run(kernel.func, arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [relax.op.argmax, relax.op.argmin])
@pytest.mark.parametrize("axis", [0, 1])
def test_indices_of_extremes_of_many_rows(make: Any, axis: int) -> None:
    """They reduce to an index and a value: neither is in global memory, which a kernel cannot allocate."""
    x = relax.Var("x", relax.TensorType((5, 7), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(make(x, axis=axis)))
        builder.emit_func_output(out)
    mod = builder.get()
    (func,) = (f for f in relax.transform.LegalizeOps()(mod).functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    with cuda_target(TARGET):
        made = Elements().apply(func, None, False)
        tvm.compile(mod, cuda_target(TARGET), relax_pipeline=cascade_pipeline(objective="latency"))
    assert made is not None
    data = np.random.default_rng(0).integers(-3, 3, (5, 7)).astype("float32")  # with ties
    held = [tvm.runtime.tensor(data), tvm.runtime.tensor(np.zeros(data.shape[1 - axis], "int64"))]
    quick_build(tvm.IRModule({"main": in_turn(made.mod["main"]).with_attr("global_symbol", "main")}))["main"](*held)
    want = (data.argmax if make is relax.op.argmax else data.argmin)(axis)
    np.testing.assert_array_equal(held[1].numpy(), want)


def test_long_sums_and_several_are_left_to_others() -> None:
    x = relax.Var("x", relax.TensorType((4, 500), "float32"))
    for make in (lambda v: relax.op.sum(v, [1]), lambda v: relax.op.nn.softmax(v, 1), relax.op.nn.relu):
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            with builder.dataflow():
                out = builder.emit_output(builder.emit(make(x)))
            builder.emit_func_output(out)
        mod = relax.transform.LegalizeOps()(builder.get())
        (func,) = (f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
        assert Elements().apply(func, None, False) is None
        assert s_tir.Schedule(func) is not None
