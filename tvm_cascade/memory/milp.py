"""Small problems with `OffsetConstraint` constraints as a mixed-integer program, solved by HiGHS through scipy.

For two buffers live together, one lies above the other, or a follower obeys its distance: one binary each, at least one
of them set, constraints with the height of the best known layout as big M. All sizes are divided by their common
divisor first, which keeps the numbers small enough for a floating-point solver; what it returns is rounded, and the
caller checks it. Without scipy there is no such search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Any

import numpy as np

from tvm_cascade.memory.fit import follows_between, overlapping
from tvm_cascade.memory.problem import Problem

MOST_PAIRS = 60  # of buffers live together


@dataclass(frozen=True, slots=True)
class MilpResult:
    """Offsets, and a bound that the solver proved."""

    offsets: tuple[int, ...]  # by position
    bound: int  # bytes, proven


def solve(problem: Problem, height: int, nodes: int = 2_000) -> MilpResult | None:
    """The lowest layout, known to be at most `height` bytes; None for large problems, without scipy, or on failure."""
    try:
        from scipy import optimize
    except ImportError:
        return None
    scipy: Any = optimize
    exact, problem = problem, _aligned(problem)
    pairs = [(i, j) for i, near in enumerate(overlapping(problem)) for j in near if i < j]
    if not problem.buffers or len(pairs) > MOST_PAIRS:
        return None
    unit = _unit(problem)
    rows = _Rows(problem, pairs, unit, -(-height // unit))
    matrix, low = rows.arrays()
    n = len(problem.buffers)
    columns = matrix.shape[1]
    upper = np.ones(columns)
    upper[: n + 1] = -(-height // unit)
    lower = np.zeros(columns)
    steps = np.array([b.alignment // gcd(b.alignment, unit) for b in problem.buffers])
    if (steps > 1).any():
        return None
    for i, b in enumerate(problem.buffers):
        if b.offset is not None:
            lower[i] = upper[i] = b.offset // unit
    cost = np.zeros(columns)
    cost[n] = 1
    found = scipy.milp(
        cost,
        constraints=scipy.LinearConstraint(matrix, low),
        integrality=np.ones(columns),
        bounds=scipy.Bounds(lower, upper),
        options={"node_limit": nodes},
    )
    if found.x is None:
        return None
    offsets = tuple(round(v) * unit for v in found.x[:n])
    padding = max((a.size - b.size for a, b in zip(problem.buffers, exact.buffers, strict=True)), default=0)
    return MilpResult(offsets, ceil(float(found.mip_dual_bound) - 1e-6) * unit - padding)  # the topmost needs none


def _aligned(problem: Problem) -> Problem:
    """Sizes and distances as multiples of an alignment that all buffers share; their offsets are multiples anyway."""
    units = {b.alignment for b in problem.buffers}
    if len(units) != 1:
        return problem
    unit = units.pop()
    buffers = tuple(replace(b, size=-(-b.size // unit) * unit) for b in problem.buffers)
    follows = tuple(replace(f, distance=-(-f.distance // unit) * unit) for f in problem.offset_constraints)
    return Problem(buffers, problem.capacity, follows)


def _unit(problem: Problem) -> int:
    """A number that divides every size, distance, alignment and pinned place, so that nothing is lost by counting in it."""
    numbers = [b.size for b in problem.buffers] + [b.alignment for b in problem.buffers]
    numbers += [b.offset for b in problem.buffers if b.offset is not None] + [
        f.distance for f in problem.offset_constraints
    ]
    return max(1, gcd(*numbers))


class _Rows:
    """Constraints `row @ (offsets, peak, binaries) >= low`, in units."""

    def __init__(self, problem: Problem, pairs: list[tuple[int, int]], unit: int, height: int) -> None:
        self.n = len(problem.buffers)
        self.size = [b.size // unit for b in problem.buffers]
        self.big = 2 * height + max((abs(f.distance) // unit for f in problem.offset_constraints), default=0)
        self.rows: list[dict[int, float]] = []
        self.low: list[float] = []
        self.binaries = 0
        between = follows_between(problem)
        for i in range(self.n):
            self._add({self.n: 1, i: -1}, self.size[i])
        for i, j in pairs:
            choices = [[(i, j, self.size[j])], [(j, i, self.size[i])]]
            behind = [
                (j, i, distance // unit) if i_writes else (i, j, distance // unit)
                for i_writes, distance in between.get((i, j), ())
            ]
            self._one_of([*choices, behind] if behind else choices)

    def _one_of(self, choices: list[list[tuple[int, int, int]]]) -> None:
        """At least one list of `offset a - offset b >= distance` holds."""
        picks = [self.n + 1 + self.binaries + k for k in range(len(choices))]
        self.binaries += len(choices)
        self._add(dict.fromkeys(picks, 1.0), 1)
        for pick, choice in zip(picks, choices, strict=True):
            for a, b, distance in choice:
                self._add({a: 1, b: -1, pick: -self.big}, distance - self.big)

    def _add(self, row: dict[int, float], low: float) -> None:
        self.rows.append(row)
        self.low.append(low)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        matrix = np.zeros((len(self.rows), self.n + 1 + self.binaries))
        for r, row in enumerate(self.rows):
            for c, v in row.items():
                matrix[r, c] = v
        return matrix, np.array(self.low)
