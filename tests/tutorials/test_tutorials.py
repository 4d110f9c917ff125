"""Every tutorial runs from top to bottom, in an empty folder, as a reader would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "tutorials").glob("[0-9]*.py")))
def test_a_tutorial_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tutorials" / name)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
