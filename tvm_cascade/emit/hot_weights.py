"""Weights copied to RAM and read there, for cores with slow flash: once, or layer by layer during computation.

The kernels' constants lie in the flash image, and the driver passes kernels pointers into it. Constants listed by the
plan (`passes.copied_weights`) are copied into arrays, and the driver's pointers are redirected there.

- *hot*: `<name>_hot` keeps the copies made by the first run.
- *prefetched*: `<name>_prefetched` is a double buffer. While a segment of the plan runs with weights in one half, the next
  segment's weights are copied into the other, by `port_copy_start` and `port_copy_wait`: weak functions that call memcpy,
  replaceable by a DMA controller's.
- *streamed*: as prefetched, but all constants, read from a weights file by `port_read_weights` (`emit.weights_file`).

All lie in a section of the user's choice: by default in bss or, for a network placed in several memories, in the
memory named by the plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tvm_cascade.errors import UsageError
from tvm_cascade.passes.copied_weights import CopiedWeights, stream_halves, stream_ranges
from tvm_cascade.schedules.driver.lower_plan import FlashItem, Lowered

POINTER = re.compile(r"\(&\((?:flash|\(\((\w+)\*\)\(void\*\)flash\))\[(\d+)\]\)\)")  # C pointer into the flash image
ITEM_BYTES = {"int8_t": 1, "uint8_t": 1, "int16_t": 2, "uint16_t": 2, "int64_t": 8, "uint64_t": 8, "double": 8}
_ALIGN = 8
HEADER_BYTES = 64  # of a file of weights, in front of the flash image


@dataclass(frozen=True, slots=True)
class HotWeight:
    """A constant in RAM: `offset` in bytes, from the start of the array."""

    item: FlashItem
    offset: int


@dataclass(frozen=True, slots=True)
class Copies:
    """The constants of a network copied to RAM."""

    hot: tuple[HotWeight, ...] = ()
    prefetched: Mapping[int, tuple[HotWeight, ...]] = field(default_factory=dict)  # by segment of the plan
    halves: tuple[int, int] = (0, 0)  # bytes of the two halves of the double buffer
    segments: int = 0  # of the plan
    memory: str = ""  # that both arrays lie in; "" for bss
    streamed: bool = False  # whether `prefetched` are ranges of a file of weights

    @property
    def hot_bytes(self) -> int:
        """Return the bytes of the array for hot weights."""
        return _end(self.hot)

    @property
    def bytes(self) -> int:
        """Return the bytes of both arrays."""
        return self.hot_bytes + sum(self.halves)

    @property
    def starts(self) -> dict[int, int]:
        """Return the start in the double buffer of the half used by each segment."""
        return {segment: self.halves[0] * (k % 2) for k, segment in enumerate(self.prefetched)}

    def __bool__(self) -> bool:
        return bool(self.hot or self.prefetched)


def copies_of(lowered: Lowered, text: str, copied: CopiedWeights) -> Copies:
    """Lay out a plan's copies as arrays, for constants pointed to by the driver's C `text`."""
    hot = _laid_out(copied.hot, _pointed(lowered, text))
    parts = dict(_parts(lowered, text))
    ahead = {s: _laid_out(items, _pointed(lowered, parts.get(s, ""))) for s, items in copied.prefetched.items()}
    ahead = {s: weights for s, weights in ahead.items() if weights}
    half = max((_end(weights) for weights in ahead.values()), default=0)
    return Copies(hot, ahead, (half, half), len(lowered.plan.segments), copied.memory if hot or ahead else "")


def streamed_copies(lowered: Lowered, text: str) -> Copies:
    """Lay out all constants pointed to by the driver's C `text`, by segment, for reading from a weights file.

    Raises `UsageError` if there are none, and if the driver points to constants outside segments.
    """
    needed = {s: _constants(lowered, part) for s, part in _parts(lowered, text)}
    if {i for items in needed.values() for i in items} != set(_constants(lowered, text)):
        raise UsageError("--weights stream: constants are read outside of the plan's segments; take --weights file")
    if not any(needed.values()):
        raise UsageError("--weights stream: this network has no weights that could be read; leave --weights out")
    ranges = {segment: stream_ranges(items) for segment, items in needed.items() if items}
    placed = {segment: _in_buffer(items) for segment, items in ranges.items()}
    return Copies((), placed, stream_halves(tuple(ranges.values())), len(lowered.plan.segments), streamed=True)


def _constants(lowered: Lowered, text: str) -> list[FlashItem]:
    return [item for item in _pointed(lowered, text) if item.offset >= lowered.table_bytes]


def _in_buffer(ranges: Sequence[FlashItem]) -> tuple[HotWeight, ...]:
    placed: list[HotWeight] = []
    for item in ranges:
        placed.append(HotWeight(item, _end(placed)))
    return tuple(placed)


def _laid_out(items: Sequence[FlashItem], pointed: Sequence[FlashItem]) -> tuple[HotWeight, ...]:
    """Lay out the items pointed to, in sequence."""
    placed: list[HotWeight] = []
    for item in items:
        if item in pointed:
            placed.append(HotWeight(item, _end(placed)))
    return tuple(placed)


def _end(placed: Sequence[HotWeight]) -> int:
    return _aligned(placed[-1].offset + placed[-1].item.size) if placed else 0


def _pointed(lowered: Lowered, text: str) -> list[FlashItem]:
    """List the constants C text points to."""
    return list({item for m in POINTER.finditer(text) if (item := _item(lowered.flash_items, m)) is not None})


def _parts(lowered: Lowered, text: str) -> list[tuple[int, str]]:
    """Cut the driver's text at the starts of segments (`Lowered.segment_call`)."""
    if lowered.segment_call is None:
        return []
    begins = list(re.finditer(rf"\b{lowered.segment_call}\((\d+)\)", text))
    ends = [m.start() for m in begins[1:]] + [len(text)]
    return [(int(m[1]), text[m.end() : end]) for m, end in zip(begins, ends, strict=True)]


def redirect(lowered: Lowered, text: str, name: str, copies: Copies) -> str:
    """Redirect the driver's pointers from copied constants into the arrays of copies."""
    starts = copies.starts
    for segment, part in _parts(lowered, text):
        if segment in copies.prefetched:
            shift = starts[segment]
            text = text.replace(part, _redirected(part, f"{name}_prefetched", copies.prefetched[segment], shift), 1)
    text = _redirected(text, f"{name}_hot", copies.hot, 0)
    return mark_unused_flash(text, name) if copies else text


def mark_unused_flash(text: str, name: str) -> str:
    """Add `(void)flash;` to a driver that no longer reads the network's own weights."""

    def marked(driver: re.Match[str]) -> str:
        head, body = driver[0].split("\n", 1)
        return driver[0] if re.search(r"\bflash\b", body) else f"{head}\n  (void)flash;\n{body}"

    return re.sub(rf"^(?:static )?int32_t {name}_invoke\([^)]*\) \{{\n.*?^\}}", marked, text, flags=re.M | re.S)


def _redirected(text: str, array: str, chosen: Sequence[HotWeight], shift: int) -> str:
    def pointer(match: re.Match[str]) -> str:
        at = place_of_pointer(match)
        for weight in chosen:
            if weight.item.offset <= at < weight.item.offset + weight.item.size:
                kind, place = match[1] or "int8_t", shift + weight.offset + at - weight.item.offset
                return f"(({kind}*)(void*)&(((uint8_t*){array})[{place}]))"
        return match[0]

    return POINTER.sub(pointer, text)


def definition(name: str, copies: Copies) -> list[str]:
    """Define in C the arrays and the copying functions; no lines if nothing is copied."""
    if not copies:
        return []
    upper, section = name.upper(), f".{copies.memory}" if copies.memory else f".bss.{name}_hot"
    lines = [f"#ifndef {upper}_WEIGHTS_SECTION", f'#define {upper}_WEIGHTS_SECTION "{section}"', "#endif"]
    return lines + _hot_definition(name, copies) + _prefetched_definition(name, copies)


def _array(name: str, what: str, size: int) -> str:
    upper = name.upper()
    place = f"static {upper}_ALIGNED({_ALIGN}) {upper}_SECTION({upper}_WEIGHTS_SECTION)"
    return f"{place} uint32_t {name}_{what}[{size // 4}];"


def _source(name: str, item: FlashItem) -> str:
    return f"&((const uint8_t*){name}_flash)[{item.offset}]"


def _hot_definition(name: str, copies: Copies) -> list[str]:
    if not copies.hot:
        return []
    return [
        _array(name, "hot", copies.hot_bytes),
        f"static int32_t {name}_hot_ready;",
        "",
        f"void {name}_load_weights(void) {{",
        *(
            f"    memcpy(&((uint8_t*){name}_hot)[{w.offset}], {_source(name, w.item)}, {w.item.size}u);"
            for w in copies.hot
        ),
        f"    {name}_hot_ready = 1;",
        "}",
        "",
    ]


def _prefetched_definition(name: str, copies: Copies) -> list[str]:
    """Define the double buffer, the copies for every segment, and the function called by the driver at a segment's
    start.

    Copies start one segment with copied weights ahead: the first segment's before the run, each next segment's when the
    previous segment begins, since the half needed is free then.
    """
    if not copies.prefetched:
        return []
    order, starts = list(copies.prefetched), copies.starts
    rows, first = list[str](), [0] * (copies.segments + 2)
    for k, segment in enumerate(order):
        begins = 0 if k == 0 else order[k - 1] + 1
        for w in copies.prefetched[segment]:
            source = f"{HEADER_BYTES + w.item.offset}u" if copies.streamed else _source(name, w.item)
            rows.append(f"    {{{source}, {starts[segment] + w.offset}u, {w.item.size}u}},")
        first[begins + 1] = len(copies.prefetched[segment])
    for k in range(1, len(first)):
        first[k] += first[k - 1]
    reads = ", ".join(str(int(k in copies.prefetched)) for k in range(copies.segments))
    source = "uint32_t from" if copies.streamed else "const uint8_t *from"
    wait = "port_wait_weights" if copies.streamed else "port_copy_wait"
    return [
        _array(name, "prefetched", max(sum(copies.halves), HEADER_BYTES if copies.streamed else 0)),
        f"static const struct {{ {source}; uint32_t to; uint32_t bytes; }} {name}_copies[] = {{",
        *rows,
        "};",
        "/* copies that start before the run, and where every segment begins; which segments read what was copied */",
        f"static const uint16_t {name}_first_copy[] = {{{', '.join(map(str, first))}}};",
        f"static const uint8_t {name}_reads_copies[] = {{{reads}}};",
        "",
        *(_WEAK_WAIT if copies.streamed else _WEAK_COPIES),
        f"static void {name}_start_copies(int32_t row) {{",
        "    uint32_t k;",
        f"    for (k = {name}_first_copy[row]; k < {name}_first_copy[row + 1]; ++k) {{",
        *_started(name, copies),
        "    }",
        "}",
        "",
        f"static int32_t {segment_symbol(name)}(int32_t segment) {{",
        f"    if ({name}_reads_copies[segment] != 0u) {{",
        f"        {wait}();",
        "    }",
        f"    {name}_start_copies(segment + 1);",
        "    return 0;",
        "}",
        "",
    ]


_WEAK_COPIES = (
    "#if defined(__GNUC__)",
    "__attribute__((weak)) void port_copy_start(void *to, const void *from, uint32_t bytes) {",
    "    memcpy(to, from, bytes);",
    "}",
    "",
    "__attribute__((weak)) void port_copy_wait(void) {",
    "}",
    "#endif",
    "",
)
_WEAK_WAIT = (
    "#if defined(__GNUC__)",
    "__attribute__((weak)) void port_wait_weights(void) {",
    "}",
    "#endif",
    "",
)


def _started(name: str, copies: Copies) -> list[str]:
    """Write C statements that start copy `k`; a range that cannot be read marks the run as failed."""
    to, row = f"&((uint8_t*){name}_prefetched)[{name}_copies[k].to]", f"{name}_copies[k]"
    if not copies.streamed:
        return [f"        port_copy_start({to}, {row}.from, {row}.bytes);"]
    return [
        f"        if (port_read_weights({row}.from, {row}.bytes, {to}) != 0) {{",
        f"            {name}_unread = 1u;",
        "        }",
    ]


def before_run(name: str, copies: Copies) -> list[str]:
    """Write C statements for the start of a run; a run ended early may have left copies behind."""
    lines = [f"    if ({name}_hot_ready == 0) {{", f"        {name}_load_weights();", "    }"] if copies.hot else []
    if not copies.prefetched:
        return lines
    if copies.streamed:
        return [*lines, f"    {name}_unread = 0u;", "    port_wait_weights();", f"    {name}_start_copies(0);"]
    return [*lines, "    port_copy_wait();", f"    {name}_start_copies(0);"]


def segment_symbol(name: str) -> str:
    """Name the C function called by the driver at a segment's start."""
    return f"{name}_begin_segment"


def declaration(name: str, copies: Copies) -> list[str]:
    """Write the header's declarations of the functions that copy weights to RAM."""
    lines: list[str] = []
    where = f"in the section {name.upper()}_WEIGHTS_SECTION of"
    if copies.hot:
        lines += [
            f"/* {copies.hot_bytes} bytes of weights are read from RAM, {where}",
            " * your build's choice. The first run copies them there; call this where RAM lost its contents since. */",
            f"void {name}_load_weights(void);",
            "",
        ]
    if copies.prefetched and not copies.streamed:
        lines += [
            f"/* Weights are copied to RAM layer by layer, into two times {copies.halves[0]} bytes {where}",
            " * your build's choice, by these functions. Write your own for a DMA controller: the first may return at once,",
            " * the second returns when all copies that were started have ended. */",
            "void port_copy_start(void *to, const void *from, uint32_t bytes);",
            "void port_copy_wait(void);",
            "",
        ]
    return lines


def _item(items: Sequence[FlashItem], match: re.Match[str]) -> FlashItem | None:
    at = place_of_pointer(match)
    return next((item for item in items if item.offset <= at < item.offset + item.size), None)


def place_of_pointer(match: re.Match[str]) -> int:
    """Return the offset in bytes, in the flash image, of the element a match of `POINTER` points to."""
    return int(match[2]) * (ITEM_BYTES.get(match[1], 4) if match[1] else 1)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
