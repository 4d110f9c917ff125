"""`Work`: the estimated cost of code on a core."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """Estimated costs of an operator in an inference."""

    instructions: float
    cycles: float  # where memory answers at once: neither wait states nor caches
