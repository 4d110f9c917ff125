"""The targets that there are, cores and machines, as a table and as JSON."""

from __future__ import annotations

from tvm_cascade.boards.board import Board, FlashTool, list_boards, load_board
from tvm_cascade.boards.machines import core_of
from tvm_cascade.cores import CORES, Core
from tvm_cascade.schema.filled import filled
from tvm_cascade.schema.targets import MemoryOfTarget, Target
from tvm_cascade.sizes import megahertz


def targets() -> list[Target]:
    """List cores, then machines, each with the facts in its file."""
    return [*map(_core, CORES.values()), *(_machine(load_board(name)) for name in list_boards())]


def target_table() -> str:
    """Format the targets as a table, a single line each."""
    rows = [("target", "core", "clock", "flash", "RAM, by name: bytes, cycles a byte", "")]
    for one in targets():
        marks = [
            *(["emulated"] if one["emulated"] else []),
            *one["flashed_by"],
            *(f"as {name}" for name in one["aliases"]),
        ]
        clock = "" if one["clock_hz"] is None else megahertz(one["clock_hz"])
        rams = ", ".join(map(_memory_text, one["memories"])) or _kib(one["ram_bytes"])
        rows.append((one["name"], one["core"], clock, _kib(one["flash_bytes"]), rams, ", ".join(marks)))
    wide = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(n) for cell, n in zip(row, wide, strict=True)).rstrip() for row in rows)


def _kib(size: int | None) -> str:
    return "" if size is None else f"{size / 1024:g} KiB"


def _memory_text(memory: MemoryOfTarget) -> str:
    cost = memory["cycles_per_byte"]
    return f"{memory['name']} {_kib(memory['bytes'])}" + ("" if cost is None else f" {cost:g}")


def _core(core: Core) -> Target:
    emulated = core.name != "host" and load_board(core.default_board).qemu_machine is not None
    return {
        "name": core.name,
        "core": core.name,
        "description": "",
        "aliases": [],
        "clock_hz": None,
        "flash_bytes": None,
        "ram_bytes": None,
        "memories": [],
        "emulated": emulated,
        "flashed_by": [],
        "sources": {},
    }


def _machine(board: Board) -> Target:
    return {
        "name": board.name,
        "core": core_of(board).name,
        "description": board.description,
        "aliases": list(board.aliases),
        "clock_hz": board.clock,
        "flash_bytes": board.flash.bytes,
        "ram_bytes": board.ram.bytes,
        "memories": [filled(MemoryOfTarget, one, name=name) for name, one in board.memories.items()],
        "emulated": board.qemu_machine is not None,
        "flashed_by": list(programmers(board)),
        "sources": dict(board.sources),
    }


def programmers(board: Board) -> tuple[str, ...]:
    """List the programs able to write the board's flash."""
    tools = board.flash_tool or FlashTool()
    known = (("pyocd", tools.pyocd), ("openocd", tools.openocd), ("st-flash", tools.stflash),
        ("uf2", tools.uf2 is not None), ("esptool", tools.esptool))  # fmt: skip
    return tuple(name for name, has in known if has)
