"""Inputs that are only indices: their type, their extent, and that random ones lie below it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import helper, numpy_helper

import tvm_cascade
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.testing.reference import Compiled

RNG = np.random.default_rng(0)
TABLES = {
    "large": RNG.standard_normal((9, 3)).astype("float32"),
    "small": RNG.standard_normal((5, 6)).astype("float32"),
}
_GATHER = helper.make_node("Gather", ["small", "x"], ["y0"])
_CASES: dict[str, tuple[list[Any], str, int | None]] = {  # nodes, the type and the extent of the input
    "one table": ([_GATHER], "int32", 5),
    "two tables": ([_GATHER, helper.make_node("Gather", ["large", "x"], ["y1"])], "int32", 5),
    "moved and cast": (
        [
            helper.make_node("Unsqueeze", ["x", "axis"], ["u"]),
            helper.make_node("Cast", ["u"], ["c"], to=onnx.TensorProto.INT32),
            helper.make_node("Gather", ["large", "c"], ["y0"]),
        ],
        "int32",
        9,
    ),
    "also a number": ([_GATHER, helper.make_node("Neg", ["x"], ["y1"])], "int32", 5),
    "also an output": ([_GATHER, helper.make_node("Identity", ["x"], ["y1"])], "int32", 5),
    "also an output, moved": ([_GATHER, helper.make_node("Unsqueeze", ["x", "axis"], ["y1"])], "int32", 5),
    "only an output": ([helper.make_node("Identity", ["x"], ["y0"])], "int64", None),
    "no index": ([helper.make_node("Neg", ["x"], ["y0"])], "int64", None),
}


_NUMBERS = {"Identity": ["x"], "Neg": ["x"], "Sub": ["axis", "x"], "Mul": ["x", "x"], "Max": ["x", "axis"]}


def _save(path: Path, nodes: list[Any]) -> None:
    given = helper.make_tensor_value_info("x", onnx.TensorProto.INT64, (1, 4))
    results = [helper.make_value_info(o, onnx.TypeProto()) for n in nodes for o in n.output if o.startswith("y")]
    held = [numpy_helper.from_array(a, n) for n, a in {**TABLES, "axis": np.array([0])}.items()]
    graph = helper.make_graph(nodes, "g", [given], results, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


@pytest.mark.parametrize("name", _CASES)
def test_type_and_extent(tmp_path: Path, name: str) -> None:
    nodes, dtype, extent = _CASES[name]
    _save(tmp_path / "n.onnx", nodes)
    mod = load(tmp_path / "n.onnx")
    (spec,) = io_spec(mod).inputs
    assert (spec.dtype, spec.extent) == (dtype, extent)
    if extent is not None:
        ids = np.array([[1, 4, -1, 0]], dtype)
        table = TABLES["small" if extent == 5 else "large"]
        found, *rest = Compiled(mod)(ids)
        np.testing.assert_array_equal(found.reshape(1, 4, -1), table[ids])
        for other in rest if "also" in name else ():
            assert other.dtype == np.int64
            assert other.ravel().tolist() == (-ids if "number" in name else ids).ravel().tolist()


@pytest.mark.usefixtures("quick_host")
def test_random_inputs_are_checked(tmp_path: Path) -> None:
    """Where they reached beyond the table, the reference refused them. What else they are is computed in 64 bits."""
    numbers = [helper.make_node(kind, given, [f"y{kind}"]) for kind, given in _NUMBERS.items()]
    _save(tmp_path / "n.onnx", [*_CASES["two tables"][0], *numbers])
    tvm_cascade.compile(tmp_path / "n.onnx", target="host", output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "n.onnx").match is True
