"""A board that no emulator knows, and whose file names no serial port: what its project says works, and nothing else is tried."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

import tvm_cascade
from tvm_cascade.emit.board_files import load_board
from tvm_cascade.emit.image import read_image
from tvm_cascade.emit.toolchain import build_image
from tvm_cascade.errors import UsageError

MODEL = Path(str(files("tvm_cascade.testing") / "data" / "shapes.tflite"))


@pytest.fixture
def folder(tmp_path: Path, emulator: None, quick_host: None) -> Path:
    return tvm_cascade.compile(MODEL, target="cortex-m4", board="stm32f446re", output=tmp_path / "p").folder


def test_its_project_names_commands_that_work(folder: Path) -> None:
    text = " ".join((folder / "README.md").read_text(encoding="utf-8").split())
    assert "No emulator knows stm32f446re. Run and measure it on the emulated mps2-an386: `tvm-cascade run .`." in text
    assert "`tvm-cascade flash . --image application`" in text
    assert "run . --board" not in text and "run . --port" not in text and "serial_main.c" not in text
    assert not {"uart.h", "serial_main.c"} & {p.name for p in folder.iterdir()}


def test_it_runs_on_the_emulated_board_of_its_core_which_is_said(folder: Path) -> None:
    told: list[str] = []
    done = tvm_cascade.run(folder, progress=told.append)
    assert done.ok and done.board == "mps2-an386"
    assert told[0] == "shapes: stm32f446re has no emulator: running on mps2-an386, the emulated board of cortex-m4"


@pytest.mark.parametrize(
    "asked, text",
    [
        ({"board": "stm32f446re"}, "board stm32f446re has no emulator: choose another --board"),
        ({"port": "/dev/null"}, "board stm32f446re names no uart: add one to a copy of its file"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(folder: Path, asked: dict[str, str], text: str) -> None:
    told: list[str] = []
    with pytest.raises(UsageError, match=text):
        tvm_cascade.run(folder, progress=told.append, **asked)  # type: ignore[arg-type]
    assert not told


def test_a_project_without_the_serial_program_says_so(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"has no serial_main.c, as stm32f446re names no uart: compile it for --board"):
        build_image(read_image(folder), load_board("netduinoplus2"), "serial")
