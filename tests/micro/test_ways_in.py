"""From a file of every kind to an emulated board, against the reference of that kind."""

from __future__ import annotations

from pathlib import Path

import pytest

import tvm_cascade
from tvm_cascade.testing.ways_in import WAYS


@pytest.mark.parametrize("way", WAYS)
def test_from_a_file_to_a_board(tmp_path: Path, emulator: None, way: str) -> None:
    name, write = WAYS[way]
    pytest.importorskip("torch" if name.endswith(".pt2") else "onnx")
    write(tmp_path / name, 16, 4)
    made = tvm_cascade.compile(tmp_path / name, target="cortex-m4", output=tmp_path / "fw")
    done = tvm_cascade.run(tmp_path / "fw", check=tmp_path / name)
    assert done.ok and done.match and done.board == "mps2-an386"
    assert done.arena_high_water_bytes == done.arena_bytes == made.plan.peak
    assert (done.output_step is not None) == (name in ("qdq.onnx", "pt2e.pt2"))
