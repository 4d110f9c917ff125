"""RotaryEmbedding, which ONNX's own body computes: whole heads, parts of them, and positions of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_cascade
from tvm_cascade.frontend import load
from tvm_cascade.testing.reference import Compiled

RNG = np.random.default_rng(0)
STEPS, HEAD = 4, 8


def _x(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def _saved(path: Path, heads: int, part: int, positions: bool, interleaved: int) -> Any:
    """A model of input x: four-dimensional, or with the heads side by side; `part` of each head is rotated, 0 for all."""
    half = (part or HEAD) // 2
    held = {name: _x(*((10, half) if positions else (1, STEPS, half))) for name in ("cos", "sin")}
    if positions:
        held["at"] = np.array([[3, 0, 9, 4]])
    options: dict[str, Any] = {"num_heads": heads} if heads else {}
    options |= {"rotary_embedding_dim": part} if part else {}
    options["interleaved"] = interleaved
    node = helper.make_node("RotaryEmbedding", ["x", *held], ["y"], **options)
    shape = (1, STEPS, heads * HEAD) if heads else (1, 2, STEPS, HEAD)
    given, made = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x", "y"))
    graph = helper.make_graph([node], "g", [given], [made], [numpy_helper.from_array(a, n) for n, a in held.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.save(model, path)
    return model, _x(*shape)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize(("heads", "part"), [(0, 0), (0, 4), (2, 0), (2, 4)])
def test_every_form(tmp_path: Path, heads: int, part: int, positions: bool, interleaved: int) -> None:
    model, x = _saved(tmp_path / "n.onnx", heads, part, positions, interleaved)
    evaluator: Any = ReferenceEvaluator(model)
    (ours,) = Compiled(load(tmp_path / "n.onnx"))(x)
    np.testing.assert_allclose(ours, evaluator.run(None, {"x": x})[0], atol=1e-5)


@pytest.mark.usefixtures("quick_host")
def test_a_compiled_program(tmp_path: Path) -> None:
    _saved(tmp_path / "n.onnx", 0, 0, True, 0)
    tvm_cascade.compile(tmp_path / "n.onnx", target="host", output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "n.onnx").match is True
