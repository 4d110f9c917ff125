"""Deduplication of weights: constants common to several networks in an image are stored once.

Two heads over one backbone, or a network in two plans, have equal weights, packed equally for equal kinds of kernels.
Equal constants of at least `LEAST` bytes move into a single array, `tvm_cascade_constants`; the rest are laid out again
without gaps, and pointers in the driver, which is C with either back end, are updated. Tables indexed by the driver are
not moved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm_cascade.emit.header import attributes
from tvm_cascade.emit.hot_weights import ITEM_BYTES, POINTER, mark_unused_flash, place_of_pointer
from tvm_cascade.emit.weights import Weights, emit_weights, laid_out, read_weights, words
from tvm_cascade.schedules.driver.lower_plan import FlashItem

SYMBOL = "tvm_cascade_constants"
HEADER, SOURCE = "constants.h", "constants.c"
LEAST = 32  # bytes; a pointer into a second array takes some ten bytes more of code
_ALIGN = 8


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Changed files of the networks and the two files with the shared array; no files if nothing is shared."""

    files: Mapping[str, str]
    stored: int  # bytes of the shared array
    saved: int  # bytes of flash: reduction of the networks' own weights, less `stored`


def share(networks: Mapping[str, tuple[str, str]]) -> SharedWeights:
    """Move constants common to several `networks` into a single array: network name -> texts of `<name>.c` and
    `<name>_weights.c`.

    A network with a different layout in the weights file, as from another version, keeps all constants.
    """
    read = {name: found for name, (_, text) in networks.items() if (found := read_weights(text)) is not None}
    places, array = _common(list(read.values()))
    if not places:
        return SharedWeights({}, 0, 0)
    files = {HEADER: _header(len(array)), SOURCE: _source(array)}
    saved = -len(array)
    for name, weights in read.items():
        movable = [(item, _content(weights, item)) for item in _movable(weights)]
        if not any(content in places for _, content in movable):
            continue
        kept = [(item, content) for item, content in movable if content not in places]
        first = [item for item in weights.items if item.offset < weights.tables]
        data, own = laid_out(kept, weights.data[: weights.tables])
        there = {item.offset: placed.offset for (item, _), placed in zip(kept, own, strict=True)}
        away = {item.offset: places[content] for item, content in movable if content in places}
        files[f"{name}.c"] = _moved(networks[name][0], name, weights, there, away)
        files[f"{name}_weights.c"] = emit_weights(name, Weights(data, (*first, *own), weights.tables))
        saved += len(weights.data) - len(data)
    return SharedWeights(files, len(array), saved)


def _movable(weights: Weights) -> list[FlashItem]:
    return [item for item in weights.items if item.offset >= weights.tables]


def _content(weights: Weights, item: FlashItem) -> bytes:
    return weights.data[item.offset : item.offset + item.size]


def _common(networks: Sequence[Weights]) -> tuple[dict[bytes, int], bytes]:
    """Find contents common to at least two networks, with offsets in the shared array, and that array's bytes."""
    seen: dict[bytes, set[int]] = {}
    for k, weights in enumerate(networks):
        for item in _movable(weights):
            if item.size >= LEAST:
                seen.setdefault(_content(weights, item), set()).add(k)
    array, places = bytearray(), dict[bytes, int]()
    for content, users in seen.items():
        if len(users) > 1:
            array.extend(b"\0" * (-len(array) % _ALIGN))
            places[content] = len(array)
            array.extend(content)
    return places, bytes(array)


def _moved(text: str, name: str, weights: Weights, there: Mapping[int, int], away: Mapping[int, int]) -> str:
    """Update the pointers to constants in a network's C source.

    By old offset, `there` has the new offsets of the network's own constants, `away` the offsets in the shared array.
    """
    starts = {item.offset: item for item in _movable(weights)}

    def found(at: int) -> tuple[int, bool]:
        """Return the new offset of the byte at `at`, and True if the byte is in the shared array."""
        start = next((s for s, item in starts.items() if s <= at < s + item.size), None)
        if start is None:
            return at, False
        return (away[start] + at - start, True) if start in away else (there[start] + at - start, False)

    def pointer(match: re.Match[str]) -> str:
        kind, (at, common) = match[1], found(place_of_pointer(match))
        if common:
            return f"(({kind or 'int8_t'}*)(uintptr_t)&((const uint8_t*){SYMBOL})[{at}])"
        return f"(&((({kind}*)(void*)flash)[{at // ITEM_BYTES.get(kind, 4)}]))" if kind else f"(&(flash[{at}]))"

    def copied(match: re.Match[str]) -> str:
        at, common = found(int(match[1]))
        return f"&((const uint8_t*){SYMBOL if common else name + '_flash'})[{at}]"

    text = POINTER.sub(pointer, text)
    text = re.sub(rf"&\(\(const uint8_t\*\){name}_flash\)\[(\d+)\]", copied, text)
    text = text.replace(f'#include "{name}.h"\n', f'#include "{name}.h"\n#include "{HEADER}"\n', 1)
    return mark_unused_flash(text, name)


def _header(size: int) -> str:
    upper = SYMBOL.upper()
    return "\n".join(
        [
            f"/* {size} bytes of weights that several networks of this image have in common. */",
            f"#ifndef {upper}_H",
            f"#define {upper}_H",
            "",
            "#include <stdint.h>",
            "",
            *attributes(upper),
            f"extern const uint32_t {SYMBOL}[{-(-size // 8) * 2}];",
            "",
            f"#endif /* {upper}_H */",
            "",
        ]
    )


def _source(array: bytes) -> str:
    head = f"{SYMBOL.upper()}_ALIGNED({_ALIGN}) const uint32_t {SYMBOL}[{-(-len(array) // 8) * 2}]"
    return "\n".join([f'#include "{HEADER}"', "", *words(head, array)])
