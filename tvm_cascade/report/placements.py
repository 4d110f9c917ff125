"""Plans in several memories: the distance from a bound, and the cost of fewer bytes in the fastest memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import floor, inf, isfinite
from typing import TYPE_CHECKING

from tvm_cascade.errors import InfeasibleError
from tvm_cascade.schema import plan as schema
from tvm_cascade.search_monitor import monitor

if TYPE_CHECKING:
    from tvm_cascade.memory import PlacedPlan

_SHARES = (0.75, 0.5, 0.25, 0.125, 0.0)  # of the fastest memory's capacity, that a point of the frontier may take


@dataclass(frozen=True, slots=True)
class FastPoint:
    """A plan no other beats in both figures."""

    fast_bytes: int  # of the fastest memory, blocks and copies of weights
    cycles: int  # of an inference


@dataclass(frozen=True, slots=True)
class Placements:
    """The facts on placed plans."""

    objective: str
    plans: int  # that were placed
    reached: int  # by the plan: cycles, or bytes of all memories
    bound: int | None  # none of these plans has a placement of less; None where no integer program was solved
    search_bound: int | None = None  # cycles: no plan of the joint search takes fewer; None where there was none
    frontier: tuple[FastPoint, ...] = ()

    @property
    def gap_percent(self) -> float | None:
        """Return the result's gap above the bound, in per cent."""
        return None if not self.bound else round((self.reached / self.bound - 1) * 100, 2)

    def to_dict(self) -> schema.PlacementBound:
        """Return the JSON object under `placement`."""
        return {
            "objective": self.objective,
            "plans": self.plans,
            "reached": self.reached,
            "bound": self.bound,
            "gap_percent": self.gap_percent,
            "search_bound": self.search_bound,
        }

    def to_text(self, memory: str) -> list[str]:
        """Format the lines for reading; `memory` names the fastest."""
        unit = "cycles" if self.objective == "time" else "bytes"
        least = "no bound of the plans tried is known"
        if self.bound is not None:
            gap = f"it lies {self.gap_percent or 0:.1f} % above"
            least = f"none of the {self.plans} plans tried can be placed below {self.bound} ({gap}), other plans may be"
        if self.search_bound:
            above = (self.reached / self.search_bound - 1) * 100
            least = f"no plan of the search takes fewer than {self.search_bound} (it lies {above:.1f} % above)"
        lines = [f"placement       {self.reached} {unit}; {least}"]
        if len(self.frontier) > 1:
            points = "; ".join(f"{p.fast_bytes} for {p.cycles}" for p in self.frontier)
            lines.append(f"bytes of {memory} for cycles: {points}")
        return lines


def describe_placements(
    placed: Sequence[PlacedPlan], least: float | None, reached_cycles: int, whole: bool
) -> Placements | None:
    """Describe plans' placements, the chosen first; None without named memories.

    `least` is a lower bound on cycles from the joint search, `reached_cycles` the chosen plan's as printed; `whole`
    asks for the frontier, which places every plan again with less of the fastest memory.
    """
    if not placed:
        return None
    chosen, by_time = placed[0], placed[0].problem.objective == "time"
    bounds = [_least(p) if by_time else p.placement.bound for p in placed]
    reached = reached_cycles if by_time else chosen.placement.bytes
    bound = min(floor(min(bounds)), reached) if all(isfinite(b) for b in bounds) else None
    told = (replace(chosen, cycles=reached_cycles), *placed[1:])  # operators' cycles are rounded one by one
    search_bound = None if least is None else min(floor(least), reached)
    return Placements(
        chosen.problem.objective, len(placed), reached, bound, search_bound, _frontier(told) if whole else ()
    )


def _paid(placed: PlacedPlan) -> float:
    """Return the cycles dependent on the placement."""
    return placed.placement.cycles - placed.placement.saved


def _least(placed: PlacedPlan) -> float:
    """Bound a plan's cycles: the part independent of the placement, and the dependent part's bound."""
    weights = placed.problem.weights
    least = placed.placement.bound
    if weights is not None and weights.flash is None:  # the bound leaves out what copies cost
        least -= placed.placement.saved
    return placed.cycles - _paid(placed) + least


def _frontier(placed: Sequence[PlacedPlan]) -> tuple[FastPoint, ...]:
    """Return the points by ascending bytes and descending cycles."""
    points = sorted((p.fast_bytes, p.cycles) for one in placed for p in _points(one))
    kept: list[FastPoint] = []
    fewest = inf
    for fast_bytes, cycles in points:
        if cycles < fewest:
            kept.append(FastPoint(fast_bytes, cycles))
            fewest = cycles
    return tuple(kept)


def _points(placed: PlacedPlan) -> Iterator[FastPoint]:
    """Yield a plan as placed, and with less of the fastest memory."""
    from tvm_cascade.memory import place  # plans in one memory have no placements

    last = _point(placed)
    yield last
    fast, *others = placed.problem.memories
    for share in _SHARES if others and fast.capacity is not None else ():
        if monitor().over():
            return
        smaller = replace(fast, capacity=int((fast.capacity or 0) * share))
        if last.fast_bytes <= (smaller.capacity or 0) and placed.problem.objective == "time":
            continue  # it is the placement in the smaller memory too
        asked = replace(placed.problem, memories=(smaller, *others), objective="time")
        try:
            again = place(asked)
        except InfeasibleError:
            continue
        cycles = placed.cycles - _paid(placed) + again.cycles - again.saved
        last = _point(replace(placed, placement=again, problem=asked, cycles=cycles))
        yield last


def _point(placed: PlacedPlan) -> FastPoint:
    weights, copies = placed.problem.weights, placed.placement.copies
    copied = weights.bytes(copies) if weights is not None and copies and copies.memory == 0 else 0
    return FastPoint(placed.placement.peaks[0] + copied, round(placed.cycles))
