"""A cap on all RAM of an image: arena, data, bss, and a stack as large as the bound on calls.

An image under a cap is linked for its board with a RAM of that many bytes, and with the bound as the stack's reserve,
so the linker enforces both. The board's file in the compiled folder records both, for every later link. If a network
lies in named memories, the cap limits the sum, which is checked after linking.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tvm_cascade.boards.board import Board, read_board
from tvm_cascade.cache import Cache
from tvm_cascade.emit.image import Image
from tvm_cascade.emit.stack_bound import stack_bound
from tvm_cascade.emit.toolchain import BuildResult, MemoryOverflowError, build_image
from tvm_cascade.errors import InfeasibleError

_ALIGN = 16  # bytes, of what lies between the arena, the other data and the stack


class RamExceededError(InfeasibleError):
    """An image above the RAM cap; `other` is the need beside the arena, in bytes."""

    def __init__(self, arena: int, other: int, cap: int) -> None:
        self.other = other
        remedy = f"{other} of them are stack, data and bss; lower --sram, allow more work (--max-macs) or raise --ram"
        super().__init__(arena + other, cap, ["the linked image"], remedy)


def within_ram(image: Image, built: BuildResult, board: Board, cap: int, cache: Cache) -> BuildResult:
    """Link an image once more for its board, with `cap` bytes of RAM in all.

    Raises `RamExceededError` if it needs more, `NoStackBoundError` if the stack has no bound.
    """
    stack = stack_bound(built.elf, image.target.family)
    needed = -(-built.ram_bytes // _ALIGN) * _ALIGN + stack
    if needed > cap:
        raise RamExceededError(built.arena_bytes, needed - built.arena_bytes, cap)
    try:
        made = build_image(image, capped_board(board, None if image.memory_names else cap, stack), cache=cache)
    except MemoryOverflowError as error:
        excess = error.needed - error.available
        raise RamExceededError(built.arena_bytes, cap + excess - built.arena_bytes, cap) from None
    return replace(made, stack_bytes=stack)


def capped_board(board: Board, cap: int | None, stack: int) -> Board:
    """Describe a board with `cap` bytes of RAM in all (None: full memories), `stack` bytes reserved for the stack."""
    data = json.loads(board.source)
    memory = data["memory"]
    if board.stack is not None:
        memory["stack"]["bytes"] = stack
    if cap is not None:
        data.pop("memories", None)
        cap -= stack if board.stack is not None else 0
        memory["ram"]["bytes"] = min(cap, board.ram.bytes) // 8 * 8
    data["stack_reserve"] = stack
    data["description"] = f"{board.description}; RAM capped by --ram".lstrip("; ")
    return read_board(json.dumps(data, indent=2) + "\n", Path(f"{board.name}.json"))
