"""`compare` of plans, projects and runs."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tvm_cascade
from tvm_cascade.cli.group import tvm_cascade as main

MODEL = str(files("tvm_cascade.testing") / "data" / "shapes.tflite")


def call(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


def test_plans_projects_and_runs(tmp_path: Path, quick_host: None) -> None:
    a, b, run, folder = (tmp_path / name for name in ("a.json", "b.json", "run.json", "p"))
    a.write_text(call("plan", MODEL, "--target", "host", "--json").stdout)
    b.write_text(call("plan", MODEL, "--target", "host", "--layerwise", "--json").stdout)
    call("compile", MODEL, "--target", "host", "-o", folder)
    run.write_text(call("run", folder, "--json").stdout)
    small, large = (json.loads(path.read_text())["peak_bytes"] for path in (a, b))
    found = json.loads(call("compare", a, b, "--json").stdout)
    assert (found["a"]["peak_bytes"], found["b"]["peak_bytes"]) == (small, large) and small < large
    assert found == tvm_cascade.compare(a, b)
    text = call("compare", a, b).stdout
    assert f"{small} bytes ({small / 1024:.1f} KiB)" in text and f"{large - small:+d} (" in text
    both = tvm_cascade.compare(folder, run)
    assert both["a"]["peak_bytes"] == both["b"]["peak_bytes"] and both["a"]["macs"] == both["b"]["macs"]
    assert both["a"]["options"]["target"] == "host" and both["b"]["kind"] == "run"
    assert both["a"]["bound_bytes"] == found["a"]["bound_bytes"]  # the same network's, of a project and of a plan
    assert "nothing that both say differs" in call("compare", a, a).stdout
    assert "not known" not in call("compare", folder, run).stdout  # a run says less than a project
    assert not any(value.startswith("{") for value in both["a"]["options"].values())
    plans = [json.loads(path.read_text()) for path in (a, b)]
    assert [found[side]["instructions"] for side in "ab"] == [p["estimated"]["estimated_instructions"] for p in plans]


def test_a_cap_that_one_side_lacks_is_none(tmp_path: Path, quick_host: None) -> None:
    for name, more in (("p", ()), ("q", ("--sram", "12KiB"))):
        assert call("compile", MODEL, "--target", "host", *more, "-o", tmp_path / name).exit_code == 0
    text = call("compare", tmp_path / "p", tmp_path / "q").stdout
    (line,) = [line for line in text.splitlines() if line.startswith("sram")]
    assert line.split() == ["sram", "none", "12288"]


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"peak_bytes": 3}', '{"frontier": [], "peak_bytes": "3"}'])
def test_anything_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    for path in (tmp_path / "x.json", tmp_path, tmp_path / "none.json"):
        done = call("compare", path, path)
        assert done.exit_code == 2 and "`plan --json`" in done.stderr and "Traceback" not in done.stderr
