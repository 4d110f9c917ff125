"""Flashing with programs that only write down how they were called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import tvm_cascade
from tvm_cascade.boards.board import FlashTool, load_board
from tvm_cascade.cores import get_core
from tvm_cascade.emit.bundle import write_bundle
from tvm_cascade.emit.elf import memory_use, symbol_address
from tvm_cascade.emit.image import Image
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.write_image import BuildOptions, write_image
from tvm_cascade.errors import MissingToolError, ToolError, UsageError
from tvm_cascade.runs.flash import choose_tool, flash_folder, flash_image
from tvm_cascade.testing import shapes

DISCOVERY = load_board("stm32vldiscovery")


@pytest.fixture
def project(tmp_path: Path, toy: EmittedNetwork, arm_gcc: None) -> Image:
    return write_image(tmp_path / "p", (toy,), BuildOptions(get_core("cortex-m3"), DISCOVERY))


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str, status: int = 0) -> Path:
    """Put programs first on the path that append their arguments to a log."""
    log = folder / "log"
    for name in names:
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\necho "no probe found" >&2\nexit {status}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return log


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("pyocd", "pyocd flash --no-wait --target stm32f100rb {elf}"),
        ("openocd", "openocd -f board/stm32vldiscovery.cfg -c program {{{elf}}} verify reset exit"),
        ("st-flash", "st-flash --reset write {bin} 0x08000000"),
    ],
)
def test_commands(tmp_path: Path, project: Image, monkeypatch: pytest.MonkeyPatch, tool: str, words: str) -> None:
    log = install(tmp_path, monkeypatch, tool)
    result = flash_image(project, DISCOVERY, tool=tool)
    assert result.tool == tool
    assert result.elf.parent.name == "stm32vldiscovery-serial"
    assert log.read_text().strip() == words.format(elf=result.elf, bin=result.elf.with_suffix(".bin"))


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("pyocd", "pyocd flash --no-wait --probe 066BFF30:a --target stm32f100rb "),
        ("openocd", "openocd -f board/stm32vldiscovery.cfg -c adapter serial 066BFF30:a -c program {"),
        ("st-flash", "st-flash --reset --serial 066BFF30:a write "),
    ],
)
def test_one_probe_of_several(
    tmp_path: Path, project: Image, monkeypatch: pytest.MonkeyPatch, tool: str, words: str
) -> None:
    log = install(tmp_path, monkeypatch, tool)
    flash_image(project, DISCOVERY, tool=tool, probe="066BFF30:a")
    assert log.read_text().startswith(words)
    with pytest.raises(UsageError, match="no serial number of a debug probe"):
        flash_image(project, DISCOVERY, tool=tool, probe="x; shutdown")


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("pyocd", "pyocd flash --no-wait --format bin --base-address 0x8000000 --target stm32f100rb {file}"),
        ("openocd", "openocd -f board/stm32vldiscovery.cfg -c program {{{file}}} 0x8000000 verify reset exit"),
        ("st-flash", "st-flash --reset write {file} 0x08000000"),
    ],
)
def test_a_file_of_weights_is_written_behind_the_image(
    tmp_path: Path, arm_gcc: None, monkeypatch: pytest.MonkeyPatch, tool: str, words: str
) -> None:
    model = Path(shapes.__file__).parent / "data" / "shapes.tflite"
    folder = tmp_path / "p"
    tvm_cascade.compile(model, target="cortex-m3", board="stm32vldiscovery", output=folder, weights="file", link=False)
    log = install(tmp_path, monkeypatch, tool)
    result = flash_folder(folder, None, tool=tool)
    file = result.elf.with_suffix(".with-weights.bin")
    assert log.read_text().strip() == words.format(file=file.resolve())
    at = symbol_address(result.elf, "__weights_start") - DISCOVERY.flash.origin
    assert at >= memory_use(result.elf, DISCOVERY)[1]
    assert file.read_bytes()[at:] == (folder / "weights.bin").read_bytes()
    assert int.from_bytes(file.read_bytes()[:4], "little") == DISCOVERY.ram.end


def test_binary_starts_with_the_vector_table(tmp_path: Path, project: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "st-flash")
    result = flash_image(project, DISCOVERY, kind="application", tool="st-flash")
    data = result.elf.with_suffix(".bin").read_bytes()
    assert int.from_bytes(data[:4], "little") == DISCOVERY.ram.end


def test_first_installed_tool_that_knows_the_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingToolError, match="pyocd or openocd or st-flash is not installed: pip install pyocd"):
        choose_tool(DISCOVERY)
    others = replace(DISCOVERY, flash_tool=FlashTool(openocd=("board.cfg",), stflash=True))
    with pytest.raises(MissingToolError, match="openocd or st-flash is not installed: apt-get install openocd"):
        choose_tool(others)
    install(tmp_path, monkeypatch, "st-flash")
    assert choose_tool(DISCOVERY) == "st-flash"
    install(tmp_path, monkeypatch, "openocd")
    assert choose_tool(DISCOVERY) == "openocd"
    with pytest.raises(MissingToolError, match="pyocd is not installed"):
        choose_tool(DISCOVERY, "pyocd")


def test_boards_and_tools_that_do_not_go_together() -> None:
    with pytest.raises(UsageError, match=r"mps2-an385 cannot be flashed.*lm3s6965evb, microbit.*06_add_a_board"):
        choose_tool(load_board("mps2-an385"))
    with pytest.raises(UsageError, match="unknown tool 'jlink'; known: pyocd, openocd, st-flash"):
        choose_tool(DISCOVERY, "jlink")
    with pytest.raises(UsageError, match="cannot be flashed with st-flash; its board file knows pyocd, openocd"):
        choose_tool(load_board("microbit"), "st-flash")


# What the tools print when something is wrong, shortened; the trouble is seldom in the last line.
OPENOCD = """\
Open On-Chip Debugger 0.12.0
Info : clock speed 1000 kHz
Error: open failed
** OpenOCD init failed **
shutdown command invoked"""
ST_FLASH = """\
2023-03-23T16:33:28 INFO common.c: Attempting to write 156016 (0x26170) bytes to stm32 address: 134217728 (0x8000000)
2023-03-23T16:33:28 ERROR common.c: addr too high
2023-03-23T16:33:28 INFO common.c: Go to Thumb mode"""
PYOCD = """\
0000563 I Target type is x [board]
0000564 C Target type stm32f100rb not recognized. Use 'pyocd list --targets' to see them [__main__]
0000565 I done"""


@pytest.mark.parametrize(
    ("tool", "output", "message"),
    [
        ("openocd", OPENOCD, "openocd failed: Error: open failed; is stm32vldiscovery plugged in.*--probe chooses one"),
        ("st-flash", ST_FLASH, r"st-flash failed: ERROR common.c: addr too high; .*`st-info --probe` lists"),
        ("pyocd", PYOCD, r"pyocd failed: Target type stm32f100rb not recognized.*`pyocd pack install stm32f100rb`"),
        ("pyocd", "\x1b[31mNo connected debug probes\x1b[39m", "pyocd failed: No connected debug probes; is"),
        ("openocd", "", "openocd failed: no message"),
    ],
)
def test_failure_is_passed_on(
    tmp_path: Path, project: Image, monkeypatch: pytest.MonkeyPatch, tool: str, output: str, message: str
) -> None:
    install(tmp_path, monkeypatch, tool)
    (tmp_path / "said").write_text(output)
    (tmp_path / tool).write_text(f"#!/bin/sh\ncat {tmp_path / 'said'} >&2\nexit 1\n")
    with pytest.raises(ToolError, match=message):
        flash_image(project, DISCOVERY, tool=tool)


def test_a_tool_that_asks_or_hangs_ends(tmp_path: Path, project: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "pyocd")
    (tmp_path / "pyocd").write_text("#!/bin/sh\necho 'Enter the number of the debug probe'\nread line || exit 1\n")
    with pytest.raises(ToolError, match=r"pyocd failed: Enter the number of the debug probe; .*--probe chooses one"):
        flash_image(project, DISCOVERY)
    (tmp_path / "pyocd").write_text("#!/bin/sh\necho 'Erasing'\nexec sleep 30\n")
    with pytest.raises(ToolError, match=r"pyocd took longer than 0.3 s \(its last words: Erasing\)"):
        flash_image(project, DISCOVERY, timeout_s=0.3)


def test_a_bundle_is_flashed_too(
    tmp_path: Path, project: Image, toy: EmittedNetwork, renamed: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_image(tmp_path / "q", (renamed(toy, "other"),), BuildOptions(project.target, DISCOVERY))
    bundle = write_bundle(tmp_path / "b", [project, other], DISCOVERY)
    log = install(tmp_path, monkeypatch, "pyocd")
    for image in ("serial", "application"):
        done = flash_folder(bundle.folder, None, image)
        assert done.elf == bundle.folder / "build" / f"stm32vldiscovery-{image}" / "networks.elf"
        assert log.read_text().split()[-1] == str(done.elf)


def test_unknown_image(project: Image) -> None:
    with pytest.raises(UsageError, match="unknown image 'emulator'"):
        flash_image(project, DISCOVERY, kind="emulator")
