"""The files of a board in a compiled folder, `boards/<board>/`: linker script, constants, and the board's own JSON file.

One folder may hold several boards. Once edited by the user, `link.ld` and `board.h` are not overwritten.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

from tvm_cascade.boards.board import Board, CounterRegister, UartSide, load_board
from tvm_cascade.emit.template import fill_template, template

_BOARD = "board.json"  # the board's own file
_CONSTANTS = "        *(.rodata .rodata.* .srodata .srodata.*)\n        . = ALIGN(4);\n"
_WEIGHTS = "*(.tvm_weights .tvm_weights.*)"  # of networks compiled with --weights section
_WEIGHTS_PLACE = (
    "    /* Weights of networks compiled with --weights section: name another memory here to place them there. */\n"
)


def add_board(folder: Path, board: Board, memories: Sequence[str] = ()) -> Path:
    """Write `boards/<board>/` into a compiled folder and return the path.

    `memories` names the board's memories used by the networks, each with a section. `board.json` is always updated,
    `link.ld` and `board.h` unless edited; an existing `board.cmake` stays.
    """
    place = folder / "boards" / board.name
    place.mkdir(parents=True, exist_ok=True)
    for name, text in _board_files(board, memories).items():
        path = place / name
        old = path.read_text(encoding="utf-8") if path.is_file() else None
        if old != text and (name == _BOARD or old is None or old == _marked(old[: old.rfind("/*")])):
            path.write_text(text, encoding="utf-8")
    return place


def _board_files(board: Board, memories: Sequence[str]) -> dict[str, str]:
    texts = {"link.ld": _marked(linker_script(board, memories)), "board.h": _marked(board_header(board))}
    return texts | {"board.cmake": f"# {board.name}: {board.core}\n"} | ({_BOARD: board.source} if board.source else {})


def _marked(text: str) -> str:
    """Add a last comment to a C file or linker script: a CRC-32, which reveals later edits."""
    crc = zlib.crc32(text.encode())
    return f"{text}/* Written from {_BOARD}, with CRC-32 {crc:08X} of all above; once edited, it stays. */\n"


def find_board(folder: Path, name_or_path: str) -> Board:
    """Find the board by the copy of a board file in `folder`, if linked for a board of this name; else by `load_board`."""
    return load_board(board_place(folder, name_or_path))


def board_place(folder: Path, name_or_path: str) -> str:
    """Return the path of the copy of a board file in `folder`, if there is a copy, else `name_or_path`."""
    own = folder / "boards" / name_or_path / _BOARD
    return str(own) if own.is_file() else name_or_path


def linker_script(board: Board, memories: Sequence[str] = ()) -> str:
    """Write a board's linker script: memories, sections, and a stack reserve that makes an overflow a link error.

    Each name in `memories` gets a section: in a separate region, or inside the RAM, behind data and bss if the memory
    begins with the RAM, else at the memory's own start.
    """
    regions, sections = "", ""
    for name in sorted(memories, key=lambda name: board.memories[name].origin):
        at = board.memories[name]
        inside = at.inside(board.ram)
        region = "RAM" if inside else f"MEMORY_{name.upper()}"
        regions += "" if inside else f"    {region} (rw) : ORIGIN = 0x{at.origin:08X}, LENGTH = {at.bytes}\n"
        place = f" 0x{at.origin:08X}" if inside and at.origin > board.ram.origin else ""
        sections += f"    .{name}{place} (NOLOAD) : {{ *(.{name}) }} > {region}\n\n"
    vectors = ""
    if board.vectors:
        vectors = f"    VECTORS (rx) : ORIGIN = 0x{board.vectors.origin:08X}, LENGTH = {board.vectors.bytes}\n"
    if board.boot:
        size = 4 * len(board.boot.words)
        vectors = f"    BOOT (r) : ORIGIN = 0x{board.boot.origin:08X}, LENGTH = {size}\n{vectors}"
        words = "".join(f"        LONG(0x{word:08X})\n" for word in board.boot.words)
        sections = f"    .boot : {{\n{words}    }} > BOOT\n\n{sections}"
    weights = f"\n{_WEIGHTS_PLACE}    .tvm_weights : {{ {_WEIGHTS} }} > FLASH\n"
    constants, offset = f"{_CONSTANTS}    }} > FLASH\n{weights}", ""
    if board.flash_data is not None:  # the same bytes, at the address where loads find them
        offset = f" - 0x{board.flash.origin:08X} + 0x{board.flash_data:08X}"
        constants = (
            "        . = ALIGN(16);\n    } > FLASH\n\n"
            f"    .rodata (LOADADDR(.text) + SIZEOF(.text){offset}) :\n    {{\n{_CONSTANTS}        {_WEIGHTS}\n"
            "        . = ALIGN(4);\n    } > FLASH_DATA AT> FLASH\n"
        )
        regions += f"    FLASH_DATA (r) : ORIGIN = 0x{board.flash_data:08X}, LENGTH = {board.flash.bytes}\n"
    stack = ""
    if board.stack:
        stack = f"    STACK_RAM (rw) : ORIGIN = 0x{board.stack.origin:08X}, LENGTH = {board.stack.bytes}\n"
    values = {
        "board": board.name,
        "vectors_region": vectors,
        "vectors_memory": "VECTORS" if board.vectors else "FLASH",
        "stack_region": stack + regions,
        "constants": constants,
        "data_offset": offset,
        "memory_sections": sections,
        "stack_memory": "STACK_RAM" if board.stack else "RAM",
        "flash_origin": f"0x{board.flash.origin:08X}",
        "flash_bytes": str(board.flash.bytes),
        "ram_origin": f"0x{board.ram.origin:08X}",
        "ram_bytes": str(board.ram.bytes),
        "stack_reserve": str(board.stack_reserve),
    }
    return fill_template(template("link.ld.in"), values)


def board_header(board: Board | None) -> str:
    """Write `board.h`: inline functions that set up and read the board's instruction counter; None is the host."""
    counter = board.counter if board else None
    return (
        f"/* Constants of {board.name if board else 'the host'}. */\n"
        "#ifndef TVM_CASCADE_BOARD_H\n#define TVM_CASCADE_BOARD_H\n\n#include <stdint.h>\n\n"
        f"static inline void counter_setup(void)\n{{\n{_stores(counter.setup if counter else ())}}}\n\n"
        f"static inline uint32_t counter_low(void)\n{{\n{_read(counter.low if counter else None)}}}\n\n"
        f"static inline uint32_t counter_coarse(void)\n{{\n{_read(counter.coarse if counter else None)}}}\n\n"
        f"{_uart_text(board)}#endif\n"
    )


def _uart_text(board: Board | None) -> str:
    if board is None or board.uart is None:
        return ""
    uart = board.uart
    places = f"#define UART_BASE 0x{uart.address:08X}u\n"
    if uart.receive is not None and uart.transmit is not None:
        places = _side_text("RECEIVE", uart.receive) + _side_text("TRANSMIT", uart.transmit)
    return (
        f"#define UART_{uart.kind.upper()} 1\n{places}\n"
        f"static inline void uart_setup(void)\n{{\n{_steps(uart.setup)}}}\n\n"
    )


def _side_text(name: str, side: UartSide) -> str:
    """Write the macros for a single direction of a polled port: a test for a byte, and the data register."""
    status, data = (f"(*(volatile uint{side.bits}_t *)0x{place:08X}u)" for place in (side.status, side.data))
    ready = "!=" if side.ready_when_set else "=="
    return f"#define UART_{name}_READY (({status} & 0x{side.mask:X}u) {ready} 0u)\n#define UART_{name}_DATA {data}\n"


def _stores(pairs: Sequence[tuple[int, int]]) -> str:
    return "".join(f"    {_store(*pair)}\n" for pair in pairs) or "    /* nothing to set up */\n"


def _steps(steps: Sequence[tuple[int, ...]]) -> str:
    """Write stores (address, value), and waits (address, mask, value) until a masked register has a value."""
    lines = [
        _store(*step)
        if len(step) == 2
        else f"while ((*(volatile uint32_t *)0x{step[0]:08X}u & 0x{step[1]:X}u) != 0x{step[2]:X}u) {{\n    }}"
        for step in steps
    ]
    return "".join(f"    {line}\n" for line in lines) or "    /* nothing to set up */\n"


def _store(address: int, value: int) -> str:
    return f"*(volatile uint32_t *)0x{address:08X}u = 0x{value:X}u;"


def _read(register: CounterRegister | None) -> str:
    if register is None:
        return "    return 0;\n"
    if register.csr:
        return _read_csr(register)
    sample = f"    {_store(*register.sample)}\n" if register.sample else ""
    mask = "" if register.bits == 32 else f" & 0x{(1 << register.bits) - 1:X}u"
    return f"{sample}    return *(volatile uint32_t *)0x{register.address:08X}u{mask};\n"


def _read_csr(register: CounterRegister) -> str:
    """Write C that reads 32 bits of a 64-bit counter, from bit `log2(low_ticks)` on, consistently over both halves."""
    shift = register.low_ticks.bit_length() - 1
    low = f'__asm__ volatile("csrr %0, {register.csr}" : "=r"(low));'
    if shift == 0:
        return f"    uint32_t low;\n    {low}\n    return low;\n"
    high = f'__asm__ volatile("csrr %0, {register.csr}h" : "=r"({{}}));'
    return (
        "    uint32_t low;\n    uint32_t high;\n    uint32_t again;\n    do {\n"
        f"        {high.format('high')}\n        {low}\n        {high.format('again')}\n"
        f"    }} while (high != again);\n    return (high << {32 - shift}) | (low >> {shift});\n"
    )
