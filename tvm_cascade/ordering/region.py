"""Regions: sets of operators ordered at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Region:
    """The operators between two successive cuts, which are ordered independently of the rest."""

    before: int  # mask of the operators done
    after: int  # mask of the operators done at its end
    live: int  # bytes live at `before`

    @property
    def length(self) -> int:
        """Count the operators."""
        return (self.after ^ self.before).bit_count()
