"""Projects without a cross compiler: written, their memory estimated; refused where a cap or a board is to be checked."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

import pytest

import tvm_cascade
from tvm_cascade.errors import InfeasibleError, MissingToolError, UsageError

SHAPES = files("tvm_cascade.testing") / "data" / "shapes.tflite"


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)


@pytest.mark.usefixtures("_no_compiler")
@pytest.mark.parametrize("target, emit", [("cortex-m4", "c"), ("cortex-m4", "obj"), ("riscv32", "c")])
def test_a_core_gets_its_project(target: str, emit: str, tmp_path: Path) -> None:
    made = tvm_cascade.compile(str(SHAPES), target=target, emit=emit, output=tmp_path / "p", cache=False)
    told = made.to_dict()
    assert (told["elf"], told["ram_bytes"], told["flash_bytes"]) == (None, None, None) and told["board"] != "host"
    assert {"shapes.h", "main.c", "CMakeLists.txt", "README.md", "startup.c"} <= set(told["files"])
    text = made.to_text()
    assert text.startswith("fits ") and "\nnot linked      " in text and "is not installed: apt-get install" in text


@pytest.mark.usefixtures("_no_compiler")
@pytest.mark.parametrize("options", [{"target": "stm32f446re"}, {"target": "cortex-m4", "ram": "64KiB"}])
def test_what_cannot_be_checked_is_refused_unless_it_is_asked_for(options: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match=r"not installed: .*; or --no-link writes the project"):
        tvm_cascade.compile(str(SHAPES), output=tmp_path / "p", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "p").exists()
    made = tvm_cascade.compile(str(SHAPES), output=tmp_path / "p", link=False, **options)  # type: ignore[arg-type]
    assert made.elf is None and made.fits is True and "not linked      as asked by --no-link" in made.to_text()


def test_an_arena_that_exceeds_the_board_is_refused_without_linking(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError, match="or a board with more RAM may help"):
        tvm_cascade.compile(
            str(SHAPES), target="cortex-m3", board="stm32vldiscovery", layerwise=True, link=False, output=tmp_path / "p"
        )


def test_a_run_without_a_compiler_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tvm_cascade.compile(str(SHAPES), target="cortex-m4", output=tmp_path / "p", link=False, cache=False)
    which, lines = shutil.which, list[str]()
    monkeypatch.setattr(shutil, "which", lambda name: "qemu" if name.startswith("qemu") else None)
    with pytest.raises(MissingToolError, match="arm-none-eabi-gcc is not installed"):
        tvm_cascade.run(tmp_path / "p", progress=lines.append)
    assert lines == []
    monkeypatch.setattr(shutil, "which", which)


def test_a_run_on_a_port_that_is_not_there_is_refused_before_any_work(tmp_path: Path) -> None:
    pytest.importorskip("serial")
    tvm_cascade.compile(str(SHAPES), target="pico", output=tmp_path / "p", link=False, cache=False)
    lines: list[str] = []
    with pytest.raises(UsageError, match="/dev/ttyNone: no such device; serial ports here"):
        tvm_cascade.run(tmp_path / "p", port="/dev/ttyNone", progress=lines.append)
    assert lines == []
