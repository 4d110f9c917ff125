"""How often every block of an emulated image's code ran, by the plugin of QEMU that lies beside this file."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tvm_cascade.boards.board import Board
from tvm_cascade.runs.emulator import emulator_command

DISASSEMBLER = "llvm-objdump-19"  # `apt-get install llvm-19`; its text is what llvm-mca reads


@dataclass(frozen=True, slots=True)
class Block:
    """Code from one address to another, which runs from its first instruction to its last."""

    start: int
    end: int


@dataclass
class Profile:
    """What ran between two marks."""

    ran: Counter[Block]
    taken: Counter[Block]  # of these, how often a branch was taken at the end


@cache
def plugin() -> tuple[TemporaryDirectory[str], Path]:
    """The compiled plugin, and the folder that keeps it."""
    folder = TemporaryDirectory(prefix="tvm-cascade-profile-")
    made = Path(folder.name) / "profile.so"
    source = Path(__file__).with_name("profile_plugin.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return folder, made


def profiled(elf: Path, board: Board, marks: list[int], folder: Path) -> dict[int, Profile]:
    """Run `elf` in a folder with its inputs; what ran from each mark (an address) to the next one, summed over passes."""
    (folder / "marks.txt").write_text("".join(f"{mark:x}\n" for mark in marks), encoding="utf-8")
    out = folder / "profile.txt"
    extra = ["-plugin", f"{plugin()[1]},out={out},marks={folder / 'marks.txt'}"]
    command = [*emulator_command(board, elf), *extra]
    subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, check=True, capture_output=True, timeout=900)
    found: dict[int, Profile] = {mark: Profile(Counter(), Counter()) for mark in (0, *marks)}
    current = found[0]
    for line in out.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words[0] == "mark":
            current = found[int(words[1], 16)]
            continue
        block = Block(int(words[0], 16), int(words[1], 16))
        current.ran[block] += int(words[2])
        current.taken[block] += int(words[3])
    return found


def disassembled(elf: Path, mcpu: str) -> dict[int, str]:
    """The instructions of an image by address, as an assembler reads them."""
    text = subprocess.run(
        [DISASSEMBLER, "-d", "--no-show-raw-insn", f"--mcpu={mcpu}", str(elf)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = re.findall(r"^\s*([0-9a-f]+):\s+(\S[^@<\n]*)", text, flags=re.M)
    return {int(at, 16): re.sub(r"\s+", " ", code).strip() for at, code in found}
