"""What `run --check` says of outputs that are nothing but roundings, and of outputs that are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx

import tvm_cascade


def _save(path: Path, factor: float) -> Path:
    """Save a network of two outputs: what softmax leaves of 1, and its input times a factor."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    held: dict[str, Any] = {"axis": np.array([-1]), "one": np.float32(1), "factor": np.float32(factor)}
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], axis=-1),
        helper.make_node("ReduceSum", ["s", "axis"], ["t"], keepdims=0),
        helper.make_node("Sub", ["t", "one"], ["left"]),
        helper.make_node("Mul", ["x", "factor"], ["small"]),
    ]
    ends = [helper.make_tensor_value_info(n, kind, f) for n, f in (("x", [4, 50]), ("left", [4]), ("small", [4, 50]))]
    weights = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.usefixtures("quick_host")
def test_outputs_of_nothing_but_roundings_are_not_checked(tmp_path: Path) -> None:
    model = _save(tmp_path / "m.onnx", 1e-9)
    tvm_cascade.compile(model, target="host", output=tmp_path / "p")
    done = tvm_cascade.run(tmp_path / "p", check=model)
    assert done.match is None and not done.ok and done.equals_host
    assert done.to_dict()["verdict"].startswith("NOT CHECKED: roundings alone move output 'left' by ")
    assert "(ONNX Runtime without optimizations)" in done.to_text()


@pytest.mark.usefixtures("quick_host")
def test_small_outputs_that_are_lost_are_different(tmp_path: Path) -> None:
    compiled, reference = _save(tmp_path / "m.onnx", 0), _save(tmp_path / "other.onnx", 1e-9)
    tvm_cascade.compile(compiled, target="host", output=tmp_path / "p")
    done = tvm_cascade.run(tmp_path / "p", check=reference)
    assert done.match is False and done.verdict.startswith("DIFFERENT, by up to ")
