"""Small problems with `OffsetConstraint` constraints as a mixed-integer program, solved by HiGHS through scipy.

Two buffers live together lie above one another, or all their offset constraints hold: a binary variable for each case,
at least one set, constraints with a big M from the best known peak. All sizes are first divided by their common
divisor, which keeps the numbers small enough for a floating-point solver; the result is rounded, and the caller
validates it. Without scipy `solve` returns None.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, gcd, inf
from typing import Any

import numpy as np

from tvm_cascade.memory.fit import follows_between, overlapping
from tvm_cascade.memory.highs import run_milp
from tvm_cascade.memory.problem import Problem
from tvm_cascade.search_monitor import monitor

MOST_PAIRS = 60  # most pairs of buffers live together; larger problems are not solved here
_INFEASIBLE = 2  # a status of scipy's `milp`


@dataclass(frozen=True, slots=True)
class MilpResult:
    """Offsets, and a bound that the solver proved."""

    offsets: tuple[int, ...]  # by position
    bound: int  # bytes, proven


def solve(problem: Problem, height: int, nodes: int = 2_000) -> MilpResult | None:
    """Search the layout with the smallest peak, given a layout of `height` bytes; None for large problems, without
    scipy, or on failure.
    """
    rounded = _aligned(problem)
    unit = _unit(rounded)
    solution = _solution(rounded, unit, -(-height // unit), nodes, smallest=True)
    if solution is None or solution.x is None:
        return None
    offsets = tuple(round(v) * unit for v in solution.x[: len(problem.buffers)])
    bound = ceil(max(0.0, float(solution.mip_dual_bound)) - 1e-6) * unit - _padding(problem, rounded)
    return MilpResult(offsets, bound)


def impossible(problem: Problem, height: int, nodes: int) -> bool:
    """Test whether there is provably no layout within `height` bytes; False for large problems, and without scipy."""
    rounded = _aligned(problem)
    unit = _unit(rounded)
    solution = _solution(rounded, unit, (height + _padding(problem, rounded)) // unit, nodes, smallest=False)
    return solution is not None and solution.status == _INFEASIBLE


def _padding(exact: Problem, rounded: Problem) -> int:
    """Return the most bytes by which a buffer was rounded up; the topmost buffer needs no rounding."""
    return max((a.size - b.size for a, b in zip(rounded.buffers, exact.buffers, strict=True)), default=0)


def _solution(problem: Problem, unit: int, height: int, nodes: int, smallest: bool) -> Any:
    """Run HiGHS on layouts within `height` units: the smallest peak, or any layout. None if the problem is too large."""
    pairs = [(i, j) for i, near in enumerate(overlapping(problem)) for j in near if i < j]
    if not problem.buffers or len(pairs) > MOST_PAIRS:
        return None
    try:
        from scipy import optimize
    except ImportError:
        return None
    scipy: Any = optimize
    matrix, low = _constraints(problem, pairs, unit, height)
    n, columns = len(problem.buffers), matrix.shape[1]
    upper = np.ones(columns)
    upper[: n + 1] = height
    lower = np.zeros(columns)
    steps = np.array([b.alignment // gcd(b.alignment, unit) for b in problem.buffers])
    if (steps > 1).any():
        return None
    for i, b in enumerate(problem.buffers):
        if b.offset is not None:
            lower[i] = upper[i] = b.offset // unit
    cost, left = np.zeros(columns), monitor().left()
    cost[n] = smallest
    return run_milp(
        cost,
        constraints=scipy.LinearConstraint(matrix, low),
        integrality=np.ones(columns),
        bounds=scipy.Bounds(lower, upper),
        options={"node_limit": nodes} | ({} if left == inf else {"time_limit": left}),
    )


def _aligned(problem: Problem) -> Problem:
    """Round sizes and distances up to the alignment, if all buffers have the same: then offsets are multiples of it."""
    units = {b.alignment for b in problem.buffers}
    if len(units) != 1:
        return problem
    unit = units.pop()
    buffers = tuple(replace(b, size=-(-b.size // unit) * unit) for b in problem.buffers)
    follows = tuple(replace(f, distance=-(-f.distance // unit) * unit) for f in problem.offset_constraints)
    return Problem(buffers, problem.capacity, follows)


def _unit(problem: Problem) -> int:
    """Compute the greatest common divisor of all sizes, distances, alignments and pinned offsets, in bytes."""
    numbers = [n for b in problem.buffers for n in (b.size, b.alignment, b.offset or 0)]
    return max(1, gcd(*numbers, *(f.distance for f in problem.offset_constraints)))


def _constraints(
    problem: Problem, pairs: list[tuple[int, int]], unit: int, height: int
) -> tuple[np.ndarray, np.ndarray]:
    """Build the matrix and lower bounds of `matrix @ (offsets, peak, binaries) >= low`, in units."""
    n, size, between = len(problem.buffers), [b.size // unit for b in problem.buffers], follows_between(problem)
    big = 2 * height + max((abs(f.distance) // unit for f in problem.offset_constraints), default=0)
    rows: list[dict[int, int]] = [{n: 1, i: -1} for i in range(n)]
    low, columns = [*size], n + 1
    for i, j in pairs:
        choices = [[(i, j, size[j])], [(j, i, size[i])]]  # one list of `offset a - offset b >= distance` holds at least
        follows = between.get((i, j), ())
        behind = [(j, i, d // unit) if i_writes else (i, j, d // unit) for i_writes, d in follows]
        choices += [behind] if behind else []
        rows.append(dict.fromkeys(range(columns, columns + len(choices)), 1))
        low.append(1)
        for pick, choice in enumerate(choices, columns):
            rows += [{a: 1, b: -1, pick: -big} for a, b, _ in choice]
            low += [distance - big for _, _, distance in choice]
        columns += len(choices)
    matrix = np.zeros((len(rows), columns))
    for r, row in enumerate(rows):
        matrix[r, list(row)] = list(row.values())
    return matrix, np.array(low, float)
