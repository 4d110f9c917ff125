"""Images that start on boards whose boot ROM wants more than vectors: boot words, flash at two addresses, .uf2 files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tvm_cascade.boards.board import load_board
from tvm_cascade.boards.machines import core_of
from tvm_cascade.emit.elf import read_sections
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.toolchain import build_image
from tvm_cascade.emit.write_image import BuildOptions, write_image
from tvm_cascade.errors import ToolError, UsageError
from tvm_cascade.runs import flash, uf2
from tvm_cascade.runs.flash import choose_tool, flash_image
from tvm_cascade.runs.uf2 import write_uf2


def crc_of_boot_rom(data: bytes) -> int:
    """CRC-32 as the boot ROM of the RP2040 computes it: the most significant bit first, nothing inverted at the end."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc >> 31 else 0)) & 0xFFFFFFFF
    return crc


def test_the_second_stage_of_the_pico_has_the_sum_that_its_boot_rom_checks() -> None:
    boot = load_board("pico").boot
    assert boot is not None and boot.origin == 0x10000000 and len(boot.words) == 64
    assert crc_of_boot_rom(struct.pack("<63I", *boot.words[:63])) == boot.words[63]


@pytest.mark.parametrize("name", ["pico", "pico2"])
def test_uf2_has_every_byte_that_is_loaded(name: str, tmp_path: Path, toy: EmittedNetwork, arm_gcc: None) -> None:
    board = load_board(name)
    image = write_image(tmp_path / "p", (toy,), BuildOptions(core_of(board), board))
    elf = build_image(image, board, "serial").elf
    data = write_uf2(board, elf).read_bytes()
    memory: dict[int, int] = {}
    for number, at in enumerate(range(0, len(data), 512)):
        head = struct.unpack_from("<8I", data, at)
        assert head[:3] == (0x0A324655, 0x9E5D5157, 0x2000)
        assert head[4:7] == (256, number, len(data) // 512)
        assert board.flash_tool is not None and head[7] == board.flash_tool.uf2
        assert struct.unpack_from("<I", data, at + 508) == (0x0AB16F30,)
        memory |= {head[3] + k: data[at + 32 + k] for k in range(256)}
    assert board.boot is not None
    stored = bytes(memory[board.boot.origin + k] for k in range(4 * len(board.boot.words)))
    assert struct.unpack(f"<{len(board.boot.words)}I", stored) == board.boot.words
    vectors = (board.vectors or board.flash).origin
    assert int.from_bytes(bytes(memory[vectors + k] for k in range(4)), "little") == board.ram.end


def test_constants_of_the_esp32c3_are_read_where_its_data_bus_has_flash(
    tmp_path: Path, toy: EmittedNetwork, emulator: None
) -> None:
    board = load_board("esp32-c3-devkitm-1")
    image = write_image(tmp_path / "p", (toy,), BuildOptions(core_of(board), board))
    sections = {s.name: s for s in read_sections(build_image(image, board, "serial").elf)}
    code, constants = sections[".text"], sections[".rodata"]
    assert sections[".boot"].address == 0x42000000 and sections[".vectors"].address == 0x42000008
    assert constants.address - 0x3C000000 == code.address + code.bytes - 0x42000000


def test_a_drive_of_a_boot_rom_is_written_to(
    tmp_path: Path, toy: EmittedNetwork, arm_gcc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = load_board("pico")
    image = write_image(tmp_path / "p", (toy,), BuildOptions(core_of(board), board))
    monkeypatch.setattr(uf2, "_PLACES", (f"{tmp_path}/media/*",))
    with pytest.raises(ToolError, match=r"toy.uf2 is written, but no drive .* hold BOOTSEL"):
        flash_image(image, board, tool="uf2")
    drive = tmp_path / "media" / "RPI-RP2"
    drive.mkdir(parents=True)
    (drive / "INFO_UF2.TXT").write_text("UF2 Bootloader\n")
    assert choose_tool(board) == "uf2"
    done = flash_image(image, board)
    assert (drive / "toy.uf2").read_bytes() == done.elf.read_bytes() and done.tool == "uf2"
    assert flash.boot_drives() == [drive]


def own(folder: Path, **keys: object) -> Path:
    (folder / "own.json").write_text(json.dumps({"name": "own", "microcontroller": "stm32f446re", **keys}))
    return folder / "own.json"


def test_a_board_takes_what_it_leaves_out_from_its_microcontroller(tmp_path: Path) -> None:
    chip, board = load_board("stm32f446re"), load_board(own(tmp_path, clock=16000000))
    assert (board.flash, board.ram, board.memories, board.clock) == (chip.flash, chip.ram, chip.memories, 16000000)
    assert board.name == "own" and not board.aliases and board.sources == chip.sources
    (tmp_path / "copy.json").write_text(board.source)  # what compiled folders keep names no other file
    assert load_board(tmp_path / "copy.json") == board


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"microcontroller": "stm32"}, "microcontroller must be one of .*stm32f446re"),
        ({"microcontroller": "pico"}, "microcontroller must be a file that names no other"),
        ({"uart": {"kind": "stm32", "address": 0, "setup": [[1, 2, 3, 4]]}}, "uart.setup must be a list of pairs"),
        ({"memory": {"boot": {"origin": 0, "words": []}}}, "memory.boot.words must be a list of 32-bit words"),
        ({"memory": {"boot": {"origin": "0x08000000", "words": [1]}}}, "memory.boot .* overlap"),
    ],
)
def test_wrong_board_files_are_refused(keys: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        load_board(own(tmp_path, **keys))


def test_setups_wait_for_registers(tmp_path: Path) -> None:
    from tvm_cascade.emit.board_files import board_header

    text = board_header(load_board("pico"))
    assert "while ((*(volatile uint32_t *)0x40024004u & 0x80000000u) != 0x80000000u) {" in text
