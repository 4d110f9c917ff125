"""Arithmetic and order of booleans, and powers and means of integers, compiled, against NumPy and ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper

import tvm_cascade
from tvm_cascade.testing.onnx_nodes import check_network, compiled_outputs, save_network

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


def _power(x: float, by: float) -> float:
    """C's `pow`: of -inf and of zeros too, by numbers that are no integers."""
    if x == 0 and by < 0:
        return math.copysign(math.inf, x) if by == -1 else math.inf
    return math.nan if -math.inf < x < 0 and by % 1 else math.pow(x, by)


@pytest.mark.parametrize("target", ["host", "cortex-m4"])
def test_powers_of_floats_by_common_numbers(tmp_path: Path, target: str, emulator: None) -> None:
    """Products and roots in place of C's function, with its values at zeros, infinities and negative numbers."""
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.5, -2.5, 1e-20, 1e9, 123.4], "float32")
    by = [-2.0, -1.0, -0.75, -0.5, 0.25, 0.5, 0.75, 1.5, 2.0, 3.0, 4.0]
    names = [f"e{k}" for k in range(len(by))]
    nodes = [node("Pow", ["x", name], [f"z{name}"]) for name in names]
    constants = {name: np.asarray(number, "float32") for name, number in zip(names, by, strict=True)}
    path = save_network(tmp_path / "n.onnx", nodes, {"x": x}, [f"z{name}" for name in names], constants)
    made = compiled_outputs(path, {"x": x}, tmp_path / "project", target)
    for ours, number in zip(made, by, strict=True):
        theirs = np.array([_power(float(v), number) for v in x])
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(ours, theirs.astype("float32"), rtol=1e-6)
        assert (np.signbit(ours) == np.signbit(theirs))[~np.isnan(theirs)].all()


def test_squares_call_no_function(tmp_path: Path) -> None:
    x = np.ones((1, 99), "float32")
    cycles = {}
    for by in (2.0, 1.75):
        nodes, held = [node("Pow", ["x", "e"], ["z"])], {"e": np.asarray(by, "float32")}
        path = save_network(tmp_path / f"{by}.onnx", nodes, {"x": x}, ["z"], held)
        cycles[by] = tvm_cascade.plan(path, target="cortex-m4").to_dict()["cycles"]
    assert 20 * cycles[2.0] < cycles[1.75]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_means_of_integers_are_cut_off(tmp_path: Path, dtype: str) -> None:
    """TVM writes them as 64 bits whatever their type."""
    x = RNG.integers(-99, 99, (3, 4, 5)).astype(dtype)
    wanted = np.trunc(x.sum((0, 2)) / 15).astype(dtype)
    made = node("ReduceMean", ["x", "a"], ["z"], keepdims=0)
    check_network(tmp_path, [made], {"x": x}, ["z"], {"a": np.array([0, -1])}, wanted=[wanted])
