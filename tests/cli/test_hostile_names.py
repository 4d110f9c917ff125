"""What a model calls its tensors, and what its file is called, never acts: not in C, C++, HTML, SVG, a shell or a terminal."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from xml.dom import minidom

import pytest
from click.testing import CliRunner

from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host")

NAMES = (
    "*/ #error \n int y;", "</script><img src=x onerror=1>", "../../x", "$(touch pwned)", "a\x1b[31mred", "??/\n", "\\",
    "int", "nullptr", "input1", "output0", "hook", "x", "x", "x_context", "é\u202e€", "L" * 500, "", "$\\bad{", "%s%n",
    "@name@", "'\";`touch pwned`", "@NAME@\r", "errno", "arena",
)  # fmt: skip
STRICT = ("-Wall", "-Wextra", "-Wshadow", "-pedantic", "-Werror", "-fsyntax-only", "-Iboards/mps2-an386")


def _call(*args: str | Path, status: int = 0) -> str:
    done = CliRunner().invoke(main, [str(a) for a in args])
    said = done.stdout + done.stderr
    assert done.exit_code == status, said
    assert all(c.isprintable() or c == "\n" for c in said)
    return done.stdout


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found[tag] += 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    writer = ModelWriter()
    for k, name in enumerate(NAMES):
        x = writer.activation((1, 4, 4, 2), "int8", 0.1, 3, name=name)
        out = writer.tensor((1, 4, 4, 2), "int8", 1 / 256, -128, name=f"{name}{k}" if k % 2 else f"y{k}")
        writer.operator("LOGISTIC", [x], [out])
    path = tmp_path_factory.mktemp("hostile") / "-evil $(touch pwned) \x1b[31m'\";.tflite"
    path.write_bytes(writer.finish())
    return path


def test_reports(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    json.loads(_call("plan", "--json", "--report", tmp_path / "r", "--", model.name))
    page = (tmp_path / "r" / "report.html").read_text()
    found = _Tags(page).found
    assert {"img", "int"}.isdisjoint(found) and found["script"] == 1  # the page's own
    assert found["svg"] == 4 and found["title"] == 1 + page.count("</title></path>")
    assert all(c.isprintable() or c == "\n" for c in page + (tmp_path / "r" / "plan.txt").read_text())
    for name in ("arena", "frontier", "regions"):
        minidom.parse(str(tmp_path / "r" / f"{name}.svg"))
    assert sorted(p.name for p in model.parent.iterdir()) == [model.name]


def test_projects(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulator: None) -> None:
    monkeypatch.chdir(tmp_path)
    out = "-o u't, é $(touch pwned) ;"
    _call("compile", "--target", "cortex-m4", "--emit", "c", "--hook", "--stream-input", "-o", out, "--", model)
    names = [p.name for p in Path(out).iterdir() if p.suffix in (".c", ".h")]
    assert "evil_touch_pwned_31m.c" in names
    cpp = next(filter(shutil.which, ("g++", "clang++")), None)
    if cpp is None or shutil.which("gcc") is None:
        pytest.skip("gcc, or g++ and clang++, is not installed")
    for compiler, suffix, standard in (("gcc", ".c", "c99"), (cpp, ".h", "c++20")):
        files = [n for n in names if n.startswith("evil") and n.endswith(suffix)]
        language = ("-x", "c++") if suffix == ".h" else ("-Wconversion",)
        subprocess.run((compiler, *language, f"-std={standard}", *STRICT, *files), cwd=out, check=True)
    header = (Path(out) / "evil_touch_pwned_31m.h").read_text()
    assert "#error \n" not in header and "LLLL..." in header
    for kind in ("zephyr", "arduino"):
        _call("export", "--as", kind, "-o", kind, "--", out)
    # two inputs are called x: only one of them can be fed by name
    assert json.loads(_call("run", "--json", "--", out))["equals_host"]
    assert "-board" not in _call("run", "--board", "netduinoplus2", "--json", "--", out)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([out, "zephyr", "arduino"])
    found = [p for p in tmp_path.rglob("*") if "pwned" in p.name and "evil" not in p.name]
    assert found == [Path(tmp_path, out)]
