"""Files of opset 28 and IR 14, which package onnx 1.23 writes unless it is told otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import helper

from tvm_cascade.errors import UnsupportedOperatorError
from tvm_cascade.frontend import load
from tvm_cascade.testing.onnx_nodes import runtime_outputs
from tvm_cascade.testing.reference import Compiled

_X = np.random.default_rng(0).uniform(-2, 2, (1, 3, 4, 4)).astype("float32")


def _saved(path: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], opset: int = 28) -> Path:
    ends = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, _X.shape), onnx.ValueInfoProto(name="y")]
    held = [onnx.numpy_helper.from_array(a, name) for name, a in constants.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=14)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def test_floats_equal_onnx_runtime(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Celu", ["c"], ["e"], alpha=0.7),
        helper.make_node("DepthToSpace", ["e"], ["d"], blocksize=2),
        helper.make_node("Mod", ["d", "m"], ["r"], fmod=1),
        helper.make_node("Softmax", ["r"], ["y"], axis=-1),
    ]
    constants = {"w": rng.normal(0, 0.3, (8, 3, 3, 3)).astype("float32"), "m": np.array(0.75, "float32")}
    path = _saved(tmp_path / "n.onnx", nodes, constants)
    np.testing.assert_allclose(Compiled(load(path))(_X)[0], runtime_outputs(path, {"x": _X})[0], rtol=1e-5, atol=1e-6)


def test_quantizers_are_read_where_onnx_runtime_has_none(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    scale, zero = np.float32(0.03), np.int8(5)
    path = _saved(tmp_path / "n.onnx", nodes, {"s": np.array(scale), "z": np.array(zero)})
    stored = np.clip(np.rint(_X / scale) + zero, -128, 127)
    np.testing.assert_allclose(Compiled(load(path))(_X)[0], (stored - zero) * scale, rtol=1e-6)


@pytest.mark.parametrize("opset", [24, 25, 26, 27, 28])
def test_swish_of_every_opset(tmp_path: Path, opset: int) -> None:
    """ONNX Runtime 1.32 has Swish of opset 24 alone."""
    path = _saved(tmp_path / "n.onnx", [helper.make_node("Swish", ["x"], ["y"], alpha=0.5)], {}, opset)
    np.testing.assert_allclose(Compiled(load(path))(_X)[0], _X / (1 + np.exp(-0.5 * _X)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "values"), [("INT2", (0, 1, -2, -1)), ("UINT2", (0, 1, 3, 2))])
def test_weights_of_two_bits_between_quantizers(tmp_path: Path, kind: str, values: tuple[int, ...]) -> None:
    """ONNX Runtime's default optimizations fuse them into a product that it has no form of."""
    stored = np.array(values * 2).reshape(4, 2)
    weights = helper.make_tensor("w", getattr(onnx.TensorProto, kind), stored.shape, stored.ravel().tolist())
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["p"]),
        helper.make_node("DequantizeLinear", ["p", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["w", "u"], ["d"]),
        helper.make_node("MatMul", ["q", "d"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "s", "z"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    constants = {"s": np.array(0.05, "float32"), "z": np.array(3, "int8"), "u": np.array(0.5, "float32")}
    path = _saved(tmp_path / "n.onnx", nodes, constants, 25)
    model = onnx.load(path)
    model.graph.initializer.append(weights)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    rounded = (np.clip(np.rint(_X / np.float32(0.05)) + 3, -128, 127) - 3) * 0.05
    product = rounded @ (stored * 0.5)
    (made,) = Compiled(load(path))(_X)
    np.testing.assert_array_less(np.abs(made - np.clip(product, -131 * 0.05, 124 * 0.05)), 0.0251)


def test_an_operator_that_draws_is_refused_by_its_name(tmp_path: Path) -> None:
    """Not by that of RandomUniformLike, which ONNX's body of Bernoulli has."""
    with pytest.raises(UnsupportedOperatorError, match="unsupported operator Bernoulli"):
        load(_saved(tmp_path / "drawn.onnx", [helper.make_node("Bernoulli", ["x"], ["y"])], {}))
