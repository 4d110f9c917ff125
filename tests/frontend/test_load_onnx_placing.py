"""Hardmax, casts of floats to integers, and scatters, into a box and others, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.frontend import load

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime as ort

from tvm_cascade.testing.onnx_nodes import check_network

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
    options: Any = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    rng = np.random.default_rng(1)
    inputs: dict[str, Any] = {
        name: rng.integers(-30, 30, shape).astype("float32") / 4 for name, shape in shapes.items()
    }
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


@pytest.mark.parametrize("target", ["host", "cortex-m4"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_casts_beyond_the_range_are_alike_on_every_target(tmp_path: Path, dtype: str, target: str) -> None:
    """They are open in ONNX; ONNX Runtime and torch give these on x86."""
    x = np.array([3e9, -3e9, 2.0**31, 1e19, -1e19, np.inf, -np.inf, np.nan, -1.5, 300.2], "float32")
    wide = "int64" if dtype == "int64" else "int32"
    least = np.iinfo(wide).min
    whole = np.array([int(v) if abs(v) < -least else least for v in x.astype("float64")], wide)
    check_network(
        tmp_path,
        [make.make_node("Cast", ["x"], ["y"], to=getattr(kinds, dtype.upper()))],
        {"x": x},
        ["y"],
        target=target,
        wanted=[whole.astype(dtype)],
    )


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


_REDUCTIONS = ("none", "add", "mul", "min", "max")


@pytest.mark.parametrize("reduction", _REDUCTIONS)
@pytest.mark.parametrize("constant", [False, True])
def test_scattered_elements(tmp_path: Path, reduction: str, constant: bool) -> None:
    """Updates are fewer than the data along every axis; indices count from either end, those of an element are several."""
    rng = np.random.default_rng(2)
    x, u = (rng.standard_normal(shape).astype("float32") for shape in ((3, 5, 4), (2, 5, 3)))
    at = rng.integers(-5, 5, u.shape) if reduction != "none" else np.argsort(u, axis=1) - 5
    nodes = [make.make_node("ScatterElements", ["x", "at", "u"], ["y"], axis=1, reduction=reduction)]
    given, held = {"x": x, "u": u}, {"at": at}
    check_network(tmp_path, nodes, given if constant else given | held, ["y"], held if constant else {})


@pytest.mark.parametrize("reduction", _REDUCTIONS)
@pytest.mark.parametrize(("depth", "dtype"), [(2, "float32"), (3, "float32"), (3, "int64"), (1, "float32")])
def test_scattered_parts(tmp_path: Path, reduction: str, depth: int, dtype: str) -> None:
    rng = np.random.default_rng(3)
    rows = np.array([[0, 1, 2], [-1, -5, -1], [1, 3, 0]])[:, :depth]
    x, u = (rng.integers(-9, 9, shape).astype(dtype) for shape in ((3, 5, 4), (3, *(3, 5, 4)[depth:])))
    nodes = [make.make_node("ScatterND", ["x", "at", "u"], ["y"], reduction=reduction)]
    check_network(tmp_path, nodes, {"x": x, "at": rows, "u": u}, ["y"])


def test_scattered_booleans(tmp_path: Path) -> None:
    x, u = np.eye(3, 4) > 0, np.ones((1, 4)) > 0
    nodes = [
        make.make_node("ScatterElements", ["x", "at", "u"], ["z0"], axis=0),
        make.make_node("ScatterND", ["x", "row", "u"], ["z1"]),
    ]
    held = {"at": np.array([[2, 1, 0, 2]]), "row": np.array([[1]])}
    check_network(tmp_path, nodes, {"x": x, "u": u}, ["z0", "z1"], held)


def test_indices_that_name_no_element_are_left_out(tmp_path: Path) -> None:
    x, u = np.zeros((4, 2), "float32"), np.ones((3, 2), "float32")
    at = np.array([[1, -4], [4, 2**20], [-5, 0]], "int32")
    wanted = np.array([[0, 1], [1, 0], [0, 0], [0, 0]], "float32")
    wanted[0, 1] += 1
    nodes = [make.make_node("ScatterElements", ["x", "at", "u"], ["y"], axis=0, reduction="add")]
    check_network(tmp_path, nodes, {"x": x, "at": at, "u": u}, ["y"], wanted=[wanted])


@pytest.mark.usefixtures("emulator")
def test_scatters_on_a_core(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    x, u = (rng.standard_normal(shape).astype("float32") for shape in ((2, 6, 3), (2, 4, 3)))
    nodes = [
        make.make_node("Relu", ["x"], ["a"]),
        make.make_node("ScatterElements", ["a", "at", "u"], ["s"], axis=1, reduction="add"),
        make.make_node("ScatterND", ["s", "rows", "v"], ["y"], reduction="max"),
    ]
    given = {"x": x, "u": u, "at": rng.integers(-6, 6, u.shape), "v": u[:, 0]}
    check_network(tmp_path, nodes, given, ["y"], {"rows": np.array([[0, 5], [1, -6]])}, target="cortex-m4")


def test_other_updates_are_no_box(tmp_path: Path) -> None:
    at = np.array([[2], [0]], "int64")
    nodes = [make.make_node("ScatterND", ["data", "at", "new"], ["s"]), make.make_node("Relu", ["s"], ["y"])]
    path = network(tmp_path / "n.onnx", nodes, {"data": (4, 3), "new": (2, 3)}, 13, {"at": at})
    assert "scatter_nd" in load(path)["main"].script()
