"""Schedules of kernels for CPUs at uneven and small sizes: a rule for each, of which TVM refuses no step, and right results."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_cascade import frontend
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.kernels import records
from tvm_cascade.staging.kernels.cpu_float import CpuSchedule, cpu_schedule
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
TILES = (3, 6, 24)  # accumulators of SSE, AVX2 and AVX-512


class Writer:
    """Appends nodes to an ONNX graph with random weights."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.random = np.random.default_rng(0)

    def constant(self, value: Any) -> str:
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(value), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.standard_normal(shape).astype("float32"))

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(onnx.helper.make_node(kind, inputs, [f"t{len(self.nodes)}"], **attributes))
        return f"t{len(self.nodes) - 1}"

    def model(self, shape: tuple[int, ...], y: str) -> Any:
        value = onnx.helper.make_tensor_value_info
        ends = [value("x", 1, shape)], [value(y, 1, None)]
        graph = onnx.helper.make_graph(self.nodes, "network", *ends, self.weights)
        made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
        return onnx.shape_inference.infer_shapes(made)


def convolution(given: int, made: int, window: int, stride: int, groups: int = 1) -> Callable[[Writer], str]:
    """A convolution between two of one tap: its tensors may be packed."""

    def build(w: Writer) -> str:
        x = w.node("Conv", "x", w.weight(given, given, 1, 1), w.weight(given), kernel_shape=[1, 1])
        pads = [window // 2] * 4
        weights = w.weight(made, given // groups, window, window)
        x = w.node("Relu", w.node("Conv", x, weights, w.weight(made), strides=[stride] * 2, pads=pads, group=groups))
        return w.node("Conv", x, w.weight(made + 3, made, 1, 1))

    return build


def pool(kind: str, channels: int, **attributes: Any) -> Callable[[Writer], str]:
    def build(w: Writer) -> str:
        return w.node(kind, w.node("Conv", "x", w.weight(channels, channels, 1, 1)), **attributes)

    return build


def product(depth: int, columns: int) -> Callable[[Writer], str]:
    return lambda w: w.node("Relu", w.node("Add", w.node("MatMul", "x", w.weight(depth, columns)), w.weight(columns)))


def attention(tokens: int, heads: int, depth: int) -> Callable[[Writer], str]:
    def build(w: Writer) -> str:
        wide = heads * depth
        split = w.constant(np.array([1, tokens, heads, depth]))
        q, k, v = (
            w.node("Transpose", w.node("Reshape", w.node("MatMul", "x", w.weight(wide, wide)), split), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = w.node("Mul", w.node("MatMul", q, k), w.constant(np.float32(0.05)))
        mixed = w.node("Transpose", w.node("MatMul", w.node("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        return w.node("Reshape", mixed, w.constant(np.array([1, tokens, wide])))

    return build


def alone(kind: str, *weights: tuple[int, ...], **attributes: Any) -> Callable[[Writer], str]:
    return lambda w: w.node(kind, "x", *(w.weight(*shape) for shape in weights), **attributes)


WINDOW = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
CASES = {
    "pixel": ((1, 3, 1, 1), convolution(3, 5, 3, 1), ("pointwise", "convolution")),
    "odd pixels": ((1, 16, 7, 5), convolution(16, 19, 3, 1), ("pointwise", "convolution")),
    "odd channels": ((1, 17, 5, 9), convolution(17, 7, 1, 2), ("pointwise", "convolution")),
    "packed": ((1, 16, 14, 14), convolution(16, 32, 3, 1), ("pointwise", "convolution", "winograd")),
    "five taps": ((1, 32, 9, 7), convolution(32, 16, 5, 2), ("pointwise", "convolution")),
    "depthwise": ((1, 16, 7, 7), convolution(16, 16, 3, 2, 16), ("pointwise", "convolution", "vectors_of_channels")),
    "depthwise in parts": (
        (1, 16, 40, 96),
        convolution(16, 16, 5, 1, 16),
        ("pointwise", "convolution", "vectors_of_channels"),
    ),
    "depthwise of prime rows": (
        (1, 16, 61, 90),
        convolution(16, 16, 3, 2, 16),
        ("pointwise", "convolution", "vectors_of_channels"),
    ),
    "plain depthwise": ((1, 5, 3, 2), convolution(5, 5, 5, 1, 5), ("pointwise", "convolution", "window")),
    "two groups": ((1, 6, 5, 5), convolution(6, 4, 3, 1, 2), ("pointwise", "convolution", "window")),
    "packed pool": ((1, 16, 7, 7), pool("MaxPool", 16, **WINDOW), ("pointwise", "convolution", "vectors_of_channels")),
    "pool": ((1, 5, 4, 5), pool("AveragePool", 5, **WINDOW), ("pointwise", "convolution", "window")),
    "mean of pixels": ((1, 17, 3, 3), pool("GlobalAveragePool", 17), ("convolution", "pointwise", "window")),
    "mean of planes": ((2, 17, 5, 7), pool("GlobalAveragePool", 17), ("convolution", "pointwise", "sums")),
    "mean of prime pixels": ((1, 5, 1, 17), pool("GlobalAveragePool", 5), ("convolution", "pointwise", "window")),
    "one row": ((1, 7, 13), alone("Conv", (9, 7, 3), (9,), pads=[1, 1]), ("convolution", "elementwise")),
    "dense": ((7, 30), product(30, 33), ("packed_product",)),
    "dense vector": ((1, 7), product(7, 5), ("packed_product",)),
    "dense of rank 4": ((2, 1, 13, 12), product(12, 130), ("packed_product",)),
    "attention": ((1, 17, 39), attention(17, 3, 13), ("packed_product", "attention")),
    "attention of one": ((1, 1, 16), attention(1, 1, 16), ("packed_product", "attention")),
    "softmax": ((3, 5, 7), alone("Softmax", axis=-1), ("rows",)),
    "softmax of channels": ((2, 5, 3, 7), alone("Softmax", axis=1), ("columns",)),
    "softmax of rows": ((5, 3), alone("Softmax", axis=0), ("columns",)),
    "softmax of equal extents": ((4, 4, 4), alone("Softmax", axis=1), ("columns",)),
    "layer norm": ((2, 5, 13), alone("LayerNormalization", (13,), (13,), axis=-1), ("rows",)),
    "instance norm": ((2, 3, 5, 4), alone("InstanceNormalization", (3,), (3,)), ("rows", "window", "elementwise")),
    "mean of rows": ((3, 5, 28), lambda w: w.node("ReduceMean", "x", w.constant(np.array([-1]))), ("sums",)),
    "largest of planes": ((3, 5, 8, 6), lambda w: w.node("ReduceMax", "x", w.constant(np.array([2, 3]))), ("window",)),
    "largest of both ends": ((3, 5, 8), lambda w: w.node("ReduceMax", "x", w.constant(np.array([0, 2]))), (None,)),
}


@pytest.mark.parametrize("parallel", [False, True], ids=["one core", "all cores"])
@pytest.mark.parametrize("name", CASES)
def test_a_rule_applies_and_results_are_right(name: str, parallel: bool, tmp_path: Path, monkeypatch: Any) -> None:
    shape, build, expected = CASES[name]
    writer = Writer()
    path = tmp_path / "model.onnx"
    onnx.save(writer.model(shape, build(writer)), path)
    made: list[CpuSchedule] = []

    def scheduled(func: Any, _parallel: bool, most: int) -> Any:
        for tiles in TILES:
            made.append(cpu_schedule(func, parallel, tiles))
        return cpu_schedule(func, parallel, most).func

    monkeypatch.setattr(records, "schedule_cpu", scheduled)
    net = stage_network(frontend.load(path), "llvm")
    found = schedule(net.graph, AnalyticCost(find_device("cpu", "llvm", 2)), Options(variant="sequential")).schedule
    staged = lower_stages(net, unit_graph(net.graph, "fused"), found, LowerOptions(workers=2))
    assert {m.rule for m in made} <= set(expected) and not any(m.refused for m in made)
    x = np.random.default_rng(1).standard_normal(shape).astype("float32")
    (y,) = Session(compile_stages(staged)).run(x)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    "window", [(3, 2, [1, 1, 1, 1], 1), (3, 1, [1, 1, 1, 1], 1), (2, 2, [1, 0, 0, 1], 1), (3, 1, [2, 2, 2, 2], 2)]
)
def test_a_padded_max_pool_of_packed_channels_copies_no_tensor(window: Any, tmp_path: Path) -> None:
    """The taps of the last window are no neighbours: what is nearest to padding may lie between them."""
    size, stride, pads, dilation = window
    writer = Writer()
    attributes = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": pads, "dilations": [dilation] * 2}
    y = writer.node("Conv", pool("MaxPool", 16, **attributes)(writer), writer.weight(16, 16, 3, 3))
    path = tmp_path / "model.onnx"
    onnx.save(writer.model((1, 16, 9, 8), y), path)
    net = stage_network(frontend.load(path), "llvm")
    found = schedule(net.graph, AnalyticCost(find_device("cpu", "llvm", 1)), Options(variant="sequential")).schedule
    staged = lower_stages(net, unit_graph(net.graph, "fused"), found, LowerOptions(workers=1))
    pools = [f.script() for f in staged.functions.values() if "pool_max" in f.script()]
    assert len(pools) == 1 and ("pad_temp" in pools[0]) == (dilation > 1)
    x = np.random.default_rng(1).standard_normal((1, 16, 9, 8)).astype("float32")
    (got,) = Session(compile_stages(staged)).run(x)
    wanted = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(("window", "stride"), [(3, 1), (3, 2), (5, 1)])
def test_depthwise_convolutions_copy_few_rows_at_once(window: int, stride: int, tmp_path: Path) -> None:
    """32 channels of 112 x 112 take 1.6 MB; what is padded at once stays in a core's cache."""
    writer, path = Writer(), tmp_path / "model.onnx"
    onnx.save(writer.model((1, 32, 112, 112), convolution(32, 32, window, stride, 32)(writer)), path)
    net = stage_network(frontend.load(path), "llvm")
    found = schedule(net.graph, AnalyticCost(find_device("cpu", "llvm", 1)), Options(variant="sequential")).schedule
    staged = lower_stages(net, unit_graph(net.graph, "fused"), found, LowerOptions(workers=1))
    (kernel,) = [f for f in staged.functions.values() if "group_conv2d" in f.script() or "taps_acc" in f.script()]
    passes = s_tir.transform
    compact = tvm.transform.Sequential(
        [
            passes.PlanAndUpdateBufferAllocationLocation(),
            passes.ConvertBlocksToOpaque(),
            passes.CompactBufferAllocation(),
        ]
    )
    blocks: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(compact(tvm.IRModule({"main": kernel}))["main"].body, (s_tir.SBlock, blocks.append))
    (pad,) = [b for block in blocks for b in block.alloc_buffers if "pad" in b.name]
    rows, wide, lanes = (int(d) for d in pad.ty.shape[2:])
    assert wide >= 112 and lanes == 16 and window < rows < 24
    assert 4 * prod(int(d) for d in pad.ty.shape) <= 5 << 14


@pytest.mark.parametrize("processor", ["haswell", "skylake-avx512"])
def test_no_condition_stands_in_the_loop_over_pixels(processor: str, tmp_path: Path) -> None:
    """196 pixels in vectors of 16, the last of 4: a condition would keep compilers from vectorizing the activation."""
    writer = Writer()
    path = tmp_path / "model.onnx"
    y = writer.node("HardSwish", writer.node("Conv", "x", writer.weight(24, 5, 1, 1)))
    onnx.save(writer.model((1, 5, 14, 14), y), path)
    net = stage_network(frontend.load(path), "llvm")
    found = schedule(net.graph, AnalyticCost(find_device("cpu", "llvm", 1)), Options(variant="sequential")).schedule
    options = LowerOptions(workers=1, target=f"llvm -mcpu={processor}")
    staged = lower_stages(net, unit_graph(net.graph, "fused"), found, options)
    (kernel,) = [f for f in staged.functions.values() if "point_acc" in f.script()]
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(kernel.body, (tirx.For, loops.append))
    assert sum(isinstance(loop.extent, tirx.Min) for loop in loops) == 1
    assert "T.where" not in kernel.script()


@pytest.mark.parametrize(
    "build", [attention(197, 3, 64), product(192, 192)], ids=["three heads", "three tiles of columns"]
)
def test_threads_share_the_rows_of_few_pieces(build: Any, tmp_path: Path) -> None:
    """Two threads would compute two and one of three."""
    writer = Writer()
    onnx.save(writer.model((1, 197, 192), build(writer)), tmp_path / "model.onnx")
    net = stage_network(frontend.load(tmp_path / "model.onnx"), "llvm")
    found = schedule(net.graph, AnalyticCost(find_device("cpu", "llvm", 2)), Options(variant="sequential")).schedule
    options = LowerOptions(workers=2, target="llvm -mcpu=skylake-avx512")
    staged = lower_stages(net, unit_graph(net.graph, "fused"), found, options)
    loops: list[tirx.For] = []
    for func in staged.functions.values():
        if isinstance(func, tirx.PrimFunc):
            tvm_ffi.structural_walk(func.body, (tirx.For, loops.append))
    shared = [int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.PARALLEL]
    assert shared and not {3, 6} & set(shared)
