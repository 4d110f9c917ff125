"""The oracle of `run --check` on `.tflite` files says which kernels it ran."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade.frontend import io_spec, load
from tvm_cascade.micro.reference import reference_outputs
from tvm_cascade.testing.activation_cases import abs_, elu
from tvm_cascade.testing.operator_cases import Generator
from tvm_cascade.testing.tflite import ModelWriter


@pytest.mark.parametrize("operator, note", [(elu, "ordinary kernels, the reference ones say: .*ELU"), (abs_, "^$")])
def test_other_kernels_than_the_reference_are_named(tmp_path: Path, operator: Generator, note: str) -> None:
    writer = ModelWriter()
    operator(np.random.default_rng(0), "int8", writer)
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    (x,) = io_spec(load(tmp_path / "m.tflite")).inputs
    expected = reference_outputs(tmp_path / "m.tflite", {x.name: np.zeros(x.shape, "int8")})
    assert len(expected.outputs) == 1
    assert re.search(note, expected.note)
