"""Optional packages: what is missing is said before work begins, with the extra that installs it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from click.testing import CliRunner

from tvm_cascade import extras
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.errors import MissingToolError
from tvm_cascade.request import EmitRequest, OptimizeRequest, StagesRequest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch):
    """Hides a module from those who look for it."""
    find = importlib.util.find_spec

    def hide(module: str) -> None:
        def found(name: str, package: str | None = None) -> ModuleSpec | None:
            return None if name == module else find(name, package)

        monkeypatch.setattr(importlib.util, "find_spec", found)

    return hide


def test_every_extra_that_a_message_names_is_declared() -> None:
    declared = set(re.findall(r'^    "([\w-]+)": \[', (ROOT / "setup.py").read_text(), re.M))
    assert {extra for _, extra in extras._EXTRAS.values()} <= declared


@pytest.mark.parametrize(("repository", "source"), [("octo/own", {"https://github.com/octo/own"}), ("", set())])
def test_addresses_of_the_package_are_those_of_the_repository_that_builds_it(tmp_path, repository, source) -> None:
    given = os.environ | {"GITHUB_REPOSITORY": repository}
    command = [sys.executable, "setup.py", "-q", "egg_info", "-e", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=given, check=True, capture_output=True)
    (told,) = tmp_path.glob("*/PKG-INFO")
    assert set(re.findall(r"^Project-URL: Source, (.*)$", told.read_text(encoding="utf-8"), re.M)) == source


@pytest.mark.parametrize("place", ["x.html", "folder"])
def test_reports_need_no_matplotlib(place: str, without) -> None:
    without("matplotlib")
    EmitRequest(report=place)


@pytest.mark.parametrize("record", [StagesRequest, OptimizeRequest])
def test_pictures_without_matplotlib(record, without) -> None:
    record(picture="x.svg")
    without("matplotlib")
    with pytest.raises(MissingToolError, match=r"^matplotlib is not installed: pip install 'tvm-cascade\[plot\]'$"):
        record(picture="x.svg")


def test_a_picture_is_refused_before_the_model_is_read(without) -> None:
    without("matplotlib")
    done = CliRunner().invoke(main, ["stages", "no_such_model.tflite", "--target", "llvm", "--picture", "x.svg"])
    assert done.exit_code == 2 and "pip install 'tvm-cascade[plot]'" in done.output


def test_an_optional_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras._EXTRAS, "nobodys-package", ("nobodys_package", "nobody"))
    for miss in (extras.need, extras.load):
        with pytest.raises(MissingToolError, match=r"pip install 'tvm-cascade\[nobody\]'"):
            miss("nobodys-package")
