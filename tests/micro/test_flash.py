"""Flashing with programs that only write down how they were called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvm_cascade.errors import MissingToolError, ToolError, UsageError
from tvm_cascade.micro.board import load_board
from tvm_cascade.micro.flash import choose_tool, flash_project
from tvm_cascade.micro.network import EmittedNetwork
from tvm_cascade.micro.project import Project, write_project
from tvm_cascade.micro.target import get_target

DISCOVERY = load_board("stm32vldiscovery")


@pytest.fixture
def project(tmp_path: Path, toy: EmittedNetwork, arm_gcc: None) -> Project:
    return write_project(tmp_path / "p", toy, get_target("cortex-m3"), DISCOVERY)


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
        ("pyocd", "pyocd flash --target stm32f100rb {elf}"),
        ("openocd", "openocd -f board/stm32vldiscovery.cfg -c program {{{elf}}} verify reset exit"),
        ("st-flash", "st-flash --reset write {bin} 0x08000000"),
    ],
)
def test_commands(tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch, tool: str, words: str) -> None:
    log = install(tmp_path, monkeypatch, tool)
    result = flash_project(project, DISCOVERY, tool=tool)
    assert result.tool == tool
    assert result.elf.parent.name == "stm32vldiscovery-serial"
    assert log.read_text().strip() == words.format(elf=result.elf, bin=result.elf.with_suffix(".bin"))


def test_binary_starts_with_the_vector_table(tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "st-flash")
    result = flash_project(project, DISCOVERY, image="application", tool="st-flash")
    data = result.elf.with_suffix(".bin").read_bytes()
    assert int.from_bytes(data[:4], "little") == DISCOVERY.ram.end


def test_first_installed_tool_that_knows_the_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingToolError, match="pyocd or openocd or st-flash is not installed: pip install pyocd"):
        choose_tool(DISCOVERY)
    install(tmp_path, monkeypatch, "st-flash")
    assert choose_tool(DISCOVERY) == "st-flash"
    install(tmp_path, monkeypatch, "openocd")
    assert choose_tool(DISCOVERY) == "openocd"
    with pytest.raises(MissingToolError, match="pyocd is not installed"):
        choose_tool(DISCOVERY, "pyocd")


def test_boards_and_tools_that_do_not_go_together() -> None:
    with pytest.raises(UsageError, match="mps2-an385 has no flash_tool"):
        choose_tool(load_board("mps2-an385"))
    with pytest.raises(UsageError, match="cannot be flashed with st-flash; its board file knows pyocd, openocd"):
        choose_tool(load_board("microbit"), "st-flash")


def test_failure_is_passed_on(tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "pyocd", status=1)
    with pytest.raises(ToolError, match="pyocd failed: no probe found; is stm32vldiscovery plugged in"):
        flash_project(project, DISCOVERY)
    with pytest.raises(UsageError, match="unknown image 'emulator'"):
        flash_project(project, DISCOVERY, image="emulator")
