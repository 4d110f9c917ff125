"""The README's Python runs as it stands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import tvm_cascade

ROOT = Path(__file__).parents[2]


def test_the_python_of_the_readme(tmp_path: Path) -> None:
    (block,) = re.findall(r"((?:^    .*\n)*^    import tvm.*\n(?:^    .*\n)*)", (ROOT / "README.md").read_text(), re.M)
    shutil.copy(ROOT / "tvm_cascade/testing/data/shapes.tflite", tmp_path / "model.tflite")
    code = textwrap.dedent(block)
    assert code.count("tvm_cascade.") >= 3
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "fw" / "model.h").is_file() and "layer by layer" in done.stdout


def test_the_first_line_of_the_readme_is_what_plan_prints() -> None:
    found = re.search(r"`(tvm_cascade/\S+)` it is `(fits (\S+): .*?)`", (ROOT / "README.md").read_text())
    assert found is not None
    sample, line, board = found.groups()
    assert tvm_cascade.plan(ROOT / sample, target=board).to_text().splitlines()[0] == line


def test_the_attribute_of_the_readme_says_what_was_taken() -> None:
    from tvm import relax

    mod = tvm_cascade.load(ROOT / "tvm_cascade/testing/data/shapes.tflite")
    expression = 'relax.get_pipeline("cascade")(mod).attrs["cascade.objective"]'
    assert f"`{expression}`" in (ROOT / "README.md").read_text()
    assert str(eval(expression, {"relax": relax, "mod": mod})) == "bytes"
