"""Integers that become floats by powers of two on Cortex-M55: LLVM's fixed-point conversions would be wrong for some."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade import api
from tvm_cascade.testing.tflite import ModelWriter


@pytest.mark.emulator
@pytest.mark.usefixtures("quick_host")
def test_every_power_of_two(tmp_path: Path, emulator: None) -> None:
    writer = ModelWriter()
    for bits in (1, 3, 4, 8, 16):
        stored = writer.activation((1, 20), "int8", 2.0**-bits, bits)
        writer.operator("DEQUANTIZE", [stored], [writer.tensor((1, 20), "float32")], "DequantizeOptions")
    path = tmp_path / "m.tflite"
    path.write_bytes(writer.finish())
    api.compile(path, target="cortex-m55", output=tmp_path / "fw")
    report = api.run(tmp_path / "fw", check=path)
    assert report.match and report.max_abs_diff == 0
