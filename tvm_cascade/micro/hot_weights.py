"""Weights that are copied to RAM and read there, for cores with slow flash.

The kernels' constants lie in the flash image, and the driver passes kernels pointers into it. Selected constants are copied
once into an array `<name>_hot` (in a section of the user's choice), and the driver's pointers to them are redirected there.
Selected, within a budget of bytes, are the constants that are read most often per byte: multiply-accumulates of their
operator divided by their size; ties go to the lower offset.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm_cascade.schedules.driver.lower_plan import FlashItem, Lowered

POINTER = re.compile(r"\(&\((?:flash|\(\((\w+)\*\)\(void\*\)flash\))\[(\d+)\]\)\)")  # C pointer into the flash image
ITEM_BYTES = {"int8_t": 1, "uint8_t": 1, "int16_t": 2, "uint16_t": 2, "int64_t": 8, "uint64_t": 8, "double": 8}
_ALIGN = 8


@dataclass(frozen=True, slots=True)
class HotWeight:
    """A constant in RAM: `offset` in bytes, from the start of the array."""

    item: FlashItem
    offset: int


def choose(lowered: Lowered, text: str, budget: int) -> tuple[HotWeight, ...]:
    """Select constants of at most `budget` bytes in total among those that the driver's C `text` points to."""
    used = {item for match in POINTER.finditer(text) if (item := _item(lowered.flash_items, match)) is not None}
    macs = {op.name: op.macs for op in lowered.plan.graph.ops}
    order = sorted(used, key=lambda item: (-_reads(item, macs), item.offset))
    chosen: list[HotWeight] = []
    place = 0
    for item in order:
        if _reads(item, macs) > 0 and place + item.size <= budget:
            chosen.append(HotWeight(item, place))
            place += -(-item.size // _ALIGN) * _ALIGN
    return tuple(chosen)


def total_bytes(chosen: Sequence[HotWeight]) -> int:
    """Bytes of the array that holds the chosen constants."""
    return -(-(chosen[-1].offset + chosen[-1].item.size) // _ALIGN) * _ALIGN if chosen else 0


def redirect(text: str, name: str, chosen: Sequence[HotWeight]) -> str:
    """The driver's C text with its pointers to the `chosen` constants replaced by pointers into `<name>_hot`."""

    def pointer(match: re.Match[str]) -> str:
        at = place_of_pointer(match)
        for weight in chosen:
            if weight.item.offset <= at < weight.item.offset + weight.item.size:
                kind, place = match[1] or "int8_t", weight.offset + at - weight.item.offset
                return f"(({kind}*)(void*)&(((uint8_t*){name}_hot)[{place}]))"
        return match[0]

    return POINTER.sub(pointer, text)


def definition(name: str, chosen: Sequence[HotWeight]) -> list[str]:
    """C of the array and the function that fills it; nothing where nothing is chosen."""
    if not chosen:
        return []
    upper = name.upper()
    copies = [
        f"    memcpy(&((uint8_t*){name}_hot)[{w.offset}], &((const uint8_t*){name}_flash)[{w.item.offset}], {w.item.size}u);"
        for w in chosen
    ]
    return [
        f"#ifndef {upper}_WEIGHTS_SECTION",
        f'#define {upper}_WEIGHTS_SECTION ".bss.{name}_hot"',
        "#endif",
        f"static {upper}_ALIGNED({_ALIGN}) {upper}_SECTION({upper}_WEIGHTS_SECTION) "
        f"uint32_t {name}_hot[{total_bytes(chosen) // 4}];",
        f"static int32_t {name}_hot_ready;",
        "",
        f"void {name}_load_weights(void) {{",
        *copies,
        f"    {name}_hot_ready = 1;",
        "}",
        "",
    ]


def declaration(name: str, chosen: Sequence[HotWeight]) -> list[str]:
    """Lines of the header that declare the function that fills the array."""
    if not chosen:
        return []
    return [
        f"/* {total_bytes(chosen)} bytes of weights are read from RAM, in the section {name.upper()}_WEIGHTS_SECTION of",
        " * your build's choice. The first run copies them there; call this where RAM lost its contents since. */",
        f"void {name}_load_weights(void);",
        "",
    ]


def _item(items: Sequence[FlashItem], match: re.Match[str]) -> FlashItem | None:
    at = place_of_pointer(match)
    return next((item for item in items if item.offset <= at < item.offset + item.size), None)


def place_of_pointer(match: re.Match[str]) -> int:
    """Offset in bytes, in the flash image, of the element that a match of `POINTER` points to."""
    return int(match[2]) * (ITEM_BYTES.get(match[1], 4) if match[1] else 1)


def _reads(item: FlashItem, macs: Mapping[str, int]) -> float:
    """An estimate of how often each byte is read in an inference; 0 for tables that belong to no operator."""
    return macs.get(item.label.rsplit(" ", 1)[0], 0) / max(item.size, 1)
