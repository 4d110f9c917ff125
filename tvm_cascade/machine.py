"""The memories of a machine.

Boards, the command line and plans describe a memory by a `Ram`, and the share of a board left to a network by a `Room`.
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
        """Return the name of the array in the emitted C, after the network's name: `arena`, or `ram_NAME`."""
        return f"ram_{self.name}" if self.name else "arena"

    def __str__(self) -> str:
        """Spell the memory as `--memory` does."""
        return self.name if self.capacity is None else f"{self.name}={self.capacity}:{self.cycles_per_byte:g}"


ARENA = Ram()


@dataclass(frozen=True, slots=True)
class Room:
    """A board's memory in bytes, shared by a network and the program around it."""

    board: str
    ram: int
    stack: int  # of `ram`, reserved for the stack
    flash: int


def require_size(ram: Ram) -> None:
    """Raise `UsageError` for a memory of unknown size."""
    if ram.capacity is None:
        raise UsageError(
            f"--memory {ram.name}: how large is it? Give {ram.name}=SIZE, or a --target whose file names it "
            "(tvm-cascade targets)"
        )
