"""A run takes the image that is there only while it is one of the folder's files and board as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import tvm_cascade
from tvm_cascade.boards.board import load_board
from tvm_cascade.cores import get_core
from tvm_cascade.emit.board_files import find_board
from tvm_cascade.emit.bundle import write_bundle
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.toolchain import MemoryOverflowError, build_image
from tvm_cascade.emit.write_image import BuildOptions, write_image
from tvm_cascade.errors import MissingToolError, UsageError
from tvm_cascade.runs import emulator
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host")

NAME = "mps2-an386"
BOARD = load_board(NAME)


def _edit(board_file: Path, **memory: int) -> None:
    text = json.loads(board_file.read_text())
    text["memory"]["ram"] |= memory
    board_file.write_text(json.dumps(text))


def test_what_makes_an_image_stale(tmp_path: Path, toy: EmittedNetwork, arm_gcc: None) -> None:
    project = write_image(tmp_path / "p", (toy,), BuildOptions(get_core("cortex-m4"), BOARD))
    files = {name: project.folder / name for name in ("toy.c", "toy.h", "main.c")}
    place = project.folder / "boards" / NAME
    said: list[str] = []

    def build() -> list[str]:
        said.clear()
        built = build_image(project, find_board(project.folder, NAME), unless_current=said.append)
        assert built.elf.is_file() and (built.ram_bytes, built.arena_bytes) == (80, 80)
        return list(said)

    assert build() == [f"toy: linking for {NAME}"]
    assert build() == []
    again = f"toy: linking for {NAME}: its files or boards/{NAME} changed since it was"
    for edited in (*files.values(), place / "link.ld"):
        edited.write_text(edited.read_text() + "\n")
        assert build() == [again] and build() == []
    _edit(place / "board.json", bytes=8192)
    assert build() == [again] and build() == []
    files["main.c"].write_text(files["main.c"].read_text())  # the same once more
    assert build() == []
    next((project.folder / "build" / NAME).glob("*.made-of")).unlink()  # as after a build that was killed
    assert build() == [f"toy: linking for {NAME}"]


def test_a_bundle_follows_its_board(
    tmp_path: Path, toy: EmittedNetwork, renamed: Callable[..., EmittedNetwork], arm_gcc: None
) -> None:
    target = get_core("cortex-m4")
    projects = [write_image(tmp_path / n.name, (n,), BuildOptions(target, BOARD)) for n in (toy, renamed(toy, "other"))]
    bundle = write_bundle(tmp_path / "b", projects, BOARD)
    said: list[str] = []
    build_image(bundle, find_board(bundle.folder, NAME))
    build_image(bundle, find_board(bundle.folder, NAME), unless_current=said.append)
    assert said == []
    _edit(bundle.folder / "boards" / NAME / "board.json", bytes=8192)
    build_image(bundle, find_board(bundle.folder, NAME), unless_current=said.append)
    assert len(said) == 1 and "changed" in said[0]


def test_run_follows_an_edited_board(tmp_path: Path, emulator_tools: None, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ModelWriter()
    x = writer.activation((1, 4, 6), "int8", 0.1, 3, name="x")
    writer.operator("TANH", [x], [writer.tensor((1, 4, 6), "int8", 1 / 128, 0, name="y")])
    (tmp_path / "m.tflite").write_bytes(writer.finish())
    tvm_cascade.compile(tmp_path / "m.tflite", target="cortex-m4", output=tmp_path / "p")
    (tmp_path / "p").rename(tmp_path / "moved")  # nothing says where it was made
    board = tmp_path / "moved" / "boards" / NAME / "board.json"
    with monkeypatch.context() as bare:
        bare.setenv("PATH", "")  # neither a compiler nor an emulator
        with pytest.raises(MissingToolError, match="qemu-system-arm"):
            tvm_cascade.run(tmp_path / "moved")
        _edit(board, bytes=16384)
        bare.setattr(emulator, "find_qemu", lambda _board: "")
        with pytest.raises(MissingToolError, match="arm-none-eabi-gcc"):
            tvm_cascade.run(tmp_path / "moved")
    said: list[str] = []
    assert tvm_cascade.run(tmp_path / "moved", progress=said.append).ok
    assert any("changed" in line for line in said)
    _edit(board, bytes=2048)  # less than the stack wants
    with pytest.raises((MemoryOverflowError, UsageError)):
        tvm_cascade.run(tmp_path / "moved")
