"""Section sizes of a linked image: just enough of the 32-bit little-endian ELF format (TIS ELF 1.2, chapter 1)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from tvm_cascade.errors import LoadError
from tvm_cascade.micro.board import Board

_ALLOC, _NOBITS = 0x2, 8  # section flag, section type
_STACK = ".stack"


@dataclass(frozen=True, slots=True)
class Section:
    """An allocated section of an image."""

    name: str
    address: int
    bytes: int
    loaded: bool  # has contents in the file, so it takes flash


def read_sections(path: Path) -> tuple[Section, ...]:
    """Allocated, non-empty sections in file order; raises `LoadError` for anything but a 32-bit little-endian ELF."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LoadError(path, error.strerror or "cannot be read") from None
    if data[:6] != b"\x7fELF\x01\x01" or len(data) < 52:
        raise LoadError(path, "is no 32-bit little-endian ELF image")
    try:
        table, entry, count, names_index = *struct.unpack_from("<I", data, 32), *struct.unpack_from("<HHH", data, 46)
        headers = [struct.unpack_from("<10I", data, table + k * entry) for k in range(count)]
        names_start = headers[names_index][4]
        return tuple(
            Section(_text(data, names_start + header[0]), header[3], header[5], header[1] != _NOBITS)
            for header in headers
            if header[2] & _ALLOC and header[5]
        )
    except (struct.error, IndexError, ValueError):
        raise LoadError(path, "is a damaged ELF image") from None


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode("ascii")


def memory_use(path: Path, board: Board) -> tuple[int, int]:
    """(RAM bytes without the stack, flash bytes) of an image linked for `board`.

    RAM counts the arena, initialised and zeroed data; flash counts code, constants and the initial values of data.
    """
    sections = read_sections(path)
    ram = board.ram
    ram_bytes = sum(s.bytes for s in sections if ram.origin <= s.address < ram.end and s.name != _STACK)
    flash_bytes = sum(s.bytes for s in sections if s.loaded)
    return ram_bytes, flash_bytes
