"""Settings for annealing orders (`ordering.anneal`), and the numbers shared by Python and C."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from tvm_cascade.ordering.masks import members
from tvm_cascade.ordering.model import Model
from tvm_cascade.ordering.region import Region

SCALE = 1024
DRAWS = tuple(
    round(-log((k + 0.5) / 4096) * SCALE) for k in range(4096)
)  # of an exponential distribution, times `SCALE`
POLLED = 4096  # moves after which the time is looked at
_REACH = 40  # steps that an operator moves at most


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an annealing run."""

    lowest: int  # bytes: the run ends at an order of that peak
    margin: int  # bytes by which it aims below the best peak
    moves: int  # tried
    heat: int  # bytes, at the start
    reach: int = _REACH  # steps
    seed: int = 1


def settings(m: Model, region: Region, lowest: int, peak: int, moves: int, seed: int) -> Settings:
    """Choose settings to suit the tensor sizes in a region."""
    sizes = [m.demand[op] for op in members(region.after & ~region.before)]
    return Settings(lowest, max(1, peak // 256), moves, 2 * sum(sizes) // max(1, len(sizes)), seed=seed)
