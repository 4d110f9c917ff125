"""From a file of every kind to an emulated board, against the reference of that kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.reference import Compiled
from tvm_cascade.testing.ways_in import WAYS

pytestmark = pytest.mark.usefixtures("quick_host")


def _param(way: str) -> object:
    name, _ = WAYS[way]
    return pytest.param(way, marks=[pytest.mark.torch] if name.endswith(".pt2") else [])


@pytest.mark.parametrize("way", map(_param, WAYS))
def test_from_a_file_to_a_board(tmp_path: Path, emulator: None, way: str) -> None:
    name, write = WAYS[way]
    pytest.importorskip("torch" if name.endswith(".pt2") else "onnx")
    if "torchao" in way:
        pytest.importorskip("torchao")
    write(tmp_path / name, 16, 4)
    made = tvm_cascade.compile(tmp_path / name, target="cortex-m4", output=tmp_path / "fw")
    mod = load(tmp_path / name)
    (spec,) = io_spec(mod).inputs
    x = np.random.default_rng(0).uniform(-1, 1, spec.shape).astype("float32")
    done = tvm_cascade.run(tmp_path / "fw", inputs={spec.name: x}, check=tmp_path / name)
    assert done.ok and done.match and done.board == "mps2-an386"
    assert done.arena_high_water_bytes == done.arena_bytes == made.plan.peak
    quantized = not name.startswith("float")
    assert (done.output_step is not None) == quantized
    if quantized:  # the integers themselves are exact: those of the plain network, operator by operator
        assert done.max_abs_diff is not None and done.output_step is not None
        assert done.max_abs_diff <= done.output_step * 1.01  # measured; the tolerance may be wider
        lower: Any = LowerQuantized()  # a class that TVM's decorator makes a pass
        (plain,) = Compiled(lower(mod))(x)
        np.testing.assert_array_equal(next(iter(done.outputs.values())), plain)
