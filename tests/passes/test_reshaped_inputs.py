"""Inputs that a network reshapes first come by rows of what they are reshaped to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

pytest.importorskip("ai_edge_litert")

import tvm_cascade
from tvm_cascade.frontend import load
from tvm_cascade.passes.reshaped_inputs import reshaped_inputs
from tvm_cascade.testing.tflite import ModelWriter


def _network(path: Path, shape: tuple[int, ...], more: str = "") -> Path:
    """A flat input, or one of `shape`, that becomes [1, 12, 6, 2] for convolutions; `more` reads it, or returns it, too."""
    rng, w = np.random.default_rng(2), ModelWriter()
    x = w.activation(shape, "int8", 0.1, name="x")
    image = w.tensor((1, 12, 6, 2), "int8", 0.1, name="image")
    w.operator("RESHAPE", [x, w.constant(np.array([1, 12, 6, 2], "int32"))], [image], "ReshapeOptions", inner=True)
    y = w.convolution(w.convolution(image, 2, 3, 1, rng, name="middle"), 2, 3, 2, rng, name="y")
    w.outputs = [y]
    if more == "read":
        w.operator("LOGISTIC", [x], [w.tensor(shape, "int8", 1 / 256, -128, name="z")])
    if more == "returned":
        w.outputs.append(x)
    path.write_bytes(w.finish())
    return path


@pytest.mark.parametrize("shape", [(1, 144), (144,), (1, 24, 3, 2), (1, 1, 144, 1)])
def test_rows_of_the_reshaped_input_are_asked_for(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = _network(tmp_path / "net.tflite", shape)
    whole = tvm_cascade.plan(path, target="host").peak_bytes
    made = tvm_cascade.compile(path, target="host", output=tmp_path / "fw", stream_input=True)
    assert made.peak_bytes < min(whole, 144)
    header = (made.folder / "net.h").read_text()
    assert (
        f"x: int8{list(shape)} as [1, 12, 6, 2], 144 bytes, asked for row by row" in header
        and " * 12 bytes, to" in header
    )
    x = np.random.default_rng(1).integers(-128, 128, shape).astype("int8")
    assert tvm_cascade.run(made.folder, check=path, inputs={"x": x}).match


@pytest.mark.parametrize(("more", "said"), [("read", "reads it whole"), ("returned", "whole")])
def test_an_input_that_more_than_the_reshape_needs_stays_whole(tmp_path: Path, more: str, said: str) -> None:
    path, lines = _network(tmp_path / "net.tflite", (1, 144), more), list[str]()
    tvm_cascade.plan(path, target="host", stream_input=True, progress=lines.append)
    assert any("stream_input has no effect on x" in line and said in line for line in lines)


def test_reshapes_into_one_row_and_modules_stay_as_they_are(tmp_path: Path) -> None:
    w = ModelWriter()
    x = w.activation((1, 4, 3, 2), "float32", name="x")
    flat = w.tensor((1, 24), "float32")
    w.operator("RESHAPE", [x, w.constant(np.array([1, 24], "int32"))], [flat], "ReshapeOptions", inner=True)
    w.operator("ABS", [flat], [w.tensor((1, 24), "float32")])
    (tmp_path / "flat.tflite").write_bytes(w.finish())
    mod = load(tmp_path / "flat.tflite")
    assert reshaped_inputs(mod) is mod
    mod = load(_network(tmp_path / "net.tflite", (1, 144)))
    before = mod.clone()
    assert [int(d) for d in reshaped_inputs(mod)["main"].params[0].ty.shape.values] == [1, 12, 6, 2]
    tvm.ir.assert_structural_equal(mod, before)
