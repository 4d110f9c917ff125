"""Microcontrollers as targets: core, memories, clock, flash and energy from a file, whose figures all say where they are from."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tvm_cascade import api
from tvm_cascade.boards.board import board_aliases, list_boards, load_board
from tvm_cascade.boards.machines import machine_of, on_board, target_names, with_core
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.cores import CORES, get_core
from tvm_cascade.emit.board_files import linker_script
from tvm_cascade.emit.elf import read_sections
from tvm_cascade.emit.image import read_image
from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.machine import Ram
from tvm_cascade.request import EmitRequest, PlanRequest, Request, TimeRequest
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.time_series import gesture

SHAPES = files("tvm_cascade.testing") / "data" / "shapes.tflite"
MACHINES = [name for name in list_boards() if load_board(name).clock]


def resolved(request: Request) -> Request:
    return on_board(*with_core(request))


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_is_its_core_with_memories_and_clock(name: str) -> None:
    board = load_board(name)
    made = resolved(Request(name.upper()))
    assert made.target in (board.core, "riscv32") and board.core in get_core(made.target).runs_on
    assert made.time.clock == board.clock and made.emit.board == name
    assert [ram.name for ram in made.plan.memory] == (list(board.memories) if len(board.memories) > 1 else [])
    for ram in made.plan.memory:
        own = board.memories[ram.name]
        assert ram.address == own.origin and 0 < (ram.capacity or 0) <= own.bytes
        assert ram.cycles_per_byte == (1.0 if own.wait is None else own.wait / own.line)
    costs = [ram.cycles_per_byte for ram in made.plan.memory]
    assert costs == sorted(costs)
    assert sum(memory.bytes for memory in board.memories.values()) >= board.ram.bytes
    assert {"memory", "memories", "clock"} <= board.sources.keys()


def test_what_is_asked_for_stands_before_the_file() -> None:
    f746 = load_board("stm32f746ng")
    asked = Request("stm32f746ng", plan=PlanRequest(memory="sram", flash_wait=0), time=TimeRequest(clock=10))
    made = resolved(asked)
    (sram,) = made.plan.memory
    assert sram == Ram("sram", f746.memories["sram"].bytes - f746.stack_reserve, 1.0, 0x20010000)
    assert made.time == TimeRequest(clock=10) and made.plan.flash_wait is None
    assert resolved(Request("stm32f746ng")).plan.flash_wait == 7 / 32
    for one_arena in (PlanRequest(sram=9999), PlanRequest(ram=9999)):
        assert not resolved(Request("stm32f746ng", plan=one_arena)).plan.memory
    low, high = (resolved(Request("nrf52840", time=TimeRequest(clock=hz))).time.watts for hz in (64_000_000, 1))
    assert (low, high) == (pytest.approx(0.0099), None)  # what it draws at another clock, nobody says


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Request("stm32f746ng", emit=EmitRequest(board="mps2-an500")), "leave --board out.*--target cortex-m7"),
        (Request("stm32f746ng", plan=PlanRequest(memory="psram")), "stm32f746ng has dtcm, sram"),
        (Request("stm32f746ng", plan=PlanRequest(memory="dtcm=1MiB")), "dtcm has 65536 bytes"),
        (Request("cortex-m7", plan=PlanRequest(memory="dtcm")), "how large is it"),
        (Request("stm32f799zz"), "a microcontroller with a cortex-m7"),
    ],
)
def test_mistakes(request_: Request, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        resolved(request_)


def test_sections_of_one_ram_lie_where_its_memories_begin() -> None:
    script = linker_script(load_board("stm32f746ng"), ("sram", "dtcm"))
    first, second = script.index(".dtcm (NOLOAD)"), script.index(".sram 0x20010000 (NOLOAD)")
    assert script.index(".bss (NOLOAD)") < first < second < script.index(".stack (NOLOAD)")


def test_a_compiled_microcontroller(tmp_path: Path, quick_host: None) -> None:
    """Both RAMs are used where the fast one is too small; time and energy are told by `compile` and by `run`."""
    path = tmp_path / "own.json"
    text = json.loads(load_board("stm32f746ng").source)
    text["memories"]["dtcm"]["bytes"] = 1024 + 600
    text |= {"name": "own", "current": {"amperes": 0.1, "volts": 2.0}}
    path.write_text(json.dumps(text))
    net = Net("int8", seed=5)
    x = net.conv(net.input((1, 16, 16, 3), "x"), 8, 3)
    mod = net.finish(net.dense(net.global_pool(net.conv(x, 16, 1)), 10))
    made = api.compile(mod, target=str(path), output=tmp_path / "p")
    told, sections = made.to_dict(), {s.name: s for s in read_sections(made.folder / str(made.elf))}
    assert (told["target"], told["board"]) == ("cortex-m7", "own") and made.cycles == sum(l.cycles for l in made.layers)
    for row, begin in zip(told.get("memories", []), (0x20000000, 0x20010000), strict=True):
        section = sections["." + row["name"]]
        assert (section.bytes, section.address) == (row["peak_bytes"], begin) and row.get("address") == begin
    assert sections[".stack"].address > sections[".sram"].address
    ran = api.run(made.folder, board="host").to_dict()
    assert ran["cycles"] == made.cycles and ran["milliseconds"] == told["milliseconds"] == pytest.approx(
        made.cycles / 216e3, abs=1e-3
    )
    assert ran["millijoules"] == told["millijoules"] == pytest.approx(0.2 * made.cycles / 216e3, abs=1e-6)
    free = api.plan(mod, target=str(path), flash_wait=0)
    waits = [a.cycles - b.cycles for a, b in zip(made.operators, free.operators, strict=True)]
    weights = [op.weight_bytes for op in made.plan.graph.ops]
    summed = {
        o for segment in made.plan.segments for o in segment.accumulating
    }  # the mean: its few bytes are not counted
    assert all((w > 0) == (n > 0) for o, (w, n) in enumerate(zip(weights, waits, strict=True)) if o not in summed)
    assert sum(waits) > sum(weights) * 7 / 32


def test_every_target_is_listed_completed_and_in_the_help() -> None:
    said = CliRunner().invoke(main, ["targets"]).output
    told = json.loads(CliRunner().invoke(main, ["targets", "--json"]).stdout)["targets"]
    assert tuple(one["name"] for one in told) == target_names() == (*CORES, *list_boards())
    assert (
        all(one["name"] in said for one in told)
        and "stm32f746ng" in CliRunner().invoke(main, ["plan", "--help-all"]).output
    )
    completed = CliRunner().invoke(main, [], prog_name="tvm-cascade", env={
        "_TVM_CASCADE_COMPLETE": "bash_complete", "COMP_WORDS": "tvm-cascade compile --target stm32f7", "COMP_CWORD": "3",
    }).output  # fmt: skip
    assert completed.split() == ["plain,stm32f746ng", "plain,stm32f767zi"]


def test_an_unknown_target_names_machines_that_may_be_meant() -> None:
    said = {
        "stm32f407": "did you mean stm32f407vg or ",
        "stm32f446zz": "did you mean stm32f446re?",
        "nucleo-f103rb": "did you mean nucleo-f",
        "z80": "`tvm-cascade targets` lists",
    }
    for target, words in said.items():
        with pytest.raises(UsageError, match=f"unknown target '{target}'; .*{re.escape(words)}"):
            machine_of(target)


def test_boards_that_people_buy_have_their_names() -> None:
    for alias, name in board_aliases().items():
        assert machine_of(alias) == machine_of(alias.upper()) == load_board(alias) == load_board(name)
        assert alias in load_board(name).aliases and alias not in list_boards()
    assert {"arduino-nano-33-ble", "xiao-nrf52840", "teensy41", "pico-w"} <= set(board_aliases())
    assert {"nucleo-f446re", "nrf52840-dk", "pico", "pico2", "esp32-c3-devkitm-1"} <= set(list_boards())
    pico, pico2 = load_board("pico"), load_board("pico2")
    assert (pico.flash.bytes + 256, pico.ram) == (2 << 20, load_board("rp2040").ram)
    assert (pico2.flash.end, pico2.ram) == (load_board("rp2350").flash.origin + (4 << 20), load_board("rp2350").ram)


def test_a_riscv_microcontroller_without_atomics_gets_none(tmp_path: Path, emulator: None) -> None:
    """rv32imac is what the compiler is told; the ESP32-C3 executes rv32imc."""
    made = api.compile(str(SHAPES), target="esp32c3", output=tmp_path / "p")
    listed = subprocess.run(
        ["riscv64-unknown-elf-objdump", "-d", str(tmp_path / "p" / str(made.elf))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "mul" in listed and not re.search(r"\t(amo\w+|lr|sc)\.w", listed)
    assert made.clock == 160_000_000 and made.milliseconds
    api.export(tmp_path / "p", kind="esp-idf", output=tmp_path / "component")


_CALL = """
#include "shapes.h"
#include <stdio.h>

int main(void)
{
    struct shapes_inputs inputs;
    struct shapes_outputs outputs;
    shapes_map_inputs(&inputs);
    shapes_map_outputs(&outputs);
    fread((void *)inputs.image, 1, SHAPES_IMAGE_SIZE, stdin);
    int32_t status = shapes_run(&inputs, &outputs);
    fwrite(outputs.scores, 1, SHAPES_SCORES_SIZE, stdout);
    return (int)status;
}
"""


def test_a_core_without_a_compiler_here_gets_c(tmp_path: Path) -> None:
    """ESP32-S3: memories, clock and cycles of its file, no image; its C computes on this machine what the plan does."""
    memory = {"memory": ("sram=2KiB:1", "psram=64KiB:6")}
    made = api.compile(str(SHAPES), target="esp32s3", output=tmp_path / "p", name="shapes", **memory)
    assert (made.elf, made.ram_bytes, made.board) == (None, None, "esp32s3") and made.milliseconds
    assert [use.ram.name for use in made.plan.placed] == ["sram", "psram"] and made.plan.placed[0].bytes
    image = read_image(tmp_path / "p")
    x = np.random.default_rng(3).integers(-128, 128, image.networks[0].inputs[0].shape, np.int8)
    ran = api.run(tmp_path / "p", inputs={image.networks[0].inputs[0].name: x})
    assert ran.board == "host" and ran.memories[0][1] == made.plan.placed[0].bytes
    (tmp_path / "call.c").write_text(_CALL.replace("image", image.networks[0].inputs[0].c_name), encoding="utf-8")
    sources = [str(tmp_path / "p" / name) for name in image.networks[0].sources]
    flags = ["-std=c99", "-Wall", "-Werror", "-Wno-unused-result", f"-I{tmp_path / 'p'}", "-o", str(tmp_path / "call")]
    subprocess.run(["gcc", *flags, str(tmp_path / "call.c"), *sources, "-lm"], check=True)
    done = subprocess.run([str(tmp_path / "call")], input=x.tobytes(), capture_output=True, check=True)
    assert done.stdout == next(iter(ran.outputs.values())).tobytes()


def test_what_needs_an_image_is_refused_without_a_compiler(tmp_path: Path) -> None:
    for options, words in (({"emit": "obj"}, "--emit c"), ({"ram": 9999}, "none is linked for xtensa-lx7")):
        with pytest.raises(UsageError, match=words):
            api.compile(str(SHAPES), target="esp32s3", output=tmp_path / "p", **options)
    folder = tmp_path / "p"
    api.compile(str(SHAPES), target="esp32s3", output=folder, sram=9000)
    for board, port, words in (("esp32s3", None, "has no emulator"), (None, "/dev/none", "linked for")):
        with pytest.raises(UsageError, match=words):
            api.run(folder, board=board, port=port)
    assert "src/shapes.c" in api.export(folder, kind="esp-idf", output=tmp_path / "component")


def test_the_ram_of_a_board_is_a_cap(tmp_path: Path) -> None:
    board, core = load_board("stm32f446re"), "cortex-m4"
    assert board.arena_room == 128 * 1024 - 1024 - board.stack_reserve
    own = api.plan(gesture(), target=board.name)
    assert own.peak_bytes == api.plan(gesture(), target=core, sram=board.arena_room).peak_bytes
    smallest, fastest = (
        api.plan(gesture(), target=board.name, max_time=1.2),
        api.plan(gesture(), target=core, max_time=1.0),
    )
    assert smallest.peak_bytes == api.plan(gesture(), target=core).peak_bytes < own.peak_bytes
    assert own.estimated_instructions <= 1.03 * fastest.estimated_instructions < smallest.estimated_instructions
    (line,) = [line for line in own.to_text().splitlines() if line.startswith("trade ")]
    less = max(peak for peak, _ in own.frontier if peak < own.peak_bytes)
    assert line.startswith(f"trade     {own.peak_bytes - less} bytes fewer cost ")
    made = api.compile(gesture(), target=board.name, output=tmp_path / "project", link=False)
    assert made.peak_bytes == own.peak_bytes


def test_a_network_that_no_board_holds_is_planned_without_a_cap(tmp_path: Path) -> None:
    board = json.loads(load_board("stm32f446re").source)
    memory = {"flash": {"origin": 0, "bytes": 524288}, "ram": {"origin": "0x20000000", "bytes": 8192}}
    (tmp_path / "small.json").write_text(json.dumps({**board, "name": "small", "memory": memory, "memories": {}}))
    own = api.plan(SHAPES, target=str(tmp_path / "small.json"))
    assert own.peak_bytes == api.plan(SHAPES, target="cortex-m4").peak_bytes and own.fits is False
    with pytest.raises(InfeasibleError, match=f"needs {own.peak_bytes} bytes, 4096 available"):
        api.compile(SHAPES, target=str(tmp_path / "small.json"), output=tmp_path / "project", link=False)
