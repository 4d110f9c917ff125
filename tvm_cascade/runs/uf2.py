"""UF2 files, which boot ROMs take as copies to a drive (https://github.com/microsoft/uf2)."""

from __future__ import annotations

import struct
from pathlib import Path

from tvm_cascade.boards.board import Board

_MAGIC = (0x0A324655, 0x9E5D5157, 0x0AB16F30)
_HAS_FAMILY = 0x2000  # flag: the field behind the number of blocks is a family
_PAYLOAD = 256  # bytes of a block, which are at a multiple of this
_PLACES = ("/media/*/*", "/run/media/*/*", "/Volumes/*", "/mnt/*")  # where systems mount drives
_MARK = "INFO_UF2.TXT"  # on every drive of a boot ROM


def write_uf2(board: Board, elf: Path) -> Path:
    """Write the loaded bytes of an image as a .uf2 file beside the image, and return the file's path."""
    assert board.flash_tool is not None and board.flash_tool.uf2 is not None
    pages = _pages(elf)
    file = elf.with_suffix(".uf2")
    file.write_bytes(
        b"".join(_block(at, pages[at], k, len(pages), board.flash_tool.uf2) for k, at in enumerate(sorted(pages)))
    )
    return file


def boot_drives() -> list[Path]:
    """List mounted drives of boot ROMs that take .uf2 files."""
    return sorted(found.parent for place in _PLACES for found in Path("/").glob(f"{place[1:]}/{_MARK}"))


def _pages(elf: Path) -> dict[int, bytes]:
    """Return the loaded bytes in pages of `_PAYLOAD` by address, filled with zeros."""
    from elftools.elf.elffile import ELFFile  # here: it takes 20 ms to import

    pages: dict[int, bytearray] = {}
    with elf.open("rb") as file:
        for segment in ELFFile(file).iter_segments():
            if segment["p_type"] != "PT_LOAD":
                continue
            for offset, byte in enumerate(segment.data()):
                page, place = divmod(segment["p_paddr"] + offset, _PAYLOAD)
                pages.setdefault(page * _PAYLOAD, bytearray(_PAYLOAD))[place] = byte
    return {at: bytes(page) for at, page in pages.items()}


def _block(address: int, data: bytes, number: int, count: int, family: int) -> bytes:
    head = struct.pack("<8I", *_MAGIC[:2], _HAS_FAMILY, address, len(data), number, count, family)
    return head + data.ljust(476, b"\0") + struct.pack("<I", _MAGIC[2])
