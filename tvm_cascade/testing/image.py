"""What a linked image calls and computes with, read from its disassembly: proofs for tests that hold for the machine code."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_FUNCTION = re.compile(r"[0-9a-f]+ <(.+)>:$")
_INSTRUCTION = re.compile(r"\s*[0-9a-f]+:\s+([a-z][a-z0-9.]*)\s*(.*)")
_TARGET = re.compile(r"<([^>+]+)>")  # of a jump to the start of a function
_HEAP = re.compile(r"_?(malloc|calloc|realloc|free|memalign)(_r)?|_?sbrk(_r)?")
_SOFT_FLOAT = re.compile(
    r"__aeabi_c?[fd](add|sub|rsub|mul|div|cmp|2)\w*|__aeabi_u?[il]2[fd]|__\w+[sd]f[23]?|__\w+[sd]f[sd]i"
)


@dataclass(frozen=True)
class Image:
    """Functions of an image by name: their instructions as (mnemonic, operands)."""

    functions: Mapping[str, tuple[tuple[str, str], ...]]

    def calls(self, function: str) -> set[str]:
        """Functions that `function` jumps to or whose address a jump of it names, itself too where it calls itself."""
        callees: set[str] = set()
        for mnemonic, operands in self.functions.get(function, ()):
            if mnemonic.startswith(("b", "j", "c", "tail")) and (target := _TARGET.search(operands)):
                callees.add(target[1])
        return callees

    def reached(self, function: str) -> set[str]:
        """All functions that a call of `function` may run."""
        found, open_ = {function}, [function]
        while open_:
            for name in self.calls(open_.pop()) - found:
                found.add(name)
                open_.append(name)
        return found

    def recursive(self, function: str) -> set[str]:
        """Of these, functions that may be entered again before they return."""
        return {f for f in self.reached(function) if any(f in self.reached(g) for g in self.calls(f))}

    def heap(self) -> set[str]:
        """Functions of a heap."""
        return {name for name in self.functions if _HEAP.fullmatch(name)}

    def floats(self) -> set[str]:
        """Functions with an instruction that computes in floats or uses a register of floats, and helpers that do so.

        On cores with vectors of integers, whose registers are those of floats, moves between them count for nothing.
        """
        bodies = self.functions.items()
        vectors = any(re.search(r"\bq[0-7]\b", operands) for _, body in bodies for _, operands in body)
        soft = {name for name in self.functions if _SOFT_FLOAT.fullmatch(name)}
        return soft | {name for name, body in bodies if any(_is_float(*each, moves=not vectors) for each in body)}


def read_image(elf: Path, prefix: str) -> Image:
    """Disassemble the code of `elf` (not its constants) with the objdump of a tool chain, `arm-none-eabi-` or another."""
    command = (f"{prefix}objdump", "-d", "--no-show-raw-insn", str(elf))
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    data = set(re.findall(r" [RrDdBb] (\S+)$", _symbols(elf, prefix), flags=re.M))
    functions: dict[str, list[tuple[str, str]]] = {}
    for name, line in _lines(text):
        if not name.endswith("_flash") and name not in data and (match := _INSTRUCTION.match(line)):
            functions.setdefault(name, []).append((match[1], match[2]))
    return Image({name: tuple(body) for name, body in functions.items()})


def _symbols(elf: Path, prefix: str) -> str:
    return subprocess.run((f"{prefix}nm", str(elf)), capture_output=True, text=True, check=True).stdout


def _lines(text: str) -> Iterator[tuple[str, str]]:
    name = ""
    for line in text.splitlines():
        if match := _FUNCTION.match(line):
            name = match[1]
        elif name:
            yield name, line


def _is_float(mnemonic: str, operands: str, moves: bool) -> bool:
    """Whether an instruction has a type of floats or, with `moves`, one of their registers; f... are RISC-V's."""
    if re.search(r"\.[fb](16|32|64)\b", mnemonic) or re.match(r"f(l|s)(w|d)\b|f\w+\.(s|d)\b", mnemonic):
        return True
    return moves and mnemonic.startswith("v") and bool(re.search(r"\b[sd]\d", operands))
