"""The check of a sequence of calls of a `.tflite` file whose inputs and outputs are paired as states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

import tvm_cascade
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.testing.tflite import ModelWriter


@pytest.mark.usefixtures("quick_host")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_reference_gets_back_what_it_returned(tmp_path: Path, dtype: str) -> None:
    w, scale = ModelWriter(), () if dtype == "float32" else (0.05, 0)
    x, kept = w.activation((1, 8), dtype, *scale), w.activation((1, 8), dtype, *scale)
    following, y = w.tensor((1, 8), dtype, *scale), w.tensor((1, 8), dtype, *scale)
    w.operator("ADD", [x, kept], [following], "AddOptions")
    w.operator("MUL", [following, x], [y], "MulOptions")
    model = tmp_path / "m.tflite"
    model.write_bytes(w.finish())
    spec = io_spec(load(model))
    tvm_cascade.compile(model, target="host", output=tmp_path / "p", state={spec.inputs[1].name: spec.outputs[0].name})
    rows = np.random.default_rng(0).integers(-9, 10, (5, 1, 8)).astype(dtype)
    np.savez(tmp_path / "rows.npz", rows)
    done = tvm_cascade.run(tmp_path / "p", frames=tmp_path / "rows.npz", check=model)
    assert done.ok and done.match and done.frames == 5
    if dtype == "float32":
        np.testing.assert_allclose(next(iter(done.outputs.values())), rows.cumsum(0) * rows)
