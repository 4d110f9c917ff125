"""The frontier as a drawing: plans as points of peak memory and work, beside the cost of one operator after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from tvm_cascade.cascading import Bounds, Plan
from tvm_cascade.report.estimate import Estimate
from tvm_cascade.report.scale import Axis
from tvm_cascade.report.text import work_factor


@dataclass(frozen=True, slots=True)
class Point:
    """A plan of the frontier."""

    peak: int  # bytes
    factor: float  # multiply-accumulates, of the network's
    left: str  # from the left edge, as a length of CSS
    bottom: str  # from the lower edge
    chosen: bool
    command: str  # that gets it; empty where none is known
    estimate: Estimate | None


@dataclass(frozen=True, slots=True)
class Mark:
    """A number of bytes beside the plans: a lower bound, or the plain network."""

    words: str
    peak: int
    left: str


@dataclass(frozen=True, slots=True)
class FrontierChart:
    """Points and marks, the axes, and the line through the points in a square of 1000 by 1000."""

    points: tuple[Point, ...]
    marks: tuple[Mark, ...]
    line: str
    peaks: Axis
    factors: Axis


def frontier_chart(
    plan: Plan,
    own: Estimate,
    points: Sequence[tuple[int, float]],
    estimates: Sequence[Estimate],
    commands: Sequence[str],
    bounds: Bounds | None,
) -> FrontierChart:
    """Draw a frontier and the chosen `plan`.

    The plan is a separate point if a cap allows a larger plan with fewer instructions (`own`).
    """
    marks = {"one operator after the other": plan.baseline_peak}
    if bounds is not None:
        each = {"lower bound of rings of rows": bounds.rows, "lower bound of rings of pixels": bounds.pixels}
        marks |= each if bounds.rows != bounds.pixels else {"lower bound of rings of rows and pixels": bounds.rows}
    every = [*(p for p, _ in points), plan.peak, *marks.values()]
    room = max((max(every) - min(every)) * 0.06, max(every) * 0.02, 1)
    peaks = Axis(max(min(every) - room, 0), max(every) + room)
    work = [1.0, *(f for _, f in points)]  # columns that nobody reads may be left out: factors below 1
    above = max((max(work) - min(work)) * 0.12, 0.05)
    factors = Axis(min(work) - above, max(work) + above)
    told: list[tuple[int, float, Estimate | None]] = [
        (peak, factor, estimate) for (peak, factor), estimate in zip_longest(points, estimates)
    ]
    if all(peak != plan.peak for peak, *_ in told):
        told.append((plan.peak, work_factor(plan), own))
    drawn = tuple(
        Point(p, f, peaks.percent(p), factors.percent(f), p == plan.peak, command or "", estimate)
        for (p, f, estimate), command in zip_longest(told, commands)
    )
    found = tuple(Mark(words, value, peaks.percent(value)) for words, value in marks.items())
    return FrontierChart(drawn, found, _steps(points, peaks, factors), peaks, factors)


def _steps(points: Sequence[tuple[int, float]], peaks: Axis, factors: Axis) -> str:
    """Return the stairs through the points: between two points the smaller is the plan to have."""
    path = ""
    for peak, factor in points:
        x, y = round(1000 * peaks.part(peak)), round(1000 * (1 - factors.part(factor)))
        path += f"H{x}V{y}" if path else f"M{x},{y}"
    return f"{path}H1000" if path else ""
