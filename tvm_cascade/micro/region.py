"""`Region`: the addresses of a memory of a board."""

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
