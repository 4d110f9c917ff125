"""Projects in several memories of a board: their sections, what an emulated run touches of each, and refusals."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tvm_cascade import api
from tvm_cascade.boards.board import load_board
from tvm_cascade.boards.region import Region
from tvm_cascade.cores import get_core
from tvm_cascade.emit.board_files import linker_script
from tvm_cascade.emit.elf import read_sections
from tvm_cascade.emit.image import read_image
from tvm_cascade.errors import InfeasibleError, UsageError
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
    assert made.ram_bytes == sum(
        s.bytes for n, s in sections.items() if n in (".data", ".bss", *("." + m for m in BOARDS[board][1:]))
    )
    exported(made.folder, tmp_path, load_board(board).memories, target_flags=get_core(BOARDS[board][0]).gcc_flags)


ZEPHYR = """\
#define DT_CHOSEN(node) node
#define DT_REG_ADDR(node) node
#define RAMABLE_REGION RAM
MEMORY {{ FLASH (rx) : ORIGIN = 0x08000000, LENGTH = 4M
          RAM (rwx) : ORIGIN = {ram}, LENGTH = 1M }}
SECTIONS {{
    .text : {{ *(.text*) *(.rodata*) }} > FLASH
    .bss (NOLOAD) : {{ . += 64; *(.bss*) }} > RAM
#include "memories.ld"
}}
"""


def exported(project: Path, place: Path, memories: Mapping[str, Region], target_flags: Sequence[str]) -> None:
    """Packages place every array: Zephyr's linker script by the address, or in its RAM; Arduino's where the core says; others
    in bss, or in the section that a macro names."""
    module, library = place / "z", place / "a"
    api.export(project, kind="zephyr", output=module)
    assert "zephyr_linker_sources(SECTIONS memories.ld)" in (module / "CMakeLists.txt").read_text()
    gcc = ["arm-none-eabi-gcc", *target_flags]
    sources = [str(path) for path in (module / "src").glob("*.c")]
    for own in memories.values():
        (place / "link.S").write_text(ZEPHYR.format(ram=own.origin))
        script = subprocess.run(
            [*gcc, "-E", "-P", "-x", "assembler-with-cpp", f"-Dzephyr_sram={own.origin}", f"-I{module}", str(place / "link.S")],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        (place / "link.ld").write_text(script)
        elf = place / "z.elf"
        flags = [
            "-nostdlib",
            f"-I{module / 'include'}",
            "-Wl,--unresolved-symbols=ignore-all,-e0",
            f"-Wl,-T{place / 'link.ld'}",
        ]
        subprocess.run([*gcc, *flags, *sources, "-o", str(elf)], capture_output=True, check=True)
        for section in (s for s in read_sections(elf) if s.name.removeprefix(".") in memories):
            region = memories[section.name.removeprefix(".")]
            assert section.address == region.origin + (64 if region is own else 0)
    api.export(project, kind="arduino", output=library)
    table = (library / "README.md").read_text()
    name = read_image(project).name
    subprocess.run([*gcc, "-D__IMXRT1062__", "-c", f"{library}/src/{name}.c", "-o", str(place / "a.o")], check=True)
    held = {s.name for s in read_sections(place / "a.o")}
    for memory in memories:
        assert f"| `{name}_ram_{memory}` |" in table and f"`{name}_RAM_{memory}_SECTION`".upper() in table
        assert {"psram": ".externalram"}.get(memory, f".bss.{name}_ram_{memory}") in held
    compiled = bool(read_image(project).networks[0].objects)
    for kind in ("cmsis-pack", "stm32cube", *(() if compiled else ("esp-idf", "platformio", "rust"))):
        package = place / kind
        api.export(project, kind=kind, output=package)
        (source,) = package.rglob(f"{name}.c")
        (header,) = package.rglob(f"{name}.h")
        *others, last = memories
        macro = f"{name}_ram_{last}_section".upper()
        named = f'-D{macro}=".{last}"'
        subprocess.run([*gcc, f"-I{header.parent}", named, "-c", str(source), "-o", str(place / "k.o")], check=True)
        held = {s.name for s in read_sections(place / "k.o")}
        assert f".{last}" in held and all(f".bss.{name}_ram_{memory}" in held for memory in others)
        assert all(f"| `{name}_ram_{memory}` |" in (package / "README.md").read_text() for memory in memories)


def test_a_cap_on_all_ram_counts_every_memory(tmp_path: Path, emulator: None, quick_host: None) -> None:
    loose = compiled("mps2-an500", tmp_path / "p", "600:0.5", "1MiB:4", ram="64KiB")
    assert loose.ram_bytes is not None and loose.stack_bytes is not None
    cap = loose.ram_bytes + loose.stack_bytes + 16
    made = compiled("mps2-an500", tmp_path / "q", "600:0.5", "1MiB:4", ram=cap)
    sections = {s.name: s.bytes for s in read_sections(made.folder / str(made.elf))}
    held = {n: sections.get(n, 0) for n in (".data", ".bss", ".stack", ".sram", ".psram")}
    assert made.ram_bytes == sum(held.values()) - held[".stack"] and made.stack_bytes == held[".stack"] > 128
    assert sum(held.values()) <= cap and 0 < held[".sram"] <= 600
    ran = api.run(made.folder)
    assert ran.to_dict()["equals_host"] and 0 < (ran.stack_bytes or 0) <= made.stack_bytes
    with pytest.raises(InfeasibleError, match=r"\d+ bytes missing"):
        compiled("mps2-an500", tmp_path / "r", "600:0.5", "1MiB:4", ram=1000)
    assert not (tmp_path / "r").exists()


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


def test_rows_at_addresses_of_their_own_run_in_any_memory(tmp_path: Path, emulator: None, quick_host: None) -> None:
    net = Net("int8", seed=3)
    x = net.conv(net.input((1, 16, 6, 4), "x"), 8, 3)
    for _ in range(2):
        x = net.conv(net.depthwise(x, 3), 8, 1)
    mod = net.finish(net.global_pool(x))
    memory = ("sram=64:0.5", f"psram={api.plan(mod, target='cortex-m7').peak_bytes}:4")
    made = api.compile(mod, target="cortex-m7", board="mps2-an500", output=tmp_path / "p", memory=memory)
    assert any(s.row_addresses for s in made.plan.storages) and made.plan.placed[1].bytes == made.peak_bytes
    ran = api.run(made.folder).to_dict()
    touched = {m["name"]: m["high_water_bytes"] for m in ran.get("memories", [])}
    assert ran["equals_host"] and touched["sram"] == 0 < touched["psram"] <= made.peak_bytes
