"""Random inputs lie in the domain of the operators that read them, and reach its ends."""

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
from tvm_cascade.runs.arrays import random_input
from tvm_cascade.tensor_spec import TensorSpec
from tvm_cascade.testing.tflite import ModelWriter

F, I = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32


def _save(path: Path, kind: str, dtype: int, *given: Any, **attrs: Any) -> Path:
    """Save one operator of inputs (of those None) and constants."""
    names = [f"x{k}" for k in range(len(given))]
    inputs = [helper.make_tensor_value_info(n, dtype, [6, 8]) for n, c in zip(names, given, strict=True) if c is None]
    held = [
        numpy_helper.from_array(np.array(c, helper.tensor_dtype_to_np_dtype(dtype)), n)
        for n, c in zip(names, given, strict=True)
        if c is not None
    ]
    node = helper.make_node(kind, names, ["y"], **attrs)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", dtype, [6, 8])], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def _drawn(spec: TensorSpec) -> np.ndarray:
    return random_input(spec, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [("Sqrt", 0, None), ("Log", 0, None), ("Acosh", 1, None), ("Asin", -1, 1), ("Atanh", -1, 1), ("Neg", None, None)],
)
def test_floats_of_a_domain(tmp_path: Path, kind: str, low: float | None, high: float | None) -> None:
    (spec,) = io_spec(load(_save(tmp_path / "m.onnx", kind, F, None))).inputs
    drawn = _drawn(spec)
    assert drawn.min() == low if low is not None else drawn.min() < -1
    assert drawn.max() == high if high is not None else drawn.max() > 1


def test_domains_go_through_sums_with_constants(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "c"], ["s"]), helper.make_node("Log", ["s"], ["y"])]
    ends = [helper.make_tensor_value_info(n, F, [6, 8]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(np.array(0.5, "float32"), "c")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    (spec,) = io_spec(load(tmp_path / "m.onnx")).inputs
    assert _drawn(spec).min() == -0.5


def test_bases_and_exponents(tmp_path: Path) -> None:
    base, by = io_spec(load(_save(tmp_path / "m.onnx", "Pow", F, None, None))).inputs
    assert _drawn(base).min() == 0 and _drawn(by).min() < 0
    w = ModelWriter()
    w.operator("POW", [w.activation((6, 8), "int32"), w.activation((6, 8), "int32")], [w.tensor((6, 8), "int32")])
    (tmp_path / "m.tflite").write_bytes(w.finish())
    base, by = io_spec(load(tmp_path / "m.tflite")).inputs
    assert -_drawn(base).min() == 2**5 == _drawn(base).max() and set(_drawn(by).ravel()) == set(range(7))
    (base,) = io_spec(load(_save(tmp_path / "m.onnx", "Pow", F, None, 3))).inputs
    assert _drawn(base).min() < 0


def test_stored_integers_of_a_domain(tmp_path: Path) -> None:
    w = ModelWriter()
    x, y = w.activation((6, 8), "int8", 0.1, -100), w.tensor((6, 8), "int8", 0.05, -128)
    w.operator("SQRT", [x], [y])
    (tmp_path / "m.tflite").write_bytes(w.finish())
    (spec,) = io_spec(load(tmp_path / "m.tflite")).inputs
    assert (_drawn(spec).min(), _drawn(spec).max()) == (-100, 127)


@pytest.mark.usefixtures("quick_host")
@pytest.mark.parametrize(("dtype", "fmod"), [(I, 0), (I, 1), (F, 1)])
@pytest.mark.parametrize("divisor", [-3, 3, None])
def test_remainders_are_checked(tmp_path: Path, divisor: int | None, fmod: int, dtype: int) -> None:
    """By -3 drawing failed, by 3 only 0, 1 and 2 were tried; integers are divided by no 0."""
    model = _save(tmp_path / "m.onnx", "Mod", dtype, None, divisor, fmod=fmod)
    inputs = io_spec(load(model)).inputs
    assert _drawn(inputs[0]).max() > 3 > -3 > _drawn(inputs[0]).min() or divisor is None
    tvm_cascade.compile(model, target="host", output=tmp_path / "p")
    done = tvm_cascade.run(tmp_path / "p", check=model)
    assert done.ok and done.reference == "ONNX Runtime without optimizations"


@pytest.mark.parametrize("divisor", [-3, 3])
def test_the_modulus_of_tflite(tmp_path: Path, divisor: int) -> None:
    w = ModelWriter()
    x, y = w.activation((6, 8), "int32"), w.tensor((6, 8), "int32")
    w.operator("FLOOR_MOD", [x, w.constant(np.array([divisor], "int32"))], [y], "FloorModOptions")
    (tmp_path / "m.tflite").write_bytes(w.finish())
    (spec,) = io_spec(load(tmp_path / "m.tflite")).inputs
    assert _drawn(spec).max() > 100 > -100 > _drawn(spec).min()
