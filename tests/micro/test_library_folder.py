"""Folders that nothing is linked in: their README names the commands that work there."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from tvm_cascade import api

SHAPES = str(files("tvm_cascade.testing") / "data" / "shapes.tflite")


def test_a_folder_for_an_esp32_s3_leads_to_esp_idf(tmp_path: Path) -> None:
    api.compile(SHAPES, target="esp32s3", output=tmp_path / "p")
    api.export(tmp_path / "p", kind="esp-idf", output=tmp_path / "component")
    for readme in (tmp_path / "p" / "README.md", tmp_path / "component" / "README.md"):
        assert "idf.py set-target esp32s3" in readme.read_text()


@pytest.mark.parametrize("board", ["host", "esp32s3"])
def test_a_readme_describes_the_network(board: str, tmp_path: Path) -> None:
    made = api.compile(SHAPES, target=board, output=tmp_path / "p")
    text = (tmp_path / "p" / "README.md").read_text()
    assert f"one static arena of {made.peak_bytes} bytes" in text and "- inputs.image: int8[1, 64, 64, 1]" in text
    assert "tvm-cascade run . --check MODEL" in text and "@" not in text
