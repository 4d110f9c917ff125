"""Every tutorial runs from top to bottom, in an empty folder, as a reader would run it but in this process."""

from __future__ import annotations

import os
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

# what a tutorial trains or quantizes with: `make test-training` has a run of its own for these
NEEDS = {"12": ("torch", "onnxscript"), "13": ("ai_edge_quantizer",), "14": ("tensorflow",)}
ROOT = Path(__file__).parent.parent.parent


def _asked_for(name: str) -> object:
    """Return the name of a tutorial, marked for `make test-torch` if the tutorial needs PyTorch."""
    return pytest.param(name, marks=pytest.mark.torch) if "torch" in NEEDS.get(name[:2], ()) else name


@pytest.mark.parametrize("name", [_asked_for(p.name) for p in sorted((ROOT / "tutorials").glob("[0-9]*.py"))])
def test_a_tutorial_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in NEEDS.get(name[:2], ()):
        if find_spec(package) is None:
            pytest.skip(f"`make test-training` runs it with {package}")
    path = str(ROOT / "tutorials" / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [path])
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:  # where a tool is missing a tutorial ends early, with a sentence
        assert not end.code and not os.environ.get("TVM_CASCADE_STRICT")
    assert capsys.readouterr().out.strip()
