"""Write `<name>_weights.c`, the file with a network's constants, and parse such files for bundles that share constants.

Tables indexed by the driver come first, then the constants passed to kernels by pointer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_cascade.emit.names import c_comment
from tvm_cascade.schedules.driver.lower_plan import FlashItem

_HEAD = re.compile(r"/\* Weights, tables and traces of .*: (\d+) bytes, tables in the first (\d+)\. \*/")
_ITEM = re.compile(r"/\* +(\d+) +(\d+) bytes  (\w+)\[([0-9, ]*)\]  (.*) \*/")
_WORD = re.compile(r"\b0x([0-9a-f]{8})u\b")


@dataclass(frozen=True, slots=True)
class Weights:
    """Constants of a network as a flash image; the first `tables` bytes are tables indexed by the driver."""

    data: bytes
    items: tuple[FlashItem, ...]
    tables: int


def emit_weights(name: str, weights: Weights, section: bool = False) -> str:
    """Write the flash image in C as a const array of little-endian 32-bit words; comments list every constant's offset.

    With `section` the array lies in a section of its own, `.tvm_weights` unless the build names another.
    """
    count = max(1, -(-len(weights.data) // 8) * 2)
    tables = f"{len(weights.data)} bytes, tables in the first {weights.tables}."
    lines = [f"/* Weights, tables and traces of {c_comment(name)}: {tables} */", f'#include "{name}.h"', ""]
    lines += [
        f"/* {i.offset:8d} {i.size:8d} bytes  {i.dtype}{list(i.shape)}  {c_comment(i.label)} */" for i in weights.items
    ]
    head = f"{name.upper()}_ALIGNED(8) const uint32_t {name}_flash[{count}]"
    if section:
        macro = f"{name.upper()}_FLASH_SECTION"
        lines += ["", f"#ifndef {macro}", f'#define {macro} ".tvm_weights"', "#endif"]
        head = head.replace(" const ", f" {name.upper()}_SECTION({macro}) const ", 1)
    return "\n".join([*lines, "", *words(head, weights.data)])


def words(head: str, data: bytes) -> list[str]:
    """Define the array declared by `head` in C: `data` as 32-bit words, zero-padded to a multiple of 8 bytes."""
    values = np.frombuffer(data + b"\0" * (-len(data) % 8), dtype="<u4")
    text = [f"0x{w:08x}u" for w in values.tolist()] or ["0u"]
    return [
        "#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__",
        '#error "this image is little-endian"',
        "#endif",
        "",
        f"{head} = {{",
        *("    " + ", ".join(text[i : i + 10]) + "," for i in range(0, len(text), 10)),
        "};",
        "",
    ]


def read_weights(text: str) -> Weights | None:
    """Parse the output of `emit_weights`; return None for a file in another layout."""
    head = _HEAD.match(text)
    if head is None:
        return None
    items = tuple(
        FlashItem(m[5], m[3], tuple(int(n) for n in m[4].split(",") if n.strip()), int(m[1]), int(m[2]))
        for m in _ITEM.finditer(text)
    )
    data = b"".join(int(m[1], 16).to_bytes(4, "little") for m in _WORD.finditer(text))[: int(head[1])]
    if len(data) != int(head[1]) or any(i.offset + i.size > len(data) for i in items):
        return None
    return Weights(data, items, int(head[2]))


def laid_out(items: Sequence[tuple[FlashItem, bytes]], tables: bytes) -> tuple[bytes, tuple[FlashItem, ...]]:
    """Lay out `items` after `tables`, each aligned for its type; returns the bytes, and the items with new offsets."""
    data = bytearray(tables)
    placed: list[FlashItem] = []
    for item, content in items:
        data.extend(b"\0" * (-len(data) % (8 if np.dtype(item.dtype).itemsize == 8 else 4)))
        placed.append(FlashItem(item.label, item.dtype, item.shape, len(data), item.size))
        data.extend(content)
    return bytes(data), tuple(placed)
