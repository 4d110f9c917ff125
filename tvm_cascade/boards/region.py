"""`Region`: the addresses of a memory of a board; `Memory`: what else its file says of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Region:
    """A memory: half-open addresses `[origin, origin + bytes)`."""

    origin: int
    bytes: int

    @property
    def end(self) -> int:
        return self.origin + self.bytes

    def inside(self, other: Region) -> bool:
        return other.origin <= self.origin and self.end <= other.end

    def meets(self, other: Region) -> bool:
        return self.origin < other.end and other.origin < self.end


@dataclass(frozen=True, slots=True)
class Memory(Region):
    """A memory with what its manual says of accesses; None is what no source says."""

    wait: float | None = None  # cycles of the core that an access waits, where no cache has what it reads
    line: int = 4  # bytes that one access moves, a power of two
    cacheable: bool | None = None
    dma: bool | None = None  # whether the controllers for general use reach it

    @property
    def cycles_per_byte(self) -> float | None:
        """What a byte costs beside the arithmetic: lines are accessed from their begin to their end."""
        return None if self.wait is None else self.wait / self.line
