"""Types for values in JSON objects, with units and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a number, for the schema's description."""

    name: str


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The least value of a number."""

    value: int


Bytes = Annotated[int, Unit("bytes"), AtLeast(0)]
Count = Annotated[int, AtLeast(0)]
Seconds = Annotated[float, Unit("seconds"), AtLeast(0)]
Milliseconds = Annotated[float, Unit("milliseconds")]
Millijoules = Annotated[float, Unit("millijoules")]
Percent = Annotated[float, Unit("per cent")]
Ratio = Annotated[float, AtLeast(0)]
