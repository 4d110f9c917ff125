"""Integers of 64 bits, compiled, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper

from tvm_cascade.testing.onnx_nodes import check_network

node = helper.make_node
RNG = np.random.default_rng(3)
WIDE = RNG.integers(-(2**40), 2**40, (2, 3, 4))
ROW = WIDE[0, 0] // 2**20 + 3
REAL = RNG.standard_normal((2, 3, 4)).astype("float32")


_CASES: dict[str, tuple[list[Any], list[np.ndarray], dict[str, Any]]] = {  # nodes from x and y to z; inputs; constants
    **{kind: ([node(kind, ["x", "y"], ["z"])], [WIDE, ROW], {}) for kind in (
        "Add", "Sub", "Mul", "Div", "Mod", "Max", "Equal", "Greater", "LessOrEqual", "BitwiseXor",
    )},
    **{kind: ([node(kind, ["x"], ["z"])], [WIDE], {}) for kind in ("Abs", "Neg", "Sign", "BitwiseNot")},
    "unsigned quotients": ([node("Div", ["x", "y"], ["z"])], [WIDE.astype("uint64"), ROW.astype("uint64")], {}),
    "remainders with the dividend's sign": ([node("Mod", ["x", "y"], ["z"], fmod=1)], [WIDE, ROW], {}),
    "powers": ([node("Pow", ["x", "k"], ["z"])], [WIDE], {"k": np.int64(3)}),
    "sums": ([node("ReduceSum", ["x", "k"], ["z"], keepdims=0)], [WIDE], {"k": np.array([0, 2])}),
    "products": ([node("ReduceProd", ["x"], ["z"], keepdims=0)], [WIDE % 9 + 1], {}),
    "maxima": ([node("ReduceMax", ["x", "k"], ["z"])], [WIDE], {"k": np.array([1])}),
    "places of maxima": ([node("ArgMax", ["x"], ["z"], axis=1)], [WIDE], {}),
    "running sums": ([node("CumSum", ["x", "k"], ["z"], reverse=1)], [WIDE], {"k": np.array(1)}),
    "matrix products": ([node("MatMul", ["x", "y"], ["z"])], [WIDE % 1000, WIDE[0].T % 77], {}),
    "slices": (
        [node("Slice", ["x", "b", "e", "a", "s"], ["z"])], [WIDE],
        {"b": np.array([3]), "e": np.array([-9]), "a": np.array([2]), "s": np.array([-2])},
    ),
    "pads": ([node("Pad", ["x", "k"], ["z"])], [WIDE], {"k": np.array([0, 1, 0, 0, 0, 2])}),
    "reflected pads": ([node("Pad", ["x", "k"], ["z"], mode="reflect")], [WIDE], {"k": np.array([0, 1, 0, 0, 0, 2])}),
    "concats": ([node("Concat", ["x", "y"], ["z"], axis=1)], [WIDE, WIDE[:, :1]], {}),
    "transpositions": ([node("Transpose", ["x"], ["z"], perm=[2, 0, 1])], [WIDE], {}),
    "gathers": ([node("Gather", ["x", "k"], ["z"], axis=1)], [WIDE], {"k": np.array([[2, -3]])}),
    "gathers at computed places": (
        [node("Neg", ["y"], ["n"]), node("Gather", ["x", "n"], ["z"], axis=1)], [WIDE, np.array([3, 1, 0])], {},
    ),
    "triangles": ([node("Trilu", ["x"], ["z"], upper=0)], [WIDE], {}),
    "choices": ([node("Less", ["x", "y"], ["c"]), node("Where", ["c", "x", "y"], ["z"])], [WIDE, ROW], {}),
    "one-hot": (
        [node("ArgMax", ["x"], ["i"], axis=-1), node("OneHot", ["i", "d", "v"], ["z"])], [REAL],
        {"d": np.int64(4), "v": np.array([0, 1])},
    ),
    "one-hot of what 32 bits do not hold": (
        [node("Mul", ["x", "k"], ["i"]), node("OneHot", ["i", "d", "v"], ["z"])], [np.arange(4)],
        {"k": np.int64(2**31), "d": np.int64(4), "v": np.array([0, 1])},
    ),
    "sums of booleans": (
        [node("Greater", ["x", "k"], ["b"]), node("Cast", ["b"], ["i"], to=7), node("ReduceSum", ["i"], ["z"])],
        [REAL], {"k": np.float32(0)},
    ),
    "from floats": ([node("Cast", ["x"], ["i"], to=7), node("Add", ["i", "k"], ["z"])], [REAL * 2**36], {"k": np.int64(1)}),
    "to floats": ([node("Cast", ["x"], ["z"], to=1)], [WIDE], {}),
    "to shorter integers": ([node("Cast", ["x"], ["z"], to=6)], [WIDE % 1000], {}),
    "to booleans": ([node("Cast", ["x"], ["z"], to=9)], [WIDE % 2 * WIDE], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", _CASES)
def test_they_are_computed_as_such(tmp_path: Path, name: str) -> None:
    nodes, inputs, constants = _CASES[name]
    check_network(tmp_path, nodes, dict(zip("xy", inputs, strict=False)), ["z"], constants)


@pytest.mark.usefixtures("emulator")
def test_on_a_core_of_32_bits(tmp_path: Path) -> None:
    nodes = [
        node("Mul", ["x", "y"], ["m"]),
        node("Div", ["m", "y"], ["z0"]),
        node("Mod", ["m", "k"], ["z1"]),
        node("ArgMax", ["m"], ["i"], axis=1),
        node("GatherElements", ["m", "i"], ["z2"], axis=1),
        node("CumSum", ["m", "one"], ["c"]),
        node("Cast", ["c"], ["z3"], to=1),
        node("Less", ["x", "y"], ["b"]),
        node("Cast", ["b"], ["bi"], to=7),
        node("ReduceSum", ["bi", "two"], ["z4"]),
    ]
    constants = {"k": np.int64(1000003), "one": np.array(1), "two": np.array([2])}
    inputs, outputs = {"x": WIDE, "y": ROW % 999 + 1}, [f"z{k}" for k in range(5)]
    check_network(tmp_path, nodes, inputs, outputs, constants, target="cortex-m4")
