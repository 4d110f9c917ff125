"""The first screen of a plan: short, narrow, and its first line answers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner

import tvm_cascade
from tvm_cascade.boards.board import load_board
from tvm_cascade.boards.room import room_of, rooms_by_core
from tvm_cascade.cascading import PlanOptions
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.cores import get_core
from tvm_cascade.machine import Room
from tvm_cascade.report.screen import command_lines, labelled, wrap_figures
from tvm_cascade.report.verdict import Need, holding, part_of, time_of, verdict
from tvm_cascade.request import PlanRequest
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.onnx_layers import Layers

SHAPES = "shapes.tflite"
MODELS = ("kws_dscnn_int8", "person_detect", "micro_speech_quantized", "swiftnet_vww_uint8")


def require_screen(text: str) -> None:
    lines = text.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80, text


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands name the model as it was given: here by a short path."""
    shutil.copy(str(files("tvm_cascade.testing") / "data" / SHAPES), tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "options", [{}, {"target": "stm32f446re"}, {"target": "stm32f746ng"}, {"hop": 2}, {"sram": "12KiB"}]
)
def test_a_plan_is_one_screen(options: dict[str, object]) -> None:
    found = tvm_cascade.plan(SHAPES, **options)  # type: ignore[arg-type]
    require_screen(found.to_text())
    assert found.to_text().startswith("fits ") and repr(found) == found.to_text()
    assert found.to_text(details=True).startswith(found.to_text() + "\n\narena ")
    assert "<iframe srcdoc=" in found._repr_html_()


@pytest.mark.parametrize("model", MODELS)
def test_plans_of_models_are_one_screen(model: str, test_data: Path) -> None:
    shutil.copy(test_data / "models" / f"{model}.tflite", ".")
    require_screen(CliRunner().invoke(main, ["plan", f"{model}.tflite"]).stdout)


def test_the_smallest_arena_may_be_asked_for_on_a_board() -> None:
    """`sram="min"` asks for what a target without a board has by default; a board alone makes its RAM the cap."""
    assert PlanRequest(sram="min").max_time == PlanOptions().max_time
    net = Net("int8")
    x = net.input((1, 32, 32, 8))
    for _ in range(4):
        x = net.conv(x, 8)
    mod = net.finish(x)
    least = tvm_cascade.plan(mod, target="cortex-m4").peak_bytes
    assert tvm_cascade.plan(mod, target="stm32f446re", sram="min").peak_bytes == least
    assert tvm_cascade.plan(mod, target="stm32f446re").peak_bytes > least
    options = ["--target", "stm32f446re", "--sram", "min", "--json"]
    assert json.loads(CliRunner().invoke(main, ["plan", str(SHAPES), *options]).stdout)["peak_bytes"] <= least


def test_what_exceeds_ram_or_weights_does_not_fit_and_ends_with_1() -> None:
    board = json.loads(load_board("stm32f446re").source)
    small = Path("small.json")
    own = tvm_cascade.plan(SHAPES, target="stm32f446re")
    assert own.need is not None
    weights, code = own.need.constants, own.need.code
    for ram, flash, status, fits, said in (
        (8192, 524288, 1, False, "does not fit small: RAM "),
        (131072, weights - 8, 1, False, "does not fit small: RAM "),
        (131072, weights + code - 8, 0, None, "fits the RAM of small, "),
        (131072, weights + code, 0, True, "fits small: RAM "),
    ):
        memory = {"flash": {"origin": 0, "bytes": flash}, "ram": {"origin": "0x20000000", "bytes": ram}}
        small.write_text(json.dumps({**board, "name": "small", "memory": memory, "memories": {}}))
        done = CliRunner().invoke(main, ["plan", SHAPES, "--target", str(small)])
        assert (done.exit_code, done.stdout.startswith(said)) == (status, True), done.stdout
        require_screen(done.stdout)
        assert ("flash: probably not, " in done.stdout) == (fits is None)
        assert ("\nfits " in done.stdout) == (fits is False), "the smallest boards that hold the network"
        again = CliRunner().invoke(main, ["plan", SHAPES, "--target", str(small), "--json"])
        assert again.exit_code == status and json.loads(again.stdout)["fits"] is fits


def test_a_board_whose_memories_are_too_small_gets_the_whole_plan() -> None:
    board = json.loads(load_board("stm32f746ng").source)
    small = Path("small.json")
    memory = {"flash": board["memory"]["flash"], "ram": {"origin": "0x20000000", "bytes": 8704}}
    named = {"a": {"origin": "0x20000000", "bytes": 4096}, "b": {"origin": "0x20001000", "bytes": 4608}}
    small.write_text(json.dumps({**board, "name": "small", "memory": memory, "memories": named}))
    done = CliRunner().invoke(main, ["plan", SHAPES, "--target", str(small)])
    assert (
        done.exit_code == 1
        and done.stdout.startswith("does not fit small: RAM ")
        and "plans worth having" in done.stdout
    )


def test_without_a_board_the_smallest_ones_are_named() -> None:
    found = tvm_cascade.plan(SHAPES, target="cortex-m4")
    same, others = rooms_by_core(get_core("cortex-m4"))
    sizes = {room.board: (room.ram, room.flash) for room in same}
    assert found.fits is None and list(found.smallest_boards) == found.to_dict()["smallest_boards"]
    assert [sizes[b] for b in found.smallest_boards] == sorted(sizes[b] for b in found.smallest_boards)
    assert found.to_text().startswith("fits " + ", ".join(found.smallest_boards[:3]))
    assert not {room.board for room in others} & set(sizes) and room_of(load_board("rp2040")) in others
    none = replace(found, rooms=((), others)).to_text()
    assert none.startswith("fits no known board with a cortex-m4; with another core: ")
    assert tvm_cascade.plan(SHAPES, target="stm32f446re").smallest_boards == ()


def test_verdicts_round_up_what_is_needed() -> None:
    assert part_of(131073, 131072) == "128.1 of 128 KiB" and part_of(1, 1 << 20) == "0.1 KiB of 1 MiB"
    assert part_of(3 << 19, 2 << 20) == "1.5 of 2 MiB"
    room, need = Room("b", 1000, 100, 500), Need(900, 300, 200)
    assert need.fits(room) is True and verdict(need, room, "1 ms").startswith("fits b: RAM 1 of 0.9766 KiB")
    assert Need(901, 300, 200).fits(room) is False and Need(900, 300, 201).fits(room) is None
    assert Need(900, 300, 201, linked=True).fits(room) is False
    assert holding(need, [Room("large", 2000, 0, 500), room, Room("small", 900, 100, 500)])[0] is room


def test_long_lines_are_continued() -> None:
    command = f"tvm-cascade compile /{'a' * 60}.tflite --target stm32f446re --sram 12KiB -o firmware"
    lines = command_lines("next", command)
    assert len(lines) == 3 and all(line.endswith(" \\") for line in lines[:-1])
    assert "".join(line.strip().removesuffix("\\") for line in lines).split() == ["next", *command.split()]
    assert labelled("a", "x " * 200)[-1].endswith(" ...") and len(labelled("a", "x " * 200)) == 2


def test_the_page_says_file_board_clock_date_and_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    tvm_cascade.plan(SHAPES, target="stm32f446re", sram="16KiB").write_report(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    for text in ("fits stm32f446re: RAM ", "180 MHz", "1970-01-01", "shapes.tflite --target stm32f446re --sram 16384"):
        assert text in page


def test_a_float_network_that_does_not_fit_is_told_to_be_quantized() -> None:
    pytest.importorskip("onnx")
    net = Layers()
    net.save(Path("large.onnx"), net.node("Conv", "x", net.weight((256, 3, 1, 1))), (1, 3, 64, 64), 4)
    done = CliRunner().invoke(main, ["plan", "large.onnx", "--target", "nucleo-f446re"])
    assert done.exit_code == 1 and "tvm-cascade quantize large.onnx --data SAMPLES.npz" in done.stdout
    require_screen(done.stdout)


def test_figures_keep_their_units_on_a_line() -> None:
    lines = wrap_figures("does not fit nucleo-f446re: RAM 640.5 of 128 KiB, flash 3612.8 of 512 KiB, 8532 ms")
    assert lines[1] == "8532 ms" and max(map(len, lines)) <= 80
    assert (time_of(0, 9999), time_of(0, 12_345)) == ("9999 ms", "12.3 s")


def test_a_board_is_called_as_the_user_calls_it() -> None:
    lines = tvm_cascade.plan(SHAPES, target="Teensy41").to_text().splitlines()
    assert lines[0].startswith("fits teensy41: RAM ")
    made = tvm_cascade.compile(SHAPES, target="teensy41", output="out")
    assert made.to_text().startswith("fits teensy41: RAM ") and made.to_dict()["board"] == "mimxrt1062"


def test_a_float_network_that_fits_nothing_is_told_to_be_quantized() -> None:
    net = Layers()
    net.save(Path("huge.onnx"), net.node("Conv", "x", net.weight((4096, 3, 1, 1))), (1, 3, 96, 96), 4)
    done = CliRunner().invoke(main, ["plan", "huge.onnx"])
    assert done.exit_code == 0 and done.stdout.startswith("fits no known board")
    assert "tvm-cascade quantize huge.onnx" in done.stdout and "tvm-cascade compile" not in done.stdout
