"""Hardmax, casts of floats to integers, and ScatterND into a box, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.frontend import load

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
make, numpy_helper, kinds = onnx.helper, onnx.numpy_helper, onnx.TensorProto


def network(
    path: Path, nodes: list[Any], shapes: dict[str, tuple[int, ...]], opset: int, constants: dict[str, Any]
) -> Path:
    """Write a network of float inputs; its output is `y`."""
    inputs = [make.make_tensor_value_info(name, kinds.FLOAT, shape) for name, shape in shapes.items()]
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = make.make_graph(nodes, "g", inputs, [make.make_tensor_value_info("y", kinds.FLOAT, None)], held)
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", opset)], ir_version=9), path)
    return path


def equal_runtime(path: Path, shapes: dict[str, tuple[int, ...]], folder: Path) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    rng = np.random.default_rng(1)
    inputs = {name: rng.integers(-30, 30, shape).astype("float32") / 4 for name, shape in shapes.items()}
    (wanted,) = ort.InferenceSession(str(path), options).run(None, inputs)
    tvm_cascade.compile(path, target="host", output=folder)
    np.savez(folder.parent / "in.npz", **inputs)
    tvm_cascade.run(folder, inputs=folder.parent / "in.npz", outputs=folder.parent / "out.npz")
    with np.load(folder.parent / "out.npz") as got:
        np.testing.assert_array_equal(got["y"], wanted)


@pytest.mark.parametrize(
    ("opset", "shape", "axis"),
    [
        (13, (1, 4), None),
        (13, (2, 3, 4), 1),
        (17, (2, 3, 4), -3),
        (11, (2, 3, 4), None),
        (11, (2, 3, 4), 2),
        (1, (1, 7), None),
    ],
)
def test_hardmax(tmp_path: Path, opset: int, shape: tuple[int, ...], axis: int | None) -> None:
    node = make.make_node("Hardmax", ["x"], ["y"], **({} if axis is None else {"axis": axis}))
    path = network(tmp_path / "n.onnx", [node], {"x": shape}, opset, {})
    equal_runtime(path, {"x": shape}, tmp_path / "p")


def test_the_first_of_equal_elements_is_the_largest(tmp_path: Path) -> None:
    node = make.make_node("Hardmax", ["x"], ["y"])
    path = network(tmp_path / "n.onnx", [node], {"x": (2, 3)}, 13, {})
    tvm_cascade.compile(path, target="host", output=tmp_path / "p")
    np.savez(tmp_path / "in.npz", x=np.array([[1, 1, 0], [0, 2, 2]], "float32"))
    tvm_cascade.run(tmp_path / "p", inputs=tmp_path / "in.npz", outputs=tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as got:
        assert got["y"].tolist() == [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("kind", ["INT32", "INT8", "INT16", "UINT8"])
def test_casts_of_floats_to_integers_truncate(tmp_path: Path, kind: str) -> None:
    to = getattr(kinds, kind)
    first = [make.make_node("Abs", ["x"], ["a"])] if kind == "UINT8" else [make.make_node("Identity", ["x"], ["a"])]
    casts = [make.make_node("Cast", ["a"], ["i"], to=to), make.make_node("Cast", ["i"], ["y"], to=kinds.FLOAT)]
    path = network(tmp_path / "n.onnx", [*first, *casts], {"x": (2, 9)}, 13, {})
    equal_runtime(path, {"x": (2, 9)}, tmp_path / "p")


@pytest.mark.parametrize(
    ("box", "shape"),
    [
        ([(0, 1), (2, 4), (0, 5)], (1, 6, 5)),
        ([(0, 2)], (4, 3)),
        ([(1, 3), (1, 2)], (4, 3, 2)),
        ([(0, 4), (0, 3)], (4, 3)),
        ([(3, 4), (0, 3)], (4, 3)),
    ],
)
def test_updates_of_a_box_are_slices(tmp_path: Path, box: list[tuple[int, int]], shape: tuple[int, ...]) -> None:
    sizes = [b - a for a, b in box]
    at = np.stack(np.meshgrid(*(np.arange(a, b) for a, b in box), indexing="ij"), -1).astype("int64")
    shapes = {"data": shape, "new": (*sizes, *shape[len(box) :])}
    nodes = [make.make_node("ScatterND", ["data", "at", "new"], ["s"]), make.make_node("Relu", ["s"], ["y"])]
    path = network(tmp_path / "n.onnx", nodes, shapes, 13, {"at": at})
    assert "scatter" not in load(path)["main"].script()
    equal_runtime(path, shapes, tmp_path / "p")


def test_other_updates_are_no_box(tmp_path: Path) -> None:
    at = np.array([[2], [0]], "int64")
    nodes = [make.make_node("ScatterND", ["data", "at", "new"], ["s"]), make.make_node("Relu", ["s"], ["y"])]
    path = network(tmp_path / "n.onnx", nodes, {"data": (4, 3), "new": (2, 3)}, 13, {"at": at})
    assert "scatter_nd" in load(path)["main"].script()
