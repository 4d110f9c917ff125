"""Networks of one image share the arrays of the memories that they were placed in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvm_cascade import api
from tvm_cascade.emit.elf import read_sections
from tvm_cascade.errors import UsageError
from tvm_cascade.testing.builder import Net

MEMORY = ("sram=600:0.5", "psram=64KiB:4")


def compiled(folder: Path, channels: int, memory: tuple[str, ...] = MEMORY, **options: str) -> api.CompileResult:
    net = Net("int8", seed=channels)
    x = net.conv(net.input((1, 12, 12, 3), "x"), channels, 3)
    mod = net.finish(net.dense(net.global_pool(net.depthwise(x, 3, 2)), 10))
    target = {"target": "cortex-m7", "board": "mps2-an500"}
    return api.compile(mod, output=folder / f"n{channels}", name=f"n{channels}", memory=memory, **target, **options)


def test_every_memory_is_as_large_as_its_largest_share(tmp_path: Path, emulator: None, quick_host: None) -> None:
    made = [compiled(tmp_path, 8), compiled(tmp_path, 16), compiled(tmp_path, 4, ())]  # the last has an arena in bss
    both = api.bundle([one.folder for one in made], output=tmp_path / "both")
    sections = {s.name: s.bytes for s in read_sections(tmp_path / "both" / both.elf)}
    uses = [{use.ram.name: use.bytes for use in one.plan.memories} for one in made]
    for name in ("sram", "psram"):
        assert sections["." + name] == max(use.get(name, 0) for use in uses) > 0
    assert both.arena_bytes == sections[".sram"] + sections[".psram"] + made[2].peak_bytes < both.separate_bytes
    ran = api.run(tmp_path / "both").to_dict()
    assert ran["equals_host"] and ran["arena_high_water_bytes"] <= both.arena_bytes
    touched = {m["name"]: m["high_water_bytes"] for m in ran.get("memories", [])}
    assert set(touched) == {"sram", "psram"} and all(0 < n <= sections["." + name] for name, n in touched.items())
    packaged(tmp_path)


def packaged(place: Path) -> None:
    """Shared arrays have sections in packages as those of one network have."""
    api.export(place / "both", kind="zephyr", output=place / "z")
    assert ".psram 0x60000000 (NOLOAD)" in (place / "z" / "memories.ld").read_text().replace("1610612736", "0x60000000")
    api.export(place / "both", kind="arduino", output=place / "a")
    arena = (place / "a" / "src" / "arena.c").read_text()
    assert "uint8_t tvm_cascade_ram_psram[" in arena and "TVM_CASCADE_RAM_PSRAM_SECTION" in arena
    table = (place / "a" / "README.md").read_text()
    assert "| `tvm_cascade_ram_psram` |" in table and "n8_ram_psram" not in table


def test_a_board_without_the_memory_is_refused(tmp_path: Path, emulator: None) -> None:
    made = [compiled(tmp_path, 8), compiled(tmp_path, 16)]
    with pytest.raises(UsageError, match="n8 lies in sram: board stm32h743zi has no memory of that name"):
        api.bundle([one.folder for one in made], output=tmp_path / "both", board="stm32h743zi")
    assert not (tmp_path / "both").exists()
