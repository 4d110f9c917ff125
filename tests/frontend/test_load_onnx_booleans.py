"""Arithmetic and order of booleans, and powers and means of integers, compiled, against NumPy and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper

from tvm_cascade.testing.onnx_nodes import check_network

node = helper.make_node
RNG = np.random.default_rng(7)
A, B = RNG.random((2, 3, 4)) > 0.5, RNG.random((3, 1)) > 0.5
_MEANT: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.logical_or, "Mul": np.logical_and, "Max": np.maximum, "Min": np.minimum, "Equal": np.equal, "Less": np.less,
    "Greater": np.greater, "LessOrEqual": np.less_equal, "GreaterOrEqual": np.greater_equal, "Xor": np.not_equal,
}  # fmt: skip


@pytest.mark.parametrize("kind", _MEANT)
def test_booleans(tmp_path: Path, kind: str) -> None:
    made = node(kind, ["x", "y"], ["z"])
    check_network(tmp_path, [made], {"x": A, "y": B}, ["z"], wanted=[_MEANT[kind](A, B)])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_powers_of_integers_by_computed_integers(tmp_path: Path, dtype: str) -> None:
    x, y = RNG.integers(-4, 5, (3, 7)).astype(dtype), np.array([0, 1, 2, 3, 9, 64, 5], dtype)
    with np.errstate(over="ignore"):
        check_network(tmp_path, [node("Pow", ["x", "y"], ["z"])], {"x": x, "y": y}, ["z"], wanted=[x**y])


@pytest.mark.parametrize("constant", [False, True])
def test_integers_to_negative_powers_are_cut_off(tmp_path: Path, constant: bool) -> None:
    x, y = np.array([[1], [-1], [2], [-3]], "int32"), np.array([-1, -2, -3, 0, 2], "int32")
    wanted = np.trunc(x.astype("float64") ** y).astype("int32")
    given, held = ({"x": x}, {"y": y}) if constant else ({"x": x, "y": y}, {})
    check_network(tmp_path, [node("Pow", ["x", "y"], ["z"])], given, ["z"], held, wanted=[wanted])


def test_powers_of_floats_by_integers(tmp_path: Path) -> None:
    x, y = RNG.standard_normal((3, 4)).astype("float32"), RNG.integers(0, 4, (3, 4))
    check_network(tmp_path, [node("Pow", ["x", "y"], ["z"])], {"x": x, "y": y}, ["z"])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_means_of_integers_are_cut_off(tmp_path: Path, dtype: str) -> None:
    """TVM writes them as 64 bits whatever their type."""
    x = RNG.integers(-99, 99, (3, 4, 5)).astype(dtype)
    wanted = np.trunc(x.sum((0, 2)) / 15).astype(dtype)
    made = node("ReduceMean", ["x", "a"], ["z"], keepdims=0)
    check_network(tmp_path, [made], {"x": x}, ["z"], {"a": np.array([0, -1])}, wanted=[wanted])
