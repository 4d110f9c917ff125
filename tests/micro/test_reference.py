"""The oracle of `run --check`: which kernels it ran, and how far a network carries its roundings."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade.frontend import io_spec, load
from tvm_cascade.micro.reference import reference_outputs
from tvm_cascade.micro.sensitivity import turned
from tvm_cascade.testing.activation_cases import abs_, elu
from tvm_cascade.testing.operator_cases import Generator
from tvm_cascade.testing.tflite import ModelWriter


@pytest.mark.parametrize("operator, note", [(elu, "ordinary kernels, the reference ones say: .*ELU"), (abs_, "^$")])
def test_other_kernels_than_the_reference_are_named(tmp_path: Path, operator: Generator, note: str) -> None:
    writer = ModelWriter()
    operator(np.random.default_rng(0), "int8", writer)
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    (x,) = io_spec(load(tmp_path / "m.tflite")).inputs
    expected = reference_outputs(tmp_path / "m.tflite", {x.name: np.zeros(x.shape, "int8")})
    assert len(expected.outputs) == 1
    assert re.search(note, expected.note)


def _chain(path: Path, gain: float, opset: int) -> None:
    """Eight quantized products by a matrix that multiplies a step by about `gain`."""
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    rng = np.random.default_rng(0)
    weights = np.linalg.qr(rng.standard_normal((16, 16)))[0].astype("float32") * np.float32(gain)
    constants = {"s": np.float32(0.1), "z": np.array(0, "int8"), "w": weights}
    nodes, value = [], "x"
    for k in range(8):
        nodes.append(helper.make_node("QuantizeLinear", [value, "s", "z"], [f"q{k}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{k}", "s", "z"], [f"d{k}"]))
        nodes.append(helper.make_node("MatMul", [f"d{k}", "w"], [value := f"m{k}"]))
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4, 16]) for n in ("x", value)]
    held = [numpy_helper.from_array(np.asarray(c), n) for n, c in constants.items()]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)


def test_the_tolerance_is_the_networks_own(tmp_path: Path) -> None:
    x = {"x": np.random.default_rng(1).standard_normal((4, 16)).astype("float32")}
    reaches = []
    for name, gain, opset in (("calm", 0.3, 13), ("wild", 1.6, 19)):
        _chain(tmp_path / f"{name}.onnx", gain, opset)
        expected = reference_outputs(tmp_path / f"{name}.onnx", x)
        assert expected.reach is not None and expected.step is None  # the output itself is float
        reaches.append(expected.reach)
    assert reaches[0] < 0.1 < 0.5 < reaches[1]
    assert reference_outputs(tmp_path / "wild.onnx", x).reach == reaches[1]  # the same draws every time


def test_a_hundredth_of_the_elements_is_turned_within_its_type() -> None:
    stored = np.full(20000, 127, "int8")
    moved = turned(stored, np.random.default_rng(0))
    assert set(moved.tolist()) == {126, 127} and 60 < int((moved == 126).sum()) < 140  # half of a hundredth goes up


def test_what_the_reference_sums_wrongly_is_said(tmp_path: Path) -> None:
    """Its SUM of int8 differs from ours, which is one away from the ordinary kernel at most: the verdict says why."""
    w = ModelWriter()
    x, y = w.activation((1, 4, 6), "int8", 0.1, name="x"), w.tensor((1, 6), "int8", 0.1)
    w.operator("SUM", [x, w.constant(np.array([1], "int32"))], [y], "ReducerOptions", keepDims=False)
    path = tmp_path / "sums.tflite"
    path.write_bytes(w.finish())
    expected = reference_outputs(path, {"x": np.zeros((1, 4, 6), "int8")})
    assert expected.note == "LiteRT's reference SUM reads signed integers as unsigned bytes"
