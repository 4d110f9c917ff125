"""Attention in staged programs: one kernel, for CPUs and for CUDA, and softmax with an exponential of vector instructions."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, te

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.attention import MOST_COLUMNS
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.kernels import cuda_attention
from tvm_cascade.staging.kernels.cpu_compute import softmax
from tvm_cascade.staging.kernels.cpu_float import cpu_schedule, schedule_cpu
from tvm_cascade.staging.kernels.cuda_default import cuda_target, schedule_cuda
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.kernels import build_kernels
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.staging.program.specs import Spec
from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.quick_build import quick_build, quick_run
from tvm_cascade.testing.threads_in_turn import in_turn

CPU = AnalyticCost(find_device("cpu2"))


class Attention(Net):
    """Multi-head attention of `length` rows, `heads` heads of `depth` values each, as exporters write it."""

    def __init__(self, length: int = 12, heads: int = 3, depth: int = 16, batch: int = 1) -> None:
        super().__init__("float32", "NCHW", seed=length)
        self.split = (batch, length, heads, depth)
        self.x = self.input((batch, length, heads * depth), "x")

    def made(self, expr) -> Value:
        emitted = self._emit(expr)
        return Value(emitted, tuple(int(d) for d in emitted.ty.shape.values))

    def head(self) -> Value:
        return self.turned(self.reshape(self.dense(self.x, self.x.shape[-1]), self.split), 0, 2, 1, 3)

    def turned(self, x: Value, *axes: int) -> Value:
        return self.made(relax.op.permute_dims(x.expr, list(axes)))

    def scores(self) -> Value:
        return self.matmul(self.head(), self.turned(self.head(), 0, 1, 3, 2))

    def scaled(self, x: Value) -> Value:
        return self.made(relax.op.multiply(x.expr, relax.const(0.3, "float32")))

    def masked(self, x: Value) -> Value:
        mask = np.random.default_rng(0).choice([0.0, -np.inf], (1, 1, *x.shape[2:])).astype("float32")
        mask[..., 0] = 0  # no row without any position
        return self.made(relax.op.add(x.expr, relax.const(mask)))

    def ends(self, x: Value) -> tvm.IRModule:
        """The module, with the result of all heads beside each other, projected and added to the input."""
        joined = self.reshape(self.turned(x, 0, 2, 1, 3), self.x.shape)
        return self.finish(self.add(self.x, self.dense(joined, self.x.shape[-1])))


def plain(**sizes: int) -> tvm.IRModule:
    net = Attention(**sizes)
    return net.ends(net.matmul(net.softmax(net.masked(net.scaled(net.scores()))), net.head()))


def kernels_of(mod: tvm.IRModule, unit: str = "fused") -> list[list[str]]:
    net = stage_graph(mod)
    return [[net.graph.ops[i].kind for i in k] for kernels in unit_graph(net.graph, unit).kernels for k in kernels]


def attention_kernel(mod: tvm.IRModule, cpu: bool):
    net = stage_graph(mod)
    spec = max((k for kernels in unit_graph(net.graph, "fused").kernels for k in kernels), key=len)
    (kernel,) = build_kernels(net, [Spec(spec)], cpu)
    return kernel.func


def check(mod: tvm.IRModule, unit: str = "fused") -> None:
    (x,) = mod["main"].params
    data = np.random.default_rng(1).standard_normal([int(d) for d in x.ty.shape.values]).astype("float32")
    (expected,) = quick_run(mod, data)
    net = stage_graph(mod)
    found = schedule(net.graph, CPU, Options(unit=unit)).schedule
    (made,) = Session(compile_stages(lower_stages(net, unit_graph(net.graph, unit), found, LowerOptions()))).run(data)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"length": 1},
        {"length": 37, "depth": 24},
        {"length": 53},
        {"length": 32, "depth": 32},
        {"length": 9, "batch": 2, "heads": 1},
    ],
)
def test_attention_is_one_kernel(sizes):
    mod = plain(**sizes)
    inside = ["permute_dims"] * 4 + ["matmul", "mul", "add", "softmax", "matmul", "permute_dims"]
    assert [sorted(k) for k in kernels_of(mod) if "softmax" in k] == [sorted(inside)]
    assert all(len(k) == 1 for k in kernels_of(mod, "op"))
    check(mod)


@pytest.mark.parametrize("length", [1, 12, 37])
def test_matrices_without_heads(length: int) -> None:
    """`softmax(x @ x.T) @ x` of a plain matrix is one kernel too."""
    net = Attention(length=length)
    x = net.reshape(net.x, (length, 48))
    mod = net.finish(net.matmul(net.softmax(net.matmul(x, net.turned(x, 1, 0))), x))
    assert any(k.count("matmul") == 2 and "softmax" in k for k in kernels_of(mod))
    check(mod)


def unmasked(**sizes: int) -> tvm.IRModule:
    net = Attention(**sizes)
    return net.ends(net.matmul(net.softmax(net.scaled(net.scores())), net.head()))


@pytest.mark.parametrize("most", [3, 6, 24])  # vectors of SSE, AVX2 and AVX-512
@pytest.mark.parametrize("length", [1, 9, 16, 37, 53, 64])
def test_scores_fill_whole_vectors(length, most):
    """Of any length without a mask, of whole vectors or a number with a mask: largest scores and sums of a row are vectors."""
    for mod, filled in ((unmasked(length=length), True), (plain(length=length), length in (1, 16, 64))):
        scheduled = cpu_schedule(attention_kernel(mod, True), False, most)
        assert scheduled.rule == "attention" and not scheduled.refused
        assert ("mix_sum_part" in scheduled.func.script()) == filled
    if most == 6:
        check(unmasked(length=length))


def test_nan_reaches_every_row():
    x = np.random.default_rng(0).standard_normal((1, 12, 48)).astype("float32")
    x[0, 5] = np.nan
    mod = unmasked()
    net = stage_graph(mod)
    found = schedule(net.graph, CPU, Options()).schedule
    (made,) = Session(compile_stages(lower_stages(net, unit_graph(net.graph, "fused"), found, LowerOptions()))).run(x)
    assert np.isnan(made).all()  # every row weighs the values of row 5


def views() -> tvm.IRModule:
    """A mask per window: the scores are reshaped around its sum, and the scale is one of q, which is a part of a whole."""
    net = Attention(length=8, batch=4)
    scores = net.matmul(net.scaled(net.head()), net.turned(net.head(), 0, 1, 3, 2))
    seen = net.reshape(scores, (2, 2, *scores.shape[1:]))
    mask = np.random.default_rng(0).standard_normal((1, 2, 1, *scores.shape[2:])).astype("float32")
    back = net.reshape(net.made(relax.op.add(seen.expr, relax.const(mask))), scores.shape)
    return net.ends(net.matmul(net.softmax(back), net.head()))


def read_twice() -> tvm.IRModule:
    """The weights of positions are also a result: they have to be written."""
    net = Attention()
    weights = net.softmax(net.scores())
    y = net.turned(net.matmul(weights, net.head()), 0, 2, 1, 3)
    return net.finish([net.dense(net.reshape(y, net.x.shape), 8), weights])


def other_axis() -> tvm.IRModule:
    net = Attention()
    return net.ends(net.matmul(net.made(relax.op.nn.softmax(net.scores().expr, axis=1)), net.head()))


def weights_on_the_right() -> tvm.IRModule:
    net = Attention(length=16)
    return net.ends(net.turned(net.matmul(net.turned(net.head(), 0, 1, 3, 2), net.softmax(net.scores())), 0, 1, 3, 2))


def test_views_of_scores_and_a_scale_of_queries_are_inside():
    (kernel,) = [k for k in kernels_of(views()) if "softmax" in k]
    assert kernel.count("reshape") == 2 and kernel.count("permute_dims") == 5 and kernel.count("mul") == 1
    check(views())


@pytest.mark.parametrize("build", [read_twice, other_axis, weights_on_the_right])
def test_what_is_no_attention(build):
    assert [k for k in kernels_of(build()) if "softmax" in k] == [["softmax"]]
    if build is not read_twice:
        check(build())


def test_rows_that_no_memory_of_a_kernel_holds():
    for length, alone in ((MOST_COLUMNS, False), (MOST_COLUMNS + 1, True)):
        net = Attention(length=length, heads=1, depth=1)
        assert (["softmax"] in kernels_of(net.ends(net.matmul(net.softmax(net.scores()), net.head())))) == alone


def run(func, *arrays: np.ndarray) -> np.ndarray:
    """The last parameter of a kernel after a call of it."""
    held = [tvm.runtime.tensor(a) for a in arrays]
    quick_build(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))["main"](*held)
    return held[-1].numpy()


def arrays_of(func) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.standard_normal([int(d) for d in p.ty.shape]).astype("float32") for p in func.params]


@pytest.mark.parametrize("build", [plain, lambda: plain(length=37, depth=24), lambda: plain(length=1), views])
def test_the_kernel_for_cuda(build):
    func = attention_kernel(build(), cpu=False)
    made = cuda_attention.attention(s_tir.Schedule(func))
    arrays = arrays_of(func)
    np.testing.assert_allclose(run(in_turn(made.mod["main"]), *arrays), run(func, *arrays), rtol=1e-5, atol=1e-6)


def test_the_program_for_cuda_launches_it_once():
    func = attention_kernel(plain(), cpu=False).with_attr("global_symbol", "attention")
    built = tvm.tirx.build(
        schedule_cuda(tvm.IRModule({"attention": func}), "cuda -arch=sm_90"), cuda_target("cuda -arch=sm_90")
    )
    code = built.imports[0].inspect_source()
    assert code.count("__launch_bounds__") == 2  # declared and defined: one kernel
    assert "__shared__" in code


def test_only_attention_gets_its_schedule():
    net = Net("float32", "NCHW")
    mod = net.finish(net.softmax(net.input((4, 50), "x")))
    held = stage_graph(mod)
    (kernel,) = build_kernels(held, [Spec((0,))], cpu=False)
    assert not cuda_attention.is_attention(s_tir.Schedule(kernel.func))


@pytest.mark.parametrize("shape", [(3, 50), (2, 5, 17), (1, 1000)])
def test_softmax_is_exact_to_the_last_places(shape):
    x = te.placeholder(shape, "float32", name="x")
    func = schedule_cpu(te.create_prim_func([x, softmax(x)]), True, 6)
    data = np.random.default_rng(0).uniform(-90, 10, shape).astype("float32")
    data[..., 3] = -np.inf
    powers = np.exp((data - data.max(-1, keepdims=True)).astype("float64"))
    np.testing.assert_allclose(
        run(func, data, np.empty_like(data)), powers / powers.sum(-1, keepdims=True), rtol=1e-6, atol=2e-38
    )


@pytest.mark.parametrize("wide", [40, 48], ids=["no whole vectors", "whole vectors"])
@pytest.mark.parametrize("kind", ["softmax", "layer_norm"])
def test_reductions_along_rows_are_one_loop_over_rows(kind, wide):
    net = Net("float32", "NCHW")
    x = net.input((1, 6, wide), "x")
    ones = relax.const(np.ones(wide, "float32"))
    expr = (
        relax.op.nn.softmax(x.expr, -1) if kind == "softmax" else relax.op.nn.layer_norm(x.expr, ones, ones, axes=[-1])
    )
    held = stage_graph(net.finish(Value(net._emit(expr), x.shape)))
    (kernel,) = build_kernels(held, [Spec((0,))], cpu=True)
    scheduled = cpu_schedule(kernel.func, True, 6)
    assert (scheduled.rule, scheduled.refused) == ("rows", ())
    made = scheduled.func
    assert made.script().count("T.parallel") == 1
    arrays = arrays_of(kernel.func)
    np.testing.assert_allclose(run(made, *arrays), run(kernel.func, *arrays), rtol=1e-6, atol=1e-6)
