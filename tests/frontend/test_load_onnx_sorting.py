"""TopK, compiled, against ONNX Runtime, and where that leaves the order open against NumPy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper

from tvm_cascade.testing.onnx_nodes import check_network

node = helper.make_node
RNG = np.random.default_rng(5)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axis", "k"),
    [((7,), 0, 7), ((2, 5, 4), 1, 3), ((3, 40), -1, 40), ((3, 40), -1, 1), ((1,), 0, 1), ((2, 1, 3), 1, 1), ((3, 17), 0, 2),
     ((300,), 0, 20)],
)  # fmt: skip
def test_top_k(tmp_path: Path, shape: tuple[int, ...], axis: int, k: int, largest: int) -> None:
    """Many elements are equal: the first of them comes first."""
    x = RNG.integers(-5, 5, shape).astype("float32")
    nodes = [node("TopK", ["x", "k"], ["v", "i"], axis=axis, largest=largest)]
    check_network(tmp_path, nodes, {"x": x}, ["v", "i"], {"k": np.array([k])})


@pytest.mark.parametrize("opset", [9, 10])
def test_of_older_definitions(tmp_path: Path, opset: int) -> None:
    x = RNG.standard_normal((2, 9)).astype("float32")
    made = node("TopK", ["x"], ["v", "i"], k=4) if opset < 10 else node("TopK", ["x", "k"], ["v", "i"])
    check_network(tmp_path, [made], {"x": x}, ["v", "i"], {"k": np.array([4])} if opset == 10 else {}, opset)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64", "float64"])
def test_of_other_types(tmp_path: Path, dtype: str) -> None:
    x = RNG.integers(0, 20, (2, 31)).astype(dtype)
    places = np.argsort(-x.astype("int64"), axis=1, kind="stable")[:, :9]
    made = node("TopK", ["x", "k"], ["v", "i"], sorted=0)
    wanted = [np.take_along_axis(x, places, 1), places]
    check_network(tmp_path, [made], {"x": x}, ["v", "i"], {"k": np.array([9])}, wanted=wanted)


@pytest.mark.parametrize("largest", [0, 1])
def test_nans_are_larger_than_every_number(tmp_path: Path, largest: int) -> None:
    x = RNG.standard_normal((3, 9)).astype("float32")
    x[0, [3, 7, 8]], x[1, 2], x[1, 4], x[2], x[2, 3] = np.nan, np.inf, -np.inf, 0.0, -0.0
    rank = np.where(np.isnan(x), -np.inf, -x) if largest else x
    places = np.argsort(rank, axis=1, kind="stable")
    places[1] = np.argsort(rank[1], kind="stable")
    made = node("TopK", ["x", "k"], ["v", "i"], largest=largest)
    wanted = [np.take_along_axis(x, places, 1), places]
    check_network(tmp_path, [made], {"x": x}, ["v", "i"], {"k": np.array([9])}, wanted=wanted)


@pytest.mark.usefixtures("emulator")
def test_on_a_core(tmp_path: Path) -> None:
    x = RNG.standard_normal((2, 6, 5)).astype("float32")
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("TopK", ["a", "k"], ["v", "i"], axis=1),
        node("GatherElements", ["x", "i"], ["z"], axis=1),
    ]
    check_network(tmp_path, nodes, {"x": x}, ["v", "i", "z"], {"k": np.array([4])}, target="cortex-m4")


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_nan_is_the_extreme(tmp_path: Path, kind: str, dtype: str, axis: int) -> None:
    x = np.round(RNG.standard_normal((4, 5, 6))).astype(dtype)
    x[RNG.random(x.shape) > 0.8] = np.nan
    wanted = (np.argmax if kind == "ArgMax" else np.argmin)(x, axis)
    made = node(kind, ["x"], ["i"], axis=axis, keepdims=0)
    check_network(tmp_path, [made], {"x": x}, ["i"], wanted=[wanted])


@pytest.mark.parametrize(
    ("kind", "worst"),
    [("ArgMax", np.float32(-np.inf)), ("ArgMin", np.float32(np.inf)), ("ArgMax", np.int64(-(2**63)))],
)  # fmt: skip
def test_the_first_of_elements_that_are_all_the_least(tmp_path: Path, kind: str, worst: np.generic) -> None:
    x = np.full((2, 4), worst)
    made = node(kind, ["x"], ["i"], axis=1, keepdims=0)
    check_network(tmp_path, [made], {"x": x}, ["i"], wanted=[np.array([0, 0])])


@pytest.mark.usefixtures("emulator")
def test_extremes_of_float64_on_a_core(tmp_path: Path) -> None:
    """They begin with an infinity, which C has a name for."""
    x = RNG.standard_normal((3, 4))
    x[1] = -np.inf
    nodes = [node("ArgMax", ["x"], ["i"], axis=1), node("ReduceMax", ["x", "a"], ["y"])]
    check_network(tmp_path, nodes, {"x": x}, ["i", "y"], {"a": np.array([1])}, target="cortex-m4")
