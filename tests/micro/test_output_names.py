"""Outputs are returned and compared by position, also where the model's file gives two of them one name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

import tvm_cascade
from tvm_cascade.checking.compare_outputs import Verdict, compare, compare_with_reference
from tvm_cascade.tensor_spec import TensorSpec, named_apart, unique_names
from tvm_cascade.testing.reference import Reference
from tvm_cascade.testing.tflite import ModelWriter

SHAPE = (1, 4, 4, 2)


def test_names_are_made_unique_by_position() -> None:
    assert unique_names(["a", "b", "a", "a"]) == ["a", "b", "a_2", "a_3"]
    assert unique_names(["a_2", "a_1", "a_2", "a_2"]) == ["a_2", "a_1", "a_2_2", "a_2_3"]
    assert unique_names(["a_1", "a", "a", "a_2"]) == ["a_1", "a", "a_2", "a_2_3"]
    assert unique_names(["y_2", "y", "y"]) == ["y_2", "y", "y_2_"]
    first, second = named_apart([TensorSpec("y", (1,), "int8"), TensorSpec("y", (2,), "int8")])
    assert (first.name, first.file_name, second.name, second.file_name) == ("y", "", "y_1", "y")


def test_the_second_output_of_a_name_is_compared_too() -> None:
    specs = named_apart([TensorSpec("y", (2,), "int8", 0.5, 1), TensorSpec("y", (2,), "int8", 0.25, -1)])
    made = {"y": np.array([1, 3], "int8"), "y_1": np.array([3, 5], "int8")}
    wrong = {**made, "y_1": np.array([3, 6], "int8")}
    stored = {"y": made["y"], "other name": made["y_1"]}
    assert compare_with_reference(stored, made, specs) == Verdict(True)
    assert compare_with_reference(stored, wrong, specs) == Verdict(False, 1, differing=1, elements=2)
    floats = {"a": np.array([0, 1], "float32"), "b": np.array([1, 1.5], "float32")}
    assert compare_with_reference(floats, made, specs) == Verdict(True)
    assert compare_with_reference(floats, wrong, specs) == Verdict(False, 0.25, differing=1, elements=2)
    assert compare(made, made).match and not compare(made, wrong).match
    fewer = compare_with_reference({"y": made["y"]}, made, specs)
    assert fewer == Verdict(False, float("inf"), reason="2 outputs, the reference has 1")


@pytest.mark.usefixtures("quick_host")
@pytest.mark.parametrize("twice", [False, True])
def test_outputs_that_share_a_name_or_a_tensor(tmp_path: Path, twice: bool) -> None:
    w = ModelWriter()
    x = w.activation(SHAPE, "int8", 0.05)
    a, b = w.tensor(SHAPE, "int8", 0.1, 5, name="y"), w.tensor(SHAPE, "int8", 1 / 128, 0, name="y")
    w.operator("ADD", [x, x], [a], "AddOptions")
    w.operator("TANH", [x], [b])
    w.outputs.extend([a] if twice else [])
    model = tmp_path / "m.tflite"
    model.write_bytes(w.finish())
    tvm_cascade.compile(model, target="host", output=tmp_path / "p")
    feed = np.arange(-16, 16).reshape(SHAPE).astype("int8")
    report = tvm_cascade.run(tmp_path / "p", inputs={"t0": feed}, check=model)
    names = ["y", "y_1", "y_2"][: 2 + twice]
    assert report.match is True and list(report.outputs) == names
    for ours, theirs in zip(report.outputs.values(), Reference(w.finish()).run([feed]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    (header,) = (p.read_text() for p in (tmp_path / "p").glob("*.h"))
    assert "int8_t *y; /* y: int8" in header
    for name in names[1:]:
        assert f"int8_t *{name}; /* {name}, another y of the model: int8" in header
