"""Operators for which ONNX's evaluator is no reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx

from tvm_cascade.checking.onnx_reference import OnnxReference, untrusted
from tvm_cascade.checking.unsigned_weights import with_unsigned_weights


@pytest.mark.parametrize(("opset", "trusted"), [(7, True), (9, False), (13, False), (14, True), (15, True)])
def test_batch_normalization_by_the_statistics_of_the_batch(opset: int, trusted: bool) -> None:
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    names = ["x", "scale", "bias", "mean", "var"]
    node = helper.make_node("BatchNormalization", names, ["y"])
    inputs = [helper.make_tensor_value_info(n, kind, [1, 2, 3, 3] if n == "x" else [2]) for n in names]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", kind, [1, 2, 3, 3])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    assert list(untrusted(model)) == ([] if trusted else [f"BatchNormalization of opset {opset}"])


@pytest.mark.parametrize(("scale", "corner"), [(1.5, 3.6923077), (2.0, 4.0)])
def test_aligned_corners_of_a_size_that_is_not_whole(tmp_path: Path, scale: float, corner: float) -> None:
    """ONNX has the last corner at 5 * 1.5, and ONNX Runtime at 7."""
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    form = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **form)
    ends = [helper.make_tensor_value_info(n, kind, [1, 1, 1, d]) for n, d in (("x", 5), ("y", int(5 * scale)))]
    held = [onnx.numpy_helper.from_array(np.float32([1, 1, 1, scale]), "scales")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    reference = OnnxReference(tmp_path / "m.onnx")
    made = reference.run({"x": np.arange(5, dtype="float32").reshape(1, 1, 1, 5)})["y"]
    np.testing.assert_allclose(made[0, 0, 0, -1], corner, rtol=1e-6)
    whole = scale == 2
    assert reference.by == ("ONNX Runtime without optimizations" if whole else "ONNX's evaluator")
    assert ("aligned corners" in reference.note) is not whole


def _product(kind: str, weights: np.ndarray, activations: str = "uint8", zero_points: bool = True) -> onnx.ModelProto:
    """Return a product of x, 1 x 2, or of a picture of two channels, by constant weights; quantized ones in steps of 300."""
    helper, types = onnx.helper, {"uint8": onnx.TensorProto.UINT8, "int8": onnx.TensorProto.INT8}
    held = {"w": weights, "wz": np.zeros((), "int8"), "xz": np.zeros((), activations)}
    names = ["x", "w", "xz", "wz"] if zero_points else ["x", "w"]
    if kind != "MatMulInteger":
        held |= {"s": np.float32(1), "ys": np.float32(300), "yz": np.zeros((), activations)}
        names = ["x", "s", "xz", "w", "s", "wz", "ys", "yz"]
    shape = [1, 2, *weights.shape[2:]]
    result = onnx.TensorProto.INT32 if kind == "MatMulInteger" else types[activations]
    ends = [
        helper.make_tensor_value_info("x", types[activations], shape),
        helper.make_tensor_value_info("y", result, [1, 1, *shape[2:]]),
    ]
    constants = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in held.items() if n in names]
    graph = helper.make_graph([helper.make_node(kind, names, ["y"])], "g", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize(
    ("kind", "shape", "zero_points", "wanted"),
    [
        ("MatMulInteger", (2, 1), True, 2 * 255 * 127),
        ("MatMulInteger", (2, 1), False, 2 * 255 * 127),
        ("QLinearMatMul", (2, 1), True, 216),  # of 300
        ("QLinearConv", (1, 2, 1, 1), True, 216),
    ],
)
def test_products_of_uint8_and_int8_are_exact(
    tmp_path: Path, kind: str, shape: tuple[int, ...], zero_points: bool, wanted: int
) -> None:
    """ONNX Runtime adds two such products in 16 bits on x86 without VNNI: 32767."""
    pytest.importorskip("onnxruntime")
    model = _product(kind, np.full(shape, 127, "int8"), zero_points=zero_points)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, tmp_path / "m.onnx")
    given = np.full((1, 2, *shape[2:]), 255, "uint8")
    assert int(OnnxReference(tmp_path / "m.onnx").run({"x": given})["y"].reshape(())) == wanted


def test_weights_become_unsigned_where_activations_are() -> None:
    weights = np.int8([[127], [-128]])
    model = _product("MatMulInteger", weights)
    before = model.SerializeToString()
    made = with_unsigned_weights(model)
    assert model.SerializeToString() == before
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    _, stored, _, zero = made.graph.node[0].input
    assert (held[stored].dtype, held[stored].tolist(), int(held[zero])) == (np.dtype("uint8"), [[255], [0]], 128)
    signed = _product("MatMulInteger", weights, "int8")
    assert list(with_unsigned_weights(signed).graph.node[0].input) == ["x", "w", "xz", "wz"]
