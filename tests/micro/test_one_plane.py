"""Maps `[1, 1, H, W]` whose rows lie along axis 2: of W elements, not the H * W of a row along axis 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade import pipeline
from tvm_cascade.cores import kernel_target
from tvm_cascade.frontend import load
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host")


def _write(path: Path) -> None:
    """The largest channel of every pixel, then element-wise operators on that one plane."""
    w = ModelWriter()
    x = w.activation((1, 4, 12, 8), "int8", 0.05, 3)
    plane = (1, 1, 12, 8)
    top, relu, both, clipped = (
        w.tensor(plane, "int8", s, z) for s, z in ((0.05, 3), (0.04, -128), (0.09, -60), (0.05, 0))
    )
    axes = w.constant(np.array([1], "int32"))
    w.operator("REDUCE_MAX", [x, axes], [top], "ReducerOptions", keepDims=True)
    w.operator("RELU", [top], [relu])
    w.operator("ADD", [top, relu], [both], "AddOptions")
    w.operator("MUL", [both, relu], [clipped], "MulOptions")
    w.outputs = [clipped]
    path.write_bytes(w.finish())


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55", "host"])
def test_equal_to_the_reference(tmp_path: Path, emulator: None, target: str, layerwise: bool) -> None:
    _write(tmp_path / "m.tflite")
    tvm_cascade.compile(tmp_path / "m.tflite", target=target, output=tmp_path / "fw", layerwise=layerwise)
    done = tvm_cascade.run(tmp_path / "fw", check=tmp_path / "m.tflite")
    assert done.ok and done.match


def test_rows_lie_along_axis_two(tmp_path: Path) -> None:
    _write(tmp_path / "m.tflite")
    graph = pipeline.prepare(load(tmp_path / "m.tflite"), kernel_target("cortex-m4")).graph
    assert {graph.tensors[t].row_axis for op in graph.ops for t in op.outputs} == {2}
