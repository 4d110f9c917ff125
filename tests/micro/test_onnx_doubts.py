"""Operators for which ONNX's evaluator is no reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx

from tvm_cascade.checking.onnx_reference import OnnxReference, untrusted


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
