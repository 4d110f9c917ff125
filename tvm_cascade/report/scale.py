"""What drawings are made of: outlines, and axes with round marks and values as per cent of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log10


@dataclass(frozen=True, slots=True)
class Outline:
    """A path of SVG, what it is of, and all that is known of that."""

    kind: str
    path: str
    tip: str


@dataclass(frozen=True, slots=True)
class Axis:
    """The values from `low` to `high` along one side of a drawing."""

    low: float
    high: float

    def part(self, value: float) -> float:
        """Where `value` lies, from 0 at `low` to 1 at `high`."""
        return (value - self.low) / (self.high - self.low)

    def percent(self, value: float) -> str:
        """`part` as a length of CSS."""
        return f"{100 * self.part(value):.2f}%"

    def marks(self, most: int = 6) -> list[float]:
        """At most `most` round values, evenly spaced: 1, 2 or 5 times a power of ten apart."""
        rough = (self.high - self.low) / most
        power = 10.0 ** floor(log10(rough))
        step = next(f * power for f in (1, 2, 5, 10, 20) if self._count(f * power) <= most)
        first = -(-self.low // step)
        return [(first + k) * step for k in range(self._count(step))]

    def _count(self, step: float) -> int:
        return int(self.high // step - -(-self.low // step)) + 1
