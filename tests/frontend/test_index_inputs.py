"""Inputs that are only indices: their type, their extent, and that random ones lie below it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import helper, numpy_helper
from tvm import relax as _relax

import tvm_cascade
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.importers.index_inputs import with_index_inputs
from tvm_cascade.importers.interface import attach
from tvm_cascade.testing.reference import Compiled

relax: Any = _relax
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


_ROWS = np.array([[[1, -1], [0, 2], [1, 0]]])
_DATA = np.arange(12, dtype="float32").reshape(3, 4)
_INDEXED: dict[
    str, tuple[Any, tuple[int, ...], Any]
] = {  # a node of data and computed indices, their shape, its meaning
    "Gather": (helper.make_node("Gather", ["data", "x"], ["y"], axis=1), (1, 4), lambda at: _DATA[:, at]),
    "GatherElements": (
        helper.make_node("GatherElements", ["data", "x"], ["y"], axis=1),
        (3, 2),
        lambda at: np.take_along_axis(_DATA, at % 4, 1),
    ),
    "GatherND": (
        helper.make_node("GatherND", ["data", "x"], ["y"]),
        (1, 3, 2),
        lambda at: _DATA[at[..., 0], at[..., 1]],
    ),
    "ScatterND": (helper.make_node("ScatterND", ["data", "x", "more"], ["y"]), (1, 3, 2), lambda at: _scattered(at)),
}


def _scattered(at: np.ndarray) -> np.ndarray:
    made = _DATA.copy()
    made[at[..., 0], at[..., 1]] = -_DATA[:1, :3]
    return made


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("name", _INDEXED)
def test_no_extent_is_asked_at_run_time(tmp_path: Path, name: str, computed: bool) -> None:
    """Indices that are counted from the end, of constant data: what schedules operators takes no values that are shapes."""
    node, shape, meant = _INDEXED[name]
    at = np.resize(_ROWS, shape) if shape != _ROWS.shape else _ROWS
    offset = numpy_helper.from_array(at, "offset")
    given = helper.make_tensor_value_info("number", onnx.TensorProto.INT32, shape)
    cast = helper.make_node("Cast", ["number"], ["wide"], to=onnx.TensorProto.INT64)
    moved = helper.make_node("Add", ["wide", "offset"], ["x"])
    nodes = [cast, moved, node] if computed else [helper.make_node("Identity", ["offset"], ["x"]), node, cast]
    outputs = [helper.make_value_info("y", onnx.TypeProto())]
    outputs += [] if computed else [helper.make_value_info("wide", onnx.TypeProto())]
    held = [offset, numpy_helper.from_array(_DATA, "data"), numpy_helper.from_array(-_DATA[:1, :3], "more")]
    graph = helper.make_graph(nodes, "g", [given], outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "n.onnx")
    mod = load(tmp_path / "n.onnx")
    assert "R.shape_of" not in mod.script()
    np.testing.assert_array_equal(Compiled(mod)(np.zeros(shape, "int32"))[0], meant(at))


def test_outputs_that_are_bound_to_one_variable(tmp_path: Path) -> None:
    """As torch.export writes several of them."""
    _save(tmp_path / "n.onnx", _CASES["two tables"][0])
    mod = load(tmp_path / "n.onnx")
    ids = relax.Var("ids", relax.TensorType((1, 4), "int64"))
    bb: Any = relax.BlockBuilder()
    with bb.function("main", [ids]):
        with bb.dataflow():
            both = (relax.op.take(relax.const(t), ids, 0) for t in TABLES.values())
            made = bb.emit_output(relax.Tuple([bb.emit(b) for b in both]))
        bb.emit_func_output(made)
    narrowed: Any = with_index_inputs(attach(bb.finalize(), replace(io_spec(mod), inputs=(_wide(io_spec(mod)),))))
    assert str(narrowed["main"].params[0].ty.dtype) == "int32"
    data = np.array([[1, 4, 3, 0]], "int32")
    for found, table in zip(Compiled(narrowed)(data), TABLES.values(), strict=True):
        np.testing.assert_array_equal(found, table[data])


def _wide(spec: Any) -> Any:
    return replace(spec.inputs[0], name="ids", dtype="int64", extent=None)
