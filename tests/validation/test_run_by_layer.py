"""`run --by-layer`: a kernel that computes something else shows at its first tensor."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.boards.board import Board, load_board
from tvm_cascade.emit.image import Image, read_image
from tvm_cascade.emit.toolchain import build_image
from tvm_cascade.errors import UsageError
from tvm_cascade.request import RunRequest
from tvm_cascade.testing.serial_lines import EmulatedBoard
from tvm_cascade.testing.ways_in import write_onnx_qdq
from tvm_cascade.validation.run_by_layer import check_layers

pytest.importorskip("ai_edge_litert")

SHAPES = Path(str(files("tvm_cascade.testing") / "data" / "shapes.tflite"))


def test_a_sound_program_has_no_difference(tmp_path: Path, emulator: None) -> None:
    tvm_cascade.compile(SHAPES, target="cortex-m4", output=tmp_path / "p")
    report = tvm_cascade.run(tmp_path / "p", check=SHAPES, by_layer=True)
    told = report.to_dict()
    assert report.ok and told.get("first_difference") is None and len(told.get("layers", ())) > 3
    assert all(row.match is True and row.differing == 0 and row.elements > 0 for row in report.layers)
    assert f"by layer        {len(report.layers)} of {len(report.layers)} tensors are equal" in report.to_text()


def test_a_faulty_kernel_shows_at_its_first_tensor(tmp_path: Path, emulator: None) -> None:
    """The second kernel of the program flips a bit of every row's first element."""
    tvm_cascade.compile(SHAPES, target="cortex-m4", output=tmp_path / "p")
    want = [layer.tensor for layer in tvm_cascade.run(tmp_path / "p", check=SHAPES, by_layer=True).layers]

    def spoilt(model: Path, **options: Any) -> None:
        made = tvm_cascade.compile(model, **options)
        source = made.folder / f"{made.name}.c"
        text = source.read_text(encoding="utf-8")
        calls = re.findall(
            r"^\s+(\w+_\d+)\(", text[text.index("_invoke(int8_t* arena, int8_t* flash) {") :], flags=re.M
        )
        name = list(dict.fromkeys(calls))[1]
        body = text.index(f"static int32_t {name}(", text.index(";\n\n"))  # behind the declarations
        end = text.index("  return 0;\n}", body)
        source.write_text(text[:end] + "  out[0] ^= 64;\n" + text[end:], encoding="utf-8")

    found = check_layers(tmp_path / "p", RunRequest(check=SHAPES), None, spoilt, lambda _line: None)
    differing = [layer for layer in found if layer.match is False]
    assert [layer.tensor for layer in found] == want
    assert found[0].match is True and differing[0].tensor == want[1]
    assert 0 < differing[0].differing < differing[0].elements and differing[0].max_abs_diff == 64


def test_a_quantized_onnx_file_in_this_process(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    write_onnx_qdq(tmp_path / "q.onnx", 16, 8)
    tvm_cascade.compile(tmp_path / "q.onnx", target="host", output=tmp_path / "p")
    report = tvm_cascade.run(tmp_path / "p", check=tmp_path / "q.onnx", by_layer=True)
    assert report.ok and len(report.layers) > 3 and all(np.isfinite(x.max_abs_diff or 0.0) for x in report.layers)


def test_a_board_behind_a_port_is_flashed_with_both_programs(
    tmp_path: Path, emulator: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An emulator stands in for the board; flashing starts another, behind the same port."""
    pytest.importorskip("serial")
    running: list[EmulatedBoard] = []
    flashed: list[int] = []
    port = tmp_path / "ttyBOARD"

    def flash(image: Image, board: Board) -> None:
        flashed.append(len(image.networks[0].outputs))
        if running:
            running.pop().stop()
        running.append(EmulatedBoard(board, build_image(image, board, kind="serial").elf))
        port.unlink(missing_ok=True)
        port.symlink_to(running[-1].port)

    monkeypatch.setattr("tvm_cascade.validation.run_by_layer.flash_image", flash)
    monkeypatch.setattr("tvm_cascade.validation.run_by_layer.choose_tool", lambda _board: "pyocd")
    tvm_cascade.compile(SHAPES, target="cortex-m4", board="mps2-an386", output=tmp_path / "p")
    image = read_image(tmp_path / "p")
    flash(image, load_board("mps2-an386"))
    try:
        report = tvm_cascade.run(tmp_path / "p", check=SHAPES, by_layer=True, port=str(port))
    finally:
        running.pop().stop()
    own = len(image.networks[0].outputs)
    assert report.ok and all(layer.match is True for layer in report.layers)
    assert flashed == [own, len(report.layers), own]


def test_a_board_that_cannot_be_flashed_is_refused_before_work(tmp_path: Path) -> None:
    tvm_cascade.compile(SHAPES, target="cortex-m4", board="mps2-an386", output=tmp_path / "p")
    with pytest.raises(UsageError, match="mps2-an386 cannot be flashed"):
        tvm_cascade.run(tmp_path / "p", check=SHAPES, by_layer=True, port="/dev/ttyACM0")


@pytest.mark.parametrize(
    "options, says",
    [
        ({}, "name the model's file by --check"),
        ({"check": "other.tflite"}, r"other.tflite is not the file that .* was compiled from \(shapes.tflite\)"),
    ],
)
def test_what_is_refused(options: dict[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.tflite").write_bytes(SHAPES.read_bytes() + b"\0")
    tvm_cascade.compile(SHAPES, target="host", output="p")
    with pytest.raises(UsageError, match=says):
        tvm_cascade.run("p", by_layer=True, **options)  # type: ignore[arg-type]
