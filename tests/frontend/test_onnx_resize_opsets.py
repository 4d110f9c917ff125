"""Resize of old opsets, as ONNX Runtime computes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tvm_cascade.frontend import load
from tvm_cascade.testing.quick_build import quick_run

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def equal(path: Path, shape: list[int], weights: list[np.ndarray], opset: int, mode: str) -> np.ndarray:
    """Assert that a Resize of `weights` equals ONNX Runtime's; return its output."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    stored = [onnx.numpy_helper.from_array(w, f"w{k}") for k, w in enumerate(weights)]
    node = helper.make_node("Resize", ["x", *(w.name for w in stored)], ["y"], mode=mode)
    values = [helper.make_tensor_value_info(name, kind, dims) for name, dims in (("x", shape), ("y", None))]
    graph = helper.make_graph([node], "resize", values[:1], values[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=5)
    onnx.save(model, path)
    x = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    (made,) = quick_run(load(path), x)
    np.testing.assert_allclose(np.asarray(made), want, rtol=1e-5, atol=1e-5)
    return want


@pytest.mark.parametrize(
    ("shape", "scales"),
    [
        ([1, 1, 1, 10], [1, 1, 1, 0.6]),
        ([1, 2, 7, 9], [1, 1, 0.6, 0.5]),
        ([1, 2, 7, 9], [1, 1, 0.6, 2]),
        ([2, 3, 5, 5], [1, 0.5, 2, 2]),
        ([1, 2, 8], [1, 1, 0.45]),
        ([1, 2, 8], [1, 1, 2]),
    ],
)
def test_nearest_of_opset_10_rounds_up_where_it_shrinks(tmp_path: Path, shape: list[int], scales: list[float]) -> None:
    made = equal(tmp_path / "n.onnx", shape, [np.array(scales, "float32")], 10, "nearest")
    if shape[-1] == 10:
        assert made.reshape(-1).tolist() == [0, 2, 4, 5, 7, 9]


@pytest.mark.parametrize("opset", [11, 12, 13])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_sizes_with_empty_scales(tmp_path: Path, opset: int, mode: str) -> None:
    empty = np.zeros(0, "float32")
    equal(tmp_path / "n.onnx", [1, 2, 5, 7], [empty, empty, np.array([1, 2, 9, 4], "int64")], opset, mode)
