"""`Region`: the addresses of a board's memory; `Memory`: the further facts in the file."""

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
    """A memory with its access times from the manual; None is unknown."""

    wait: float | None = None  # cycles of the core that an access waits, where no cache has what it reads
    line: int = 4  # bytes that one access moves, a power of two
    cacheable: bool | None = None
    dma: bool | None = None  # whether the controllers for general use reach it

    @property
    def cycles_per_byte(self) -> float | None:
        """Return the cycles a byte costs beside the arithmetic: an access moves a whole line."""
        return None if self.wait is None else self.wait / self.line
