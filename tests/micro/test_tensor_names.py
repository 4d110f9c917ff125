"""Names of tensors, as TensorFlow gives them, in the C of kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

import tvm_cascade
from tvm_cascade.testing.tflite import ModelWriter


def test_c_of_reductions_whose_inputs_have_names_that_are_no_identifiers(tmp_path: Path) -> None:
    """The buffer of their sums is named by the input, as TensorFlow names it."""
    w = ModelWriter()
    for name, op in (("block/mul;block/mul/ReadVariableOp", "SUM"), ("1x", "MEAN"), ("größe y", "REDUCE_PROD")):
        x, y = w.activation((1, 4, 16), "float32"), w.tensor((1, 4, 16), "float32", name=name)
        w.operator("ABS", [x], [y], inner=True)
        axis = w.constant(np.array([2], "int32"))
        w.operator(op, [y, axis], [w.tensor((1, 4), "float32")], "ReducerOptions", keepDims=False)
    (tmp_path / "m.tflite").write_bytes(w.finish())
    tvm_cascade.compile(tmp_path / "m.tflite", target="cortex-m4", output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "m.tflite").match
