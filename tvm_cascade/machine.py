"""What is known of a machine: its memories.

Boards, the command line and plans all describe a memory by a `Ram`, and what a board has for a network by its `Room`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.errors import UsageError


@dataclass(frozen=True, slots=True)
class Ram:
    """A memory that a network may use."""

    name: str = (
        ""  # that of its section in the linked image; "" for the one memory of a plan that names none, the arena
    )
    capacity: int | None = (
        None  # bytes that the network may take; None: as many as it likes, or as the board's file says
    )
    cycles_per_byte: float = 1.0  # beside the arithmetic, of a byte that a kernel reads or writes
    address: int | None = None  # of its first byte on the board; None: not known

    @property
    def label(self) -> str:
        """What its array is called in the emitted C, behind the network's name: `arena`, or `ram_NAME`."""
        return f"ram_{self.name}" if self.name else "arena"

    def __str__(self) -> str:
        """As `--memory` takes it."""
        return self.name if self.capacity is None else f"{self.name}={self.capacity}:{self.cycles_per_byte:g}"


ARENA = Ram()


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of a board, in bytes, that a network and the program around it share."""

    board: str
    ram: int
    stack: int  # of `ram`, reserved for the stack
    flash: int


def require_size(ram: Ram) -> None:
    """Raise `UsageError` for a memory of which nobody says how large it is."""
    if ram.capacity is None:
        raise UsageError(
            f"--memory {ram.name}: how large is it? Give {ram.name}=SIZE, or a --target whose file names it "
            "(tvm-cascade targets)"
        )
