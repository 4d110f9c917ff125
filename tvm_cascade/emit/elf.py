"""Section sizes of a linked image, by pyelftools."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tvm_cascade.boards.board import Board
from tvm_cascade.errors import LoadError

_ALLOC = 0x2  # section flag
_STACK = ".stack"


@dataclass(frozen=True, slots=True)
class Section:
    """An allocated section of an image."""

    name: str
    address: int
    bytes: int
    loaded: bool  # has contents in the file, so it takes flash


def read_sections(path: Path) -> tuple[Section, ...]:
    """Read the allocated, non-empty sections in file order; raise `LoadError` for anything but a 32-bit little-endian
    ELF.
    """
    from elftools.common.exceptions import ELFError  # here: they take 20 ms to import
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as file:
            image = ELFFile(file)
            if image.elfclass != 32 or not image.little_endian:
                raise LoadError(path, "is no 32-bit little-endian ELF image")
            return tuple(
                Section(s.name, s["sh_addr"], s["sh_size"], s["sh_type"] != "SHT_NOBITS")
                for s in image.iter_sections()
                if s["sh_flags"] & _ALLOC and s["sh_size"]
            )
    except OSError as error:
        raise LoadError(path, error.strerror or "cannot be read") from None
    except (ELFError, KeyError, ValueError):
        raise LoadError(path, "is no 32-bit little-endian ELF image, or a damaged one") from None


def symbol_address(path: Path, name: str) -> int:
    """Return a symbol's address in an image; raise `LoadError` if it has none of this name."""
    from elftools.elf.elffile import ELFFile

    read_sections(path)
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        found = table.get_symbol_by_name(name) if table is not None else None  # type: ignore[attr-defined]
        if not found:
            raise LoadError(path, f"has no symbol {name}: its linker script is of an older version")
        return int(found[0]["st_value"])


_HEAP = re.compile(r"_?(malloc|calloc|realloc|free|sbrk)(_r)?\Z")
_SOFT_FLOAT = re.compile(  # of libgcc: by the Arm EABI's names, and by its own
    r"__aeabi_(c?[fd](add|r?sub|mul|div|r?cmp\w*|neg)|[fd]2\w+|u?[il]2[fd]|ul2[fd]|h2f\w*)\Z"
    r"|__(add|sub|mul|div|neg|eq|ne|lt|le|gt|ge|cmp|unord|fix|fixuns|float|floatun|extend|trunc)[sdt][sdti]?f\w*\Z"
)


def audited_symbols(path: Path) -> dict[str, list[str]]:
    """List functions of an image that manage a heap (`heap`) and that compute floats without hardware (`soft_float`)."""
    from elftools.elf.elffile import ELFFile

    read_sections(path)
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        names = sorted({s.name for s in table.iter_symbols()}) if table is not None else []  # type: ignore[attr-defined]
    kinds = {"heap": _HEAP, "soft_float": _SOFT_FLOAT}
    return {kind: [name for name in names if pattern.match(name)] for kind, pattern in kinds.items()}


def memory_use(path: Path, board: Board) -> tuple[int, int]:
    """Measure (RAM bytes without the stack, flash bytes) of an image linked for `board`.

    RAM counts the arena or the blocks in the board's memories, initialised and zeroed data; flash counts code,
    constants and the initial values of data.
    """
    sections = read_sections(path)
    rams = (board.ram, *board.memories.values())
    own = [s for s in sections if s.name != _STACK and any(ram.origin <= s.address < ram.end for ram in rams)]
    ram_bytes = sum(s.bytes for s in own)
    flash_bytes = sum(s.bytes for s in sections if s.loaded)
    return ram_bytes, flash_bytes
