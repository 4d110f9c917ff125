"""ONNX networks with QuantizeLinear and DequantizeLinear become integer networks, close to ONNX's own evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx

from tvm_cascade.cores import kernel_target
from tvm_cascade.frontend import load
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.pipeline import prepare
from tvm_cascade.testing.reference import Compiled

_LOWER: Any = LowerQuantized()


class _Network:
    """Writes a QDQ graph; activations of `dtype`, int8 weights with a scale a channel."""

    def __init__(self, dtype: str, seed: int) -> None:
        self.dtype = dtype
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.scales: dict[str, float] = {}

    def constant(self, data: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(data), name))
        return name

    def node(self, kind: str, inputs: list[str], **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, inputs, [name], **attrs))
        return name

    def stored(self, x: str, scale: float, zero_point: int) -> str:
        """QuantizeLinear and DequantizeLinear; `zero_point` as uint8 counts it."""
        zero = zero_point if self.dtype == "uint8" else zero_point - 128
        operands = [self.constant(np.float32(scale)), self.constant(np.array(zero, self.dtype))]
        result = self.node("DequantizeLinear", [self.node("QuantizeLinear", [x, *operands]), *operands])
        self.scales[result] = scale
        return result

    def parameter(self, data: np.ndarray, scales: np.ndarray) -> str:
        zero = self.constant(np.zeros(scales.shape, data.dtype))
        return self.node("DequantizeLinear", [self.constant(data), self.constant(scales), zero], axis=0)

    def convolution(self, x: str, channels: tuple[int, int], kernel: int, groups: int = 1, **attrs: Any) -> str:
        cin, cout = channels
        scales = self.rng.uniform(0.001, 0.01, cout).astype("float32")
        w = self.rng.integers(-127, 128, (cout, cin // groups, kernel, kernel)).astype("int8")
        b = self.rng.integers(-500, 500, cout).astype("int32")
        bias = self.parameter(b, (scales * np.float32(self.scales[x])).astype("float32"))
        return self.node("Conv", [x, self.parameter(w, scales), bias], group=groups, **attrs)

    def finish(self, path: Path, result: str, shape: list[Any], output: list[Any]) -> None:
        kind = onnx.TensorProto.FLOAT
        make = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            self.nodes, "g", [make("x", kind, shape)], [make(result, kind, output)], self.weights
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
        onnx.checker.check_model(model)
        onnx.save(model, path)


def _compare(path: Path, shape: tuple[int, ...], step: float, steps: int) -> list[str]:
    """The kinds of operators after lowering; asserts that results lie within `steps` quantization steps."""
    from onnx.reference import ReferenceEvaluator

    mod = load(path)
    lowered = _LOWER(mod)
    assert {r.operator for r in float_remains(lowered)} <= {"dequantize"}
    assert len(float_remains(lowered)) == 1  # the float output itself
    evaluator: Any = ReferenceEvaluator(str(path))
    run = Compiled(lowered)
    rng = np.random.default_rng(0)
    differences = []
    for _ in range(5):
        x = rng.random(shape, "float32")
        ours, theirs = run(x)[0], np.asarray(evaluator.run(None, {"x": x})[0])
        assert ours.shape == theirs.shape
        differences.append(np.abs(ours - theirs) / step)
    assert np.max(differences) <= steps + 0.01
    assert np.mean(np.array(differences) > 0.5) < 0.1
    kinds = [f.attrs["op_kind"] for gv, f in lowered.functions.items() if gv.name_hint != "main"]
    return sorted(str(k) for k in kinds)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_residual_network(tmp_path: Path, dtype: str) -> None:
    net = _Network(dtype, 0)
    x = net.stored("x", 1 / 255, 0)
    a = net.convolution(x, (3, 8), 3, strides=[2, 2], pads=[1, 1, 1, 1])
    a = net.stored(net.node("Relu", [a]), 0.02, 0)
    d = net.convolution(a, (8, 8), 3, groups=8, pads=[1, 1, 1, 1])
    d = net.stored(net.node("Relu", [d]), 0.03, 0)
    p = net.stored(net.convolution(d, (8, 8), 1), 0.05, 120)
    e = net.stored(net.node("Add", [p, a]), 0.06, 100)
    m = net.stored(net.node("MaxPool", [e], kernel_shape=[2, 2], strides=[2, 2]), 0.06, 100)
    c = net.stored(net.node("Concat", [m, m], axis=1), 0.06, 100)
    g = net.stored(net.node("GlobalAveragePool", [c]), 0.04, 90)
    w = net.parameter(net.rng.integers(-127, 128, (5, 16)).astype("int8"), np.array(0.01, "float32"))
    b = net.parameter(net.rng.integers(-500, 500, 5).astype("int32"), np.array(0.0004, "float32"))
    y = net.stored(net.node("Gemm", [net.node("Flatten", [g], axis=1), w, b], transB=1), 0.05, 128)
    net.finish(tmp_path / "n.onnx", y, ["N", 3, 16, 16], ["N", 5])
    kinds = _compare(tmp_path / "n.onnx", (1, 3, 16, 16), 0.05, 2)
    assert kinds.count("conv2d") == 2 and kinds.count("transpose") == 1
    assert {"depthwise_conv2d", "add", "max_pool2d", "concat", "mean", "dense", "quantize"} <= set(kinds)


@pytest.mark.parametrize(
    "scales", [np.float32(0.004), np.linspace(0.002, 0.006, 5, dtype="float32")], ids=["one", "five"]
)
def test_products_of_flattened_images(scales: np.ndarray, tmp_path: Path) -> None:
    """Weights move with the image's layout, by one scale and by a scale for each output."""
    net = _Network("int8", 4)
    x = net.stored(net.convolution(net.stored("x", 1 / 255, 0), (3, 8), 3), 0.05, 120)
    w = net.parameter(net.rng.integers(-127, 128, (5, 128)).astype("int8"), np.asarray(scales))
    b = net.parameter(net.rng.integers(-500, 500, 5).astype("int32"), np.asarray(scales * np.float32(0.05)))
    flat = net.stored(net.node("Flatten", [x], axis=1), 0.05, 120)
    net.finish(
        tmp_path / "n.onnx", net.stored(net.node("Gemm", [flat, w, b], transB=1), 0.1, 128), [1, 3, 6, 6], [1, 5]
    )
    kinds = _compare(tmp_path / "n.onnx", (1, 3, 6, 6), 0.1, 1)
    assert (kinds.count("transpose"), kinds.count("dense")) == (1, 1)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_convolutions_in_groups(tmp_path: Path, dtype: str) -> None:
    net = _Network(dtype, 3)
    x = net.stored("x", 1 / 255, 0)
    a = net.stored(net.convolution(x, (4, 6), 3, groups=2, pads=[1, 1, 1, 1]), 0.02, 120)
    b = net.stored(net.convolution(a, (6, 12), 3, groups=6, dilations=[2, 2], pads=[2, 2, 2, 2]), 0.05, 128)
    y = net.stored(net.convolution(b, (12, 6), 1, groups=3, strides=[2, 2]), 0.05, 128)
    net.finish(tmp_path / "n.onnx", y, [1, 4, 9, 8], [1, 6, 5, 4])
    kinds = _compare(tmp_path / "n.onnx", (1, 4, 9, 8), 0.05, 2)
    assert kinds.count("conv2d") == 2 and kinds.count("depthwise_conv2d") == 1


@pytest.mark.parametrize("everywhere", [False, True])
def test_shuffles_and_blocks_move_stored_values_once(tmp_path: Path, everywhere: bool) -> None:
    """A shuffle of channels and a DepthToSpace, whose reshapes and transposes are quantized each (`everywhere`) or not at all."""
    net = _Network("int8", 11)

    def kept(x: str) -> str:
        return net.stored(x, 0.03, 120) if everywhere else x

    x = net.stored("x", 1 / 255, 0)
    a = net.stored(net.convolution(x, (3, 8), 3, pads=[1, 1, 1, 1]), 0.03, 120)
    a = kept(net.node("Reshape", [a, net.constant(np.array([1, 2, 4, 6, 5]))]))
    a = kept(
        net.node(
            "Reshape", [kept(net.node("Transpose", [a], perm=[0, 2, 1, 3, 4])), net.constant(np.array([1, 8, 6, 5]))]
        )
    )
    net.scales[a] = 0.03
    b = net.stored(net.convolution(a, (8, 8), 1), 0.05, 128)
    b = net.node("DepthToSpace", [b], blocksize=2)
    net.scales[b] = 0.05
    y = net.stored(net.convolution(b, (2, 3), 1), 0.05, 128)
    net.finish(tmp_path / "n.onnx", y, [1, 3, 6, 5], [1, 3, 12, 10])
    kinds = _compare(tmp_path / "n.onnx", (1, 3, 6, 5), 0.05, 2)
    assert kinds.count("transpose") == 4  # of the input and the output, the shuffle and the blocks


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_what_quantizers_leave_between_operators(tmp_path: Path, dtype: str) -> None:
    """Parts, concatenations of unequal scales, clips by computed bounds, transposed convolutions, and means that are
    viewed before they are quantized."""
    net = _Network(dtype, 5)
    x = net.stored("x", 1 / 255, 0)
    a = net.stored(net.convolution(x, (3, 8), 3, pads=[1, 1, 1, 1]), 0.05, 100)
    bounds = [
        net.node(
            "DequantizeLinear", [net.constant(np.int8(v)), net.constant(np.float32(0.06)), net.constant(np.int8(0))]
        )
        for v in (-10, 100)
    ]
    b = net.stored(net.node("Clip", [net.convolution(a, (8, 8), 1), *bounds]), 0.03, 20)
    net.nodes.append(onnx.helper.make_node("Split", [b], ["left", "right"], axis=1, num_outputs=2))
    net.scales |= {"left": 0.03, "right": 0.03}
    left, right = net.stored("left", 0.025, 10), net.stored(net.convolution("right", (4, 4), 1), 0.04, 128)
    joined = net.node("Relu", [net.node("Concat", [left, right, a], axis=1)])
    c = net.stored(joined, 0.035, 30)
    part = net.constant(np.array([1, 0, 2], "int64"))
    ends, axes = net.constant(np.array([7, 12, 99], "int64")), net.constant(np.array([2, 1, 3], "int64"))
    steps = net.constant(np.array([1, 1, 2], "int64"))
    cut = net.node("Slice", [c, part, ends, axes, steps])
    net.scales[cut] = 0.035
    w = net.parameter(net.rng.integers(-127, 128, (12, 5, 2, 2)).astype("int8"), np.array(0.01, "float32"))
    up = net.stored(net.node("ConvTranspose", [cut, w], strides=[2, 2]), 0.2, 128)
    mean = net.node("ReduceMean", [up, net.constant(np.array([2, 3], "int64"))], keepdims=1)
    y = net.stored(net.node("Reshape", [mean, net.constant(np.array([1, 5], "int64"))]), 0.06, 128)
    net.finish(tmp_path / "n.onnx", y, [1, 3, 8, 8], [1, 5])
    kinds = _compare(tmp_path / "n.onnx", (1, 3, 8, 8), 0.06, 2)
    assert {"concat", "requantize", "strided_slice", "conv2d", "mean"} <= set(kinds)
    assert kinds.count("transpose") == 1  # of the input alone


def test_maps_leave_in_their_own_layout(tmp_path: Path) -> None:
    net = _Network("uint8", 1)
    x = net.stored("x", 1 / 255, 0)
    a = net.stored(net.convolution(x, (2, 4), 3, pads=[1, 1, 1, 1]), 0.05, 128)
    a = net.stored(net.node("Sigmoid", [a]), 1 / 256, 0)
    widths = net.constant(np.array([0, 0, 1, 0, 0, 0, 2, 1], "int64"))
    padded = net.node("Pad", [a, widths])
    net.scales[padded] = net.scales[a]
    b = net.stored(net.convolution(padded, (4, 4), 3), 0.02, 130)
    y = net.stored(net.node("AveragePool", [b], kernel_shape=[3, 3], strides=[2, 2]), 0.02, 130)
    net.finish(tmp_path / "n.onnx", y, [1, 2, 9, 9], [1, 4, 4, 3])
    kinds = _compare(tmp_path / "n.onnx", (1, 2, 9, 9), 0.02, 2)
    assert {"scaled_avg_pool2d", "lut"} <= set(kinds) and kinds.count("transpose") == 2
    assert "pad" not in kinds  # folded into the convolution


def test_fused_quantized_operators(tmp_path: Path) -> None:
    """QLinearConv and QLinearMatMul, which ONNX's evaluator knows, then those of the contrib domain."""
    net = _Network("uint8", 2)

    def pair(scale: Any, zero: Any) -> list[str]:
        return [net.constant(np.asarray(scale, "float32")), net.constant(zero)]

    def zero(value: int) -> np.ndarray:
        return np.array(value, "uint8")

    scales = net.rng.uniform(0.001, 0.01, 4).astype("float32")
    w = net.constant(net.rng.integers(-127, 128, (4, 3, 3, 3)).astype("int8"))
    b = net.constant(net.rng.integers(-500, 500, 4).astype("int32"))
    x, out = pair(1 / 255, zero(0)), pair(0.02, zero(120))
    stored = net.node("QuantizeLinear", ["x", *x])
    conv = net.node("QLinearConv", [stored, *x, w, *pair(scales, np.zeros(4, "int8")), *out, b], pads=[1, 1, 1, 1])
    flat = net.node("Flatten", [conv])
    m = net.constant(net.rng.integers(-127, 128, (4 * 6 * 6, 5)).astype("int8"))
    end = pair(0.2, zero(128))
    dense = net.node("QLinearMatMul", [flat, *out, m, *pair(0.002, np.array(0, "int8")), *end])
    y = net.node("DequantizeLinear", [dense, *end])
    net.finish(tmp_path / "q.onnx", y, [1, 3, 6, 6], [1, 5])
    kinds = _compare(tmp_path / "q.onnx", (1, 3, 6, 6), 0.2, 1)
    assert kinds.count("transpose") == 1  # of the image: the product's weights move, not what it reads
    assert {"conv2d", "dense"} <= set(kinds)


def test_weights_of_uint8_take_the_kernels_of_int8(tmp_path: Path) -> None:
    net = _Network("uint8", 2)

    def pair(scale: float, zero: int) -> list[str]:
        return [net.constant(np.float32(scale)), net.constant(np.array(zero, "uint8"))]

    w = net.constant(net.rng.integers(0, 256, (8, 8, 3, 3)).astype("uint8"))
    x, out = pair(1 / 255, 0), pair(0.05, 120)
    stored = net.node("QuantizeLinear", ["x", *x])
    conv = net.node("QLinearConv", [stored, *x, w, *pair(0.004, 151), *out], pads=[1, 1, 1, 1])
    y = net.node("DequantizeLinear", [conv, *out])
    net.finish(tmp_path / "q.onnx", y, [1, 8, 6, 6], [1, 8, 6, 6])
    assert "conv2d" in _compare(tmp_path / "q.onnx", (1, 8, 6, 6), 0.05, 1)
    prepared = prepare(load(tmp_path / "q.onnx"), kernel_target("cortex-m55", "obj"))
    rules = [k.rule for op, k in zip(prepared.graph.ops, prepared.kernels, strict=True) if k and op.kind == "conv2d"]
    assert len(rules) == 1 and rules[0].startswith("cortex_m_mve")


def test_contrib_operators_are_spelled_out() -> None:
    from tvm_cascade.importers.onnx.qoperators import RULES, spell_out

    pair = ["s", "z"]
    nodes = [
        onnx.helper.make_node("QLinearAdd", ["a", *pair, "b", *pair, *pair], ["c"], domain="com.microsoft"),
        onnx.helper.make_node("QLinearGlobalAveragePool", ["c", *pair, *pair], ["d"], domain="com.microsoft"),
        onnx.helper.make_node("QLinearConcat", [*pair, "d", *pair, "d", *pair], ["e"], axis=1, domain="com.microsoft"),
        onnx.helper.make_node("QLinearSigmoid", ["e", *pair, *pair], ["f"], domain="com.microsoft"),
    ]
    graph = onnx.helper.make_graph(nodes, "g", [], [])
    model = onnx.helper.make_model(graph)
    spelled = [n.op_type for n in spell_out(model).graph.node]
    assert [n for n in spelled if "Linear" not in n] == ["Add", "GlobalAveragePool", "Concat", "Sigmoid"]
    assert not set(spelled) & set(RULES)
    again = [name for n in spell_out(model).graph.node for name in n.output]
    assert len(set(again)) == len(again)
    assert spelled.count("DequantizeLinear") == 6 and spelled.count("QuantizeLinear") == 4
    assert [n.op_type for n in model.graph.node] == [n.op_type for n in nodes]


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("real", [False, True])
def test_qgemm(tmp_path: Path, transposed: int, alpha: float, real: bool) -> None:
    """What ONNX Runtime's quantizer makes of every dense layer, against its definition in integers."""
    from onnx.reference import ReferenceEvaluator

    from tvm_cascade.importers.onnx.qoperators import spell_out

    rng = np.random.default_rng(4)
    a = rng.integers(0, 256, (2, 7)).astype("uint8")
    b = rng.integers(-127, 128, (7, 5)).astype("int8")
    zeros, bias = rng.integers(-9, 9, 5).astype("int8"), rng.integers(-5000, 5000, 5).astype("int32")
    scales = rng.uniform(0.001, 0.01, 5).astype("float32")
    weights = {
        "a_scale": np.float32(0.02), "a_zero": np.uint8(100), "b": b.T.copy() if transposed else b,
        "b_scale": scales, "b_zero": zeros, "c": bias, "y_scale": np.float32(0.07), "y_zero": np.uint8(120),
    }  # fmt: skip
    names = ["a", *weights][: 7 if real else 9]
    kind, make = onnx.TensorProto, onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("QGemm", names, ["y"], domain="com.microsoft", transB=transposed, alpha=alpha)],
        "g",
        [make("a", kind.UINT8, [2, 7])],
        [make("y", kind.FLOAT if real else kind.UINT8, [2, 5])],
        [onnx.numpy_helper.from_array(np.asarray(w), n) for n, w in weights.items()],
    )
    opset = [onnx.helper.make_opsetid("", 19), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=9)
    evaluator: Any = ReferenceEvaluator(spell_out(model))
    theirs = np.asarray(evaluator.run(None, {"a": a})[0])
    sums = (a.astype(int) - 100) @ (b.astype(int) - zeros) + bias
    product = sums * np.float64(0.02) * scales * alpha
    if real:
        np.testing.assert_allclose(theirs, product, rtol=1e-5, atol=1e-5)
    else:
        expected = np.clip(np.round(product / np.float32(0.07)) + 120, 0, 255)
        assert np.abs(theirs.astype(int) - expected).max() <= 1 and len(np.unique(theirs)) > 4
    onnx.save(model, tmp_path / "q.onnx")
    (ours,) = Compiled(_LOWER(load(tmp_path / "q.onnx")))(a)
    assert ours.dtype == theirs.dtype
    assert np.abs(ours.astype(np.float64) - theirs).max() <= (1e-4 if real else 1)


def test_inner_tensors_become_signed(tmp_path: Path) -> None:
    """uint8 between operators is int8 in the program; what the model's users see keeps its type."""
    net = _Network("uint8", 3)
    x = net.stored("x", 1 / 255, 0)
    a = net.stored(net.convolution(x, (3, 4), 3, pads=[1, 1, 1, 1]), 0.05, 100)
    operands = [net.constant(np.float32(0.05)), net.constant(np.array(100, "uint8"))]
    y = net.node("QuantizeLinear", [net.node("Relu", [a]), *operands])
    kind, make = onnx.TensorProto, onnx.helper.make_tensor_value_info
    outputs = [make(y, kind.UINT8, [1, 4, 6, 6])]
    graph = onnx.helper.make_graph(net.nodes, "g", [make("x", kind.FLOAT, [1, 3, 6, 6])], outputs, net.weights)
    opset = [onnx.helper.make_opsetid("", 19)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "n.onnx")
    lowered = _LOWER(load(tmp_path / "n.onnx"))
    types = [str(b.var.ty.dtype) for block in lowered["main"].body.blocks for b in block.bindings]
    assert types[:3] == ["int8"] * 3 and str(lowered["main"].ret_ty.dtype) == "uint8"
    ours = Compiled(lowered)(np.random.default_rng(0).random((1, 3, 6, 6), "float32"))[0]
    from onnx.reference import ReferenceEvaluator

    given = {"x": np.random.default_rng(0).random((1, 3, 6, 6), "float32")}
    evaluator: Any = ReferenceEvaluator(str(tmp_path / "n.onnx"))
    theirs = np.asarray(evaluator.run(None, given)[0])
    assert ours.dtype == theirs.dtype and np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1


@pytest.mark.parametrize(
    "kind, axis", [("Conv", 0), ("Conv", 1), ("ConvTranspose", 0), ("ConvTranspose", 1), ("MatMul", 0)]
)
def test_scales_along_the_inputs_of_weights(tmp_path: Path, kind: str, axis: int) -> None:
    """Integer kernels have a scale for every output: scales along another axis are no such ones, even where as many."""
    from onnx.reference import ReferenceEvaluator

    net = _Network("int8", 6)
    shape, window = ((2, 4), ()) if kind == "MatMul" else ((1, 4, 5, 5), (3, 3))
    x = net.stored("x", 0.02, 120)
    data = net.rng.integers(-127, 128, (4, 4, *window)).astype("int8")
    scales, zeros = np.array([0.001, 0.01, 0.1, 0.5], "float32"), np.zeros(4, "int8")
    w = net.node("DequantizeLinear", [net.constant(v) for v in (data, scales, zeros)], axis=axis)
    y = net.stored(net.node(kind, [x, w]), 0.5, 128)
    out = {"MatMul": [2, 4], "Conv": [1, 4, 3, 3], "ConvTranspose": [1, 4, 7, 7]}[kind]
    net.finish(tmp_path / "n.onnx", y, list(shape), out)
    evaluator: Any = ReferenceEvaluator(str(tmp_path / "n.onnx"))
    given = np.random.default_rng(0).uniform(-2, 2, shape).astype("float32")
    theirs = np.asarray(evaluator.run(None, {"x": given})[0])
    (ours,) = Compiled(_LOWER(load(tmp_path / "n.onnx")))(given)
    assert np.abs(ours - theirs).max() <= 0.501 and np.ptp(theirs) > 5


def test_a_clip_whose_bounds_are_swapped(tmp_path: Path) -> None:
    """ONNX has the upper bound everywhere then."""
    kind, make = onnx.TensorProto, onnx.helper.make_tensor_value_info
    bounds = [onnx.numpy_helper.from_array(np.array(v, "float32"), n) for n, v in (("lo", 5), ("hi", 2))]
    node = onnx.helper.make_node("Clip", ["x", "lo", "hi"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [make("x", kind.FLOAT, [4])], [make("y", kind.FLOAT, [4])], bounds)
    opset = [onnx.helper.make_opsetid("", 19)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "n.onnx")
    np.testing.assert_array_equal(Compiled(load(tmp_path / "n.onnx"))(np.arange(4, dtype="float32"))[0], [2, 2, 2, 2])


def _equal_results(path: Path, net: _Network, result: str, x: np.ndarray, rank: int = 0) -> list[str]:
    """Asserts that `result` is the evaluator's, to float32's rounding; the kinds of operators after lowering."""
    from onnx.reference import ReferenceEvaluator

    net.finish(path, result, list(x.shape), [f"d{k}" for k in range(rank or x.ndim)])
    evaluator: Any = ReferenceEvaluator(str(path))
    lowered = _LOWER(load(path))
    np.testing.assert_allclose(Compiled(lowered)(x)[0], evaluator.run(None, {"x": x})[0], rtol=1e-6, atol=1e-6)
    return [str(f.attrs["op_kind"]) for gv, f in lowered.functions.items() if gv.name_hint != "main"]


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("scale, offset", [(0.001, 0), (0.001, 40), (0.0013, 40), (2.0, 3)])
def test_comparisons_are_of_real_numbers(tmp_path: Path, dtype: str, scale: float, offset: int) -> None:
    """Neighbours differ, however small the scale: each value of x against each of a constant of its own quantization."""
    net = _Network(dtype, 0)
    x = net.stored("x", 0.001, 128)
    stored = np.arange(-20, 20).astype(dtype).reshape(1, 40)
    operands = [net.constant(np.float32(scale)), net.constant(np.array(offset, dtype))]
    y = net.node("Greater", [x, net.node("DequantizeLinear", [net.constant(stored), *operands])])
    data = (np.arange(-60, 60).reshape(120, 1) * np.float32(0.001)).astype("float32")
    kinds = _equal_results(tmp_path / "n.onnx", net, net.node("Cast", [y], to=onnx.TensorProto.FLOAT), data)
    assert "greater" in kinds and "dequantize" not in kinds


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_the_lowest_value_negated_is_the_highest(tmp_path: Path, dtype: str) -> None:
    net = _Network(dtype, 0)
    y = net.stored(net.node("Neg", [net.stored("x", 0.1, 128)]), 0.1, 128)
    data = (np.array([[np.iinfo(dtype).min, -1, 0, 5]]) * np.float32(0.1)).astype("float32")
    kinds = _equal_results(tmp_path / "n.onnx", net, y, data)
    assert ("lut" if dtype == "int8" else "negative") in kinds


def test_outputs_of_int16_convolutions_have_zero_points(tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    net, scale = _Network("int16", 3), 0.01
    y = net.stored(net.convolution(net.stored("x", 0.01, 128), (3, 4), 1), scale, 128 + 300)
    data = net.rng.uniform(-3, 3, (1, 3, 5, 5)).astype("float32")
    net.finish(tmp_path / "n.onnx", y, list(data.shape), [f"d{k}" for k in range(4)])
    evaluator: Any = ReferenceEvaluator(str(tmp_path / "n.onnx"))
    made = Compiled(_LOWER(load(tmp_path / "n.onnx")))(data)[0]
    assert np.abs(made - evaluator.run(None, {"x": data})[0]).max() <= 1.01 * scale


def test_one_slope_is_that_of_every_channel(tmp_path: Path) -> None:
    net = _Network("int8", 0)
    slope = net.parameter(np.array([52], "int8"), np.array(0.01, "float32"))
    y = net.stored(net.node("PRelu", [net.stored("x", 0.1, 128), slope]), 0.1, 128)
    data = -np.arange(24, dtype="float32").reshape(1, 6, 2, 2) / 5
    assert "prelu" in _equal_results(tmp_path / "n.onnx", net, y, data)


@pytest.mark.parametrize("kind", ["Sin", "Identity"])
def test_numbers_of_a_higher_rank_than_their_tensor(tmp_path: Path, kind: str) -> None:
    net = _Network("int8", 0)
    x = net.node("Abs", [net.node(kind, [net.stored("x", 0.1, 128)])])
    y = net.stored(net.node("Add", [x, net.constant(np.ones((1, 1), "float32"))]), 0.1, 128)
    data = np.array([-1, 3, 6, 2.5], "float32")
    _equal_results(tmp_path / "n.onnx", net, y, data, 2)


@pytest.mark.parametrize("scale, zero, layer", [(0.01, 0, "Conv"), (0.0005, 9, "Conv"), (0.01, 0, "Gemm")])
def test_a_bias_has_a_quantization_of_its_own(tmp_path: Path, scale: float, zero: int, layer: str) -> None:
    """Not that of the sums it is added to."""
    net = _Network("int8", 2)
    x, w = net.stored("x", 0.05, 128), net.rng.integers(-127, 128, (3, 4)).astype("int8")
    w = w.reshape(3, 4, 1, 1) if layer == "Conv" else w
    operands = [net.constant(np.float32(scale)), net.constant(np.array(zero, "int32"))]
    b = net.node("DequantizeLinear", [net.constant(np.array([1000, 2000, -3000], "int32")), *operands])
    y = net.node(
        layer, [x, net.parameter(w, np.array(0.01, "float32")), b], **({} if layer == "Conv" else {"transB": 1})
    )
    data = net.rng.standard_normal((2, 4, 3, 1) if layer == "Conv" else (2, 4)).astype("float32")
    assert {"conv2d", "dense"} & set(_equal_results(tmp_path / "n.onnx", net, net.stored(y, 0.31415, 128), data))


def test_a_bias_beyond_32_bits_stays_float(tmp_path: Path) -> None:
    net = _Network("int8", 2)
    w = net.parameter(net.rng.integers(-127, 128, (3, 4)).astype("int8"), np.array(1e-6, "float32"))
    b = net.parameter(np.array([10**9, 2, -3], "int32"), np.array(1e-6, "float32"))
    y = net.stored(net.node("Gemm", [net.stored("x", 1e-3, 128), w, b], transB=1), 10.0, 128)
    kinds = _equal_results(tmp_path / "n.onnx", net, y, net.rng.random((2, 4), "float32") * np.float32(0.1))
    assert "dense" not in kinds
