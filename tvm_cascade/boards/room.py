"""A board's memory for a network (`machine.Room`)."""

from __future__ import annotations

from tvm_cascade.boards.board import Board, list_boards, load_board
from tvm_cascade.cores import Core
from tvm_cascade.machine import Room


def room_of(board: Board, placed: bool = False) -> Room:
    """Return a board's memory, under the name that was asked for: the arena's RAM, or all RAM for a network `placed` in
    several memories.
    """
    beside = [one for one in board.memories.values() if not one.inside(board.ram)] if placed else []
    return Room(
        board.called or board.name,
        board.ram.bytes + sum(one.bytes for one in beside),
        board.reserved_ram,
        board.flash.bytes,
    )


def rooms_by_core(core: Core) -> tuple[tuple[Room, ...], tuple[Room, ...]]:
    """Return the memory of all known boards: first boards that run code for `core`, then the rest.

    A board whose file names its microcontroller is left out: it has the memory of the microcontroller.
    """
    boards = [board for board in map(load_board, list_boards()) if not board.derived]
    same = tuple(room_of(board) for board in boards if board.core in core.runs_on)
    return same, tuple(room_of(board) for board in boards if board.core not in core.runs_on)
