"""`Cost`: the estimated cost of an inference, kept in a compiled folder for `run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_cascade.records import checked


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimated cycles of an inference, with the clock and the power that time and energy follow from."""

    cycles: int
    clock: int | None = None  # Hz
    watts: float | None = None  # None where nobody knows them

    @property
    def milliseconds(self) -> float | None:
        """Return the time to a microsecond; None without a clock."""
        return None if self.clock is None else milliseconds(self.cycles, self.clock)

    @property
    def millijoules(self) -> float | None:
        """Return the energy to a nanojoule; None without a clock and the core's power."""
        if self.clock is None or self.watts is None:
            return None
        return round(1000 * self.watts * self.cycles / self.clock, 6)


def milliseconds(cycles: float, clock: int) -> float:
    """Convert `cycles` at a clock of `clock` Hz to milliseconds, to a microsecond."""
    return round(1000 * cycles / clock, 3)


def read_cost(record: Mapping[str, Any] | None) -> Cost | None:
    """Read the cost in a folder's metadata; None in a folder from an older version."""
    return None if record is None else checked(Cost(**record))


def total(costs: Sequence[Cost | None]) -> Cost | None:
    """Add up costs in sequence; clock and power are known if equal for all."""
    known = [one for one in costs if one is not None]
    if len(known) < len(costs) or not known:
        return None
    clocks, watts = {one.clock for one in known}, {one.watts for one in known}
    return Cost(
        sum(one.cycles for one in known),
        clocks.pop() if len(clocks) == 1 else None,
        watts.pop() if len(watts) == 1 else None,
    )
