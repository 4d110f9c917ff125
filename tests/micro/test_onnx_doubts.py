"""Operators for which ONNX's evaluator is no reference."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")

import onnx

from tvm_cascade.checking.onnx_reference import untrusted


@pytest.mark.parametrize(("opset", "trusted"), [(7, True), (9, False), (13, False), (14, True), (15, True)])
def test_batch_normalization_by_the_statistics_of_the_batch(opset: int, trusted: bool) -> None:
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    names = ["x", "scale", "bias", "mean", "var"]
    node = helper.make_node("BatchNormalization", names, ["y"])
    inputs = [helper.make_tensor_value_info(n, kind, [1, 2, 3, 3] if n == "x" else [2]) for n in names]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", kind, [1, 2, 3, 3])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    assert list(untrusted(model)) == ([] if trusted else [f"BatchNormalization of opset {opset}"])
