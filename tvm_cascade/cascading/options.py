"""What a user may ask of the planner. Every field is a documented switch; the defaults plan the smallest peak at
1.00x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm_cascade.errors import UsageError


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Planning options, as the command line gives them."""

    sram: int | None = None  # cap in bytes; None asks for the smallest peak
    layerwise: bool = False  # every operator a segment of its own, in file order
    alignment: int = 4  # bytes, of every block in the arena

    def __post_init__(self) -> None:
        if self.sram is not None and self.sram < 0:
            raise UsageError(f"a cap of {self.sram} bytes: give a positive size")
        if self.alignment < 1:
            raise UsageError(f"an alignment of {self.alignment} bytes: give at least 1")


Granular = Literal["row", "pixel", "auto"]
