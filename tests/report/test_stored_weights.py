"""Plans, projects and pages tell which layers keep their weights in fewer bytes, and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_cascade
from tvm_cascade.testing.tflite import ModelWriter

ROWS, DEPTH, UNITS = 50, 64, 96


def mixed(path: Path) -> Path:
    """Write an embedding table of int8, a product of int4 with scales by channel, and a product of floats."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(-8, 8, (DEPTH, UNITS)).ravel() & 15
    packed = (numbers[0::2] | numbers[1::2] << 4).astype("uint8").tobytes()
    constants = {
        "scales": rng.uniform(0.01, 0.03, UNITS).astype("float32"),
        "table": rng.integers(-100, 100, (ROWS, DEPTH)).astype("int8"),
        "scale": np.float32(0.02),
        "floats": rng.normal(size=(UNITS, 5)).astype("float32"),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["table", "scale"], ["rows"]),
        helper.make_node("Gather", ["rows", "i"], ["x"]),
        helper.make_node("DequantizeLinear", ["numbers", "scales"], ["weights"], axis=1),
        helper.make_node("MatMul", ["x", "weights"], ["h"]),
        helper.make_node("MatMul", ["h", "floats"], ["y"]),
    ]
    initializers = [
        helper.make_tensor("numbers", TensorProto.INT4, [DEPTH, UNITS], packed, raw=True),
        *(numpy_helper.from_array(value, name) for name, value in constants.items()),
    ]
    ends = [("i", TensorProto.INT64, [1]), ("y", TensorProto.FLOAT, [1, 5])]
    given, made = (helper.make_tensor_value_info(*end) for end in ends)
    graph = helper.make_graph(nodes, "mixed", [given], [made], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def test_every_layer_tells_its_storage(quick_host: None, tmp_path: Path) -> None:
    made = tvm_cascade.compile(mixed(tmp_path / "m.onnx"), target="host", output=tmp_path / "out")
    saved = {"x": 3 * ROWS * DEPTH - 4, "h": 4 * DEPTH * UNITS - DEPTH * UNITS // 2 - 4 * UNITS}
    layers = {row["name"]: row for row in made.to_dict()["layers"]}
    assert [layers[n]["storage"] for n in ("x", "h", "y")] == ["8 bits", "4 bits", ""]
    assert {n: row["saved_bytes"] for n, row in layers.items() if row["saved_bytes"]} == saved
    operators = json.loads((tmp_path / "out" / "metadata.json").read_text(encoding="utf-8"))["operators"]
    assert {o["name"]: o["saved_bytes"] for o in operators if o["storage"]} == saved
    told = f"1 layer in 8 bits, 1 layer in 4 bits: {sum(saved.values())} bytes of flash fewer than as int8 or float32"
    assert told in " ".join(made.to_text().split())
    assert f"{saved['h']} 4 bits     h" in made.to_text(details=True)
    made.write_report(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert f"Weights: {told}." in page
    assert page.count("<td>4 bits</td>") == 1


@pytest.mark.emulator
@pytest.mark.parametrize(("optimise", "storage"), [("balanced", ""), ("size", "indices of 4 bits")])
def test_indices_into_a_table_are_told(
    optimise: Literal["balanced", "size"], storage: str, quick_host: None, emulator: None, tmp_path: Path
) -> None:
    rng, writer = np.random.default_rng(3), ModelWriter()
    values = rng.choice(np.arange(-127, 128), 16, replace=False).astype("int8")
    weights = values[rng.integers(0, 16, (32, 3, 3, 32))]
    x, y = writer.activation((1, 9, 7, 32), "int8", 0.1, 5), writer.tensor((1, 5, 4, 32), "int8", 9.0, -3)
    held, bias = writer.tensor(weights.shape, "int8", 0.02, data=weights), writer.constant(np.zeros(32, "int32"), 0.002)
    writer.operator("CONV_2D", [x, held, bias], [y], "Conv2DOptions", strideH=2, strideW=2)
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    plan = tvm_cascade.compile(tmp_path / "m.tflite", target="cortex-m4", output=tmp_path / "p", optimise=optimise)
    saved = weights.size // 2 - 1024 if storage else 0
    assert [(x["storage"], x["saved_bytes"]) for x in plan.to_dict()["layers"]] == [(storage, saved)]


@pytest.mark.parametrize("details", [False, True])
def test_a_network_of_plain_weights_says_nothing(details: bool, tmp_path: Path, test_data: Path) -> None:
    plan = tvm_cascade.plan(test_data / "models" / "kws_dscnn_int8.tflite", target="cortex-m4")
    assert "stored as int8" not in plan.to_text(details=details)
    assert "\nstored" not in plan.to_text(details=details)
