"""Random numbers drawn alike by the compiled searches and the Python twins."""

from __future__ import annotations

_MASK = (1 << 64) - 1


class Xorshift:
    """The generator xorshift64* (Vigna, 2016); `state` is 64 bits, not all 0."""

    def __init__(self, seed: int) -> None:
        self.state = 2 * seed + 1

    def draw(self, count: int) -> int:
        """Draw a random number from 0 to `count - 1`."""
        x = self.state
        x ^= x >> 12
        x ^= x << 25 & _MASK
        x ^= x >> 27
        self.state = x
        return ((x * 2685821657736338717 & _MASK) >> 32) % count
