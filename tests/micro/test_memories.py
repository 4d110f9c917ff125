"""Projects in several memories of a board: their sections, what an emulated run touches of each, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tvm_cascade import api
from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.micro.board import load_board
from tvm_cascade.micro.board_files import linker_script
from tvm_cascade.micro.elf import read_sections
from tvm_cascade.testing.builder import Net

BOARDS = {"mps2-an500": ("cortex-m7", "sram", "psram"), "mps3-an547": ("cortex-m55", "dtcm", "sram")}


def compiled(board: str, folder: Path, *sizes: str, **options: Any) -> api.CompileResult:
    target, *names = BOARDS[board]
    net = Net("int8", seed=5)
    x = net.conv(net.input((1, 16, 16, 3), "x"), 8, 3)
    y = net.depthwise(x, 3, 2)
    mod = net.finish(net.dense(net.global_pool(net.conv(y, 16, 1)), 10))
    memory = [f"{name}={size}" for name, size in zip(names, sizes, strict=True)]
    return api.compile(mod, target=target, board=board, output=folder, memory=memory, **options)


@pytest.mark.parametrize("board", BOARDS)
def test_every_memory_is_a_section_that_a_run_keeps_to(
    board: str, tmp_path: Path, emulator: None, quick_host: None
) -> None:
    made = compiled(board, tmp_path / "p", "600:0.5", "1MiB:4")
    sections = {s.name: s for s in read_sections(made.folder / str(made.elf))}
    ran = api.run(made.folder).to_dict()
    assert ran["equals_host"] and [m["name"] for m in ran.get("memories", [])] == list(BOARDS[board][1:])
    for row, touched in zip(made.to_dict().get("memories", []), ran.get("memories", []), strict=True):
        section, region = sections["." + row["name"]], load_board(board).memories[row["name"]]
        assert section.bytes == row["peak_bytes"] and section.address == row.get("address") == region.origin
        assert 0 < touched["high_water_bytes"] <= row["peak_bytes"] <= row["capacity_bytes"]
    assert sum(s.bytes for n, s in sections.items() if n in (".data", ".bss")) <= 1024
    with pytest.raises(UsageError, match="compile without --memory"):
        api.export(made.folder, kind="zephyr", output=tmp_path / "z")


def test_what_the_board_lacks_is_refused(tmp_path: Path) -> None:
    for wrong, why in (
        ({"memory": "nosuch=1MiB"}, "mps2-an500 has sram, psram"),
        ({"memory": "sram=8MiB"}, "4194304 bytes"),
    ):
        with pytest.raises(UsageError, match=why):
            api.compile("x.tflite", target="cortex-m7", board="mps2-an500",
                        output=tmp_path / "p", **wrong)  # fmt: skip
    with pytest.raises(UsageError, match="RAMs of a board"):
        api.compile("x.tflite", target="host", output=tmp_path / "p", memory="sram=1MiB")
    assert not (tmp_path / "p").exists()


def test_what_cannot_fit_writes_nothing(tmp_path: Path, emulator: None) -> None:
    with pytest.raises(InfeasibleError, match=r"\d+ bytes missing"):
        compiled("mps2-an500", tmp_path / "p", "100", "200")
    assert not (tmp_path / "p").exists()


def test_sections_lie_in_the_ram_or_in_regions_of_their_own() -> None:
    board = load_board("mps2-an500")
    script = linker_script(board, ("sram", "psram"))
    assert ".sram (NOLOAD) : { *(.sram) } > RAM" in script
    assert ".psram (NOLOAD) : { *(.psram) } > MEMORY_PSRAM" in script and "ORIGIN = 0x60000000" in script
    assert "psram" not in linker_script(board)


def test_memories_of_a_board_file(tmp_path: Path) -> None:
    text = load_board("mps2-an500").source
    for change, why in (("0x60000000", "0x203FFFF8"), ("16777216", "0")):
        path = tmp_path / "b.json"
        path.write_text(text.replace(change, why))
        with pytest.raises(UsageError, match=r"memories\.psram"):
            load_board(path)
