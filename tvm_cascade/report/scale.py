"""Parts of drawings: outlines, and axes with round marks and values in per cent."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log10


@dataclass(frozen=True, slots=True)
class Outline:
    """An SVG path with kind and tip text."""

    kind: str
    path: str
    tip: str


@dataclass(frozen=True, slots=True)
class Axis:
    """The values from `low` to `high` along a single side of a drawing."""

    low: float
    high: float

    def part(self, value: float) -> float:
        """Return the position of `value`, from 0 at `low` to 1 at `high`."""
        return (value - self.low) / (self.high - self.low)

    def percent(self, value: float) -> str:
        """Return `part` as a CSS length."""
        return f"{100 * self.part(value):.2f}%"

    def marks(self, most: int = 6) -> list[float]:
        """Choose at most `most` round values, evenly spaced: 1, 2 or 5 times a power of ten apart."""
        rough = (self.high - self.low) / most
        power = 10.0 ** floor(log10(rough))
        step = next(f * power for f in (1, 2, 5, 10, 20) if self._count(f * power) <= most)
        first = -(-self.low // step)
        return [(first + k) * step for k in range(self._count(step))]

    def _count(self, step: float) -> int:
        return int(self.high // step - -(-self.low // step)) + 1
