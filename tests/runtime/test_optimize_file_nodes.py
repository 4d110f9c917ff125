"""`optimize -o x.onnx` writes the nodes of an `.onnx` file as they were, but for what was substituted.

Expected values are those of ONNX Runtime without optimizations on the file itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_cascade import api
from tvm_cascade.importers.onnx.file import read_model

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(3)


class Net:
    """An ONNX graph that is being written."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: str = "float32") -> str:
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(value, dtype), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def weights(self, *shape: int) -> str:
        return self.constant(RNG.standard_normal(shape) * 0.2)

    def node(self, kind: str, *inputs: str, outputs: Any = 1, **attrs: Any) -> Any:
        names = [f"{kind}:{len(self.nodes)}.{k}" for k in range(outputs)]
        self.nodes.append(onnx.helper.make_node(kind, list(inputs), names, **attrs))
        return names[0] if outputs == 1 else names

    def model(self, shape: tuple[int, ...], made: dict[str, tuple[int, ...]], dtype: str = "float32") -> Any:
        helper = onnx.helper
        code = helper.np_dtype_to_tensor_dtype
        given = helper.make_tensor_value_info("x", code(np.dtype(dtype)), shape)
        results = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in made.items()]
        graph = helper.make_graph(self.nodes, "net", [given], results, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def _normalized(net: Net) -> Any:
    """Local response normalization, which importing decomposes, behind a batch normalization that is folded."""
    conv = net.node("Conv", "x", net.weights(8, 3, 3, 3), pads=[1] * 4)
    statistics = [net.constant(RNG.uniform(0.5, 1.5, 8)) for _ in range(4)]
    norm = net.node("LRN", net.node("Relu", net.node("BatchNormalization", conv, *statistics)), size=3)
    out = net.node("GlobalAveragePool", norm)
    return net.model((1, 3, 8, 8), {out: (1, 8, 1, 1)})


def _parts(net: Net) -> Any:
    """Several results of one node, one of which nobody reads, and a softmax of the file's own version."""
    rows = net.node("Gemm", net.node("Flatten", "x"), net.weights(24, 12), net.weights(12))
    sizes = {"split": [4, 4, 4]} if net.opset < 13 else {}
    operands = [] if sizes else [net.constant([4, 4, 4], "int64")]
    a, _b, c = net.node("Split", rows, *operands, outputs=3, axis=1, **sizes)
    out = net.node("Softmax", net.node("Mul", a, c), axis=1)
    return net.model((1, 24), {out: (1, 4)})


def _moments(net: Net) -> Any:
    """A mean, whose axes are an attribute or an operand, of convolutions that are merged."""
    left, right = (net.node("Conv", "x", net.weights(4, 3, 1, 1)) for _ in range(2))
    both = net.node("Concat", net.node("Relu", left), net.node("Relu", right), axis=1)
    axes = [net.constant([2, 3], "int64")] if net.opset >= 18 else []
    out = net.node("ReduceMean", both, *axes, keepdims=0, **({} if axes else {"axes": [2, 3]}))
    return net.model((1, 3, 6, 6), {out: (1, 8)})


def _tokens(net: Net) -> Any:
    """An index of 64 bits, which the module reads as 32 bits."""
    row = net.node("Gather", net.constant(RNG.standard_normal((9, 6)).astype("float32")), "x", axis=0)
    out = net.node("Relu", net.node("MatMul", row, net.weights(6, 5)))
    return net.model((1, 4), {out: (1, 4, 5)}, "int64")


def _chosen(net: Net) -> Any:
    """A branch whose ways read a tensor from outside."""
    helper = onnx.helper
    scaled = net.node("Mul", "x", net.constant(2.0))
    ways = [
        helper.make_graph(
            [helper.make_node(kind, [scaled], [f"{kind}_way"])],
            kind,
            [],
            [helper.make_tensor_value_info(f"{kind}_way", onnx.TensorProto.FLOAT, (2, 3))],
        )
        for kind in ("Relu", "Neg")
    ]
    total = net.node("ReduceMax", scaled, keepdims=0)
    out = net.node("If", net.node("Greater", total, net.constant(0.0)), then_branch=ways[0], else_branch=ways[1])
    return net.model((2, 3), {out: (2, 3)})


def _folded(net: Net) -> str:
    """A convolution into which a batch normalization is folded."""
    conv = net.node("Conv", "x", net.weights(4, 3, 3, 3), pads=[1] * 4)
    return net.node("BatchNormalization", conv, *(net.constant(RNG.uniform(0.5, 1.5, 4)) for _ in range(4)))


def _called_twice(net: Net) -> Any:
    """One value under two names, both read by a node that stands behind what was substituted."""
    made = net.node("Softsign", _folded(net))
    again = net.node("Identity", made)
    out = net.node("Where", net.node("Greater", made, net.constant(0.1)), net.node("Abs", again), made)
    return net.model((1, 3, 6, 6), {out: (1, 4, 6, 6)})


def _chosen_behind(net: Net) -> Any:
    """A branch whose ways read a tensor that was substituted."""
    helper, made = onnx.helper, _folded(net)
    ways = [
        helper.make_graph(
            [helper.make_node(kind, [made], [f"{kind}_way"])],
            kind,
            [],
            [helper.make_tensor_value_info(f"{kind}_way", onnx.TensorProto.FLOAT, (1, 4, 6, 6))],
        )
        for kind in ("Softsign", "Neg")
    ]
    total = net.node("ReduceMax", made, keepdims=0)
    out = net.node("If", net.node("Greater", total, net.constant(0.0)), then_branch=ways[0], else_branch=ways[1])
    return net.model((1, 3, 6, 6), {out: (1, 4, 6, 6)})


def _quantized(net: Net) -> Any:
    """A convolution between quantize and dequantize."""
    scale, zero = net.constant(0.05), net.constant(3, "int8")
    stored = net.constant(RNG.integers(-100, 100, (4, 3, 3, 3)), "int8")
    x = net.node("DequantizeLinear", net.node("QuantizeLinear", "x", scale, zero), scale, zero)
    w = net.node("DequantizeLinear", stored, net.constant(0.01), net.constant(0, "int8"))
    y = net.node("Relu", net.node("Conv", x, w))
    out = net.node("DequantizeLinear", net.node("QuantizeLinear", y, scale, zero), scale, zero)
    return net.model((1, 3, 6, 6), {out: (1, 4, 4, 4)})


def _both_moments(net: Net) -> Any:
    """A layer normalization of three results, of which one has no name in the module."""
    y, mean, _ = net.node("LayerNormalization", "x", net.weights(6), outputs=3, axis=-1)
    return net.model((2, 6), {y: (2, 6), mean: (2, 1)})


CASES: list[tuple[Callable[[Net], Any], int]] = [
    *((_normalized, opset) for opset in (9, 13, 20)),
    *((_parts, opset) for opset in (9, 12, 13, 18)),
    *((_moments, opset) for opset in (11, 17, 18, 21)),
    *((build, 17) for build in (_tokens, _chosen, _called_twice, _chosen_behind, _quantized, _both_moments)),
]


def _results(path: Path, data: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": data})


@pytest.mark.parametrize(("build", "opset"), CASES, ids=[f"{b.__name__[1:]}-{o}" for b, o in CASES])
def test_every_file_is_written_with_no_more_nodes(tmp_path: Path, build: Callable[[Net], Any], opset: int) -> None:
    file, made = tmp_path / "net.onnx", tmp_path / "made.onnx"
    onnx.save(build(Net(opset)), file)
    api.optimize(file, target="cuda", output=made, budget=50)
    given, graph = read_model(file), read_model(made)
    onnx.checker.check_model(graph, full_check=True)
    assert len(graph.graph.node) <= len(given.graph.node)
    assert graph.opset_import[0].version == opset
    assert [v.name for v in graph.graph.output] == [v.name for v in given.graph.output]
    (x,) = given.graph.input
    shape = [d.dim_value for d in x.type.tensor_type.shape.dim]
    real = x.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    data = RNG.standard_normal(shape).astype("float32") if real else RNG.integers(0, 9, shape)
    for expected, got in zip(_results(file, data), _results(made, data), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_decomposed_nodes_stay_behind_what_was_substituted(tmp_path: Path) -> None:
    file, made = tmp_path / "net.onnx", tmp_path / "made.onnx"
    onnx.save(_normalized(Net(13)), file)
    api.optimize(file, target="cuda", output=made, budget=50)
    kinds = [node.op_type for node in read_model(made).graph.node]
    assert kinds == ["Conv", "Relu", "LRN", "GlobalAveragePool"]


def test_a_part_of_a_file_is_written_by_its_nodes(tmp_path: Path) -> None:
    file, made = tmp_path / "net.onnx", tmp_path / "made.onnx"
    model = _normalized(Net(13))
    onnx.save(model, file)
    norm = next(node.output[0] for node in model.graph.node if node.op_type == "LRN")
    api.optimize(file, target="cuda", output=made, until=norm, budget=50)
    graph = read_model(made).graph
    assert [v.name for v in graph.output] == [norm]
    assert [node.op_type for node in graph.node].count("LRN") == 1
