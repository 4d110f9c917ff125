"""Conflicts: minimal sets of buffers too large for a memory together.

If an assignment of buffers to memories has no layout, the integer program behind (`memory.placement_program`) has to
learn why. A cut on all buffers in a memory excludes hardly more than this assignment; a cut on a few buffers excludes
every assignment that contains them (combinatorial Benders cuts: Codato and Fischetti, Operations Research 54(4), 2006).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm_cascade.memory import milp
from tvm_cascade.memory.allocate import allocate
from tvm_cascade.memory.bounds import max_live
from tvm_cascade.memory.problem import OffsetConstraint, Problem
from tvm_cascade.search_monitor import cached, monitor

_STEPS = 4  # consecutive ones whose buffers are looked at together
_NODES = 200  # of each proof


def conflicts(problem: Problem, capacity: int) -> list[list[int]]:
    """Find minimal sets of buffers, by position, that provably have no layout within `capacity` bytes.

    The sets span as few consecutive steps as possible. Return an empty list if there is none within `_STEPS` steps.
    """
    buffers = problem.buffers
    starts = sorted({b.lower for b in buffers})
    for count in range(1, _STEPS + 1):
        found = list[list[int]]()
        for first, last in zip(starts, starts[count - 1 :], strict=False):
            held = [i for i, b in enumerate(buffers) if b.lower <= last and first < b.upper]
            known = any(set(one) <= set(held) for one in found)
            if not known and _impossible(problem, held, capacity):
                found.append(_fewest(problem, held, capacity))
        if found:
            return found
    return []


def _fewest(problem: Problem, held: list[int], capacity: int) -> list[int]:
    """Drop the buffers not needed for the conflict, the smallest first."""
    for i in sorted(held, key=lambda i: (problem.buffers[i].size, i)):
        fewer = [k for k in held if k != i]
        if _impossible(problem, fewer, capacity):
            held = fewer
    return held


def part(problem: Problem, held: Sequence[int]) -> Problem:
    """Copy the problem with only the buffers at some positions."""
    buffers = tuple(problem.buffers[i] for i in held)
    ids = {b.id for b in buffers}
    pairs = tuple(f for f in problem.offset_constraints if f.reader in ids and f.writer in ids)
    return Problem(buffers, None, pairs)


def _impossible(problem: Problem, held: Sequence[int], capacity: int) -> bool:
    """Test whether these buffers provably have no layout."""
    own = part(problem, held)
    return max_live(own) > capacity or _proven(_plain(own), capacity)


def _plain(problem: Problem) -> Problem:
    """Normalize names, ids and step lengths of a problem, so equal problems are proven once."""
    number = {b.id: k for k, b in enumerate(problem.buffers)}
    step = {t: k for k, t in enumerate(sorted({t for b in problem.buffers for t in (b.lower, b.upper)}))}
    buffers = (replace(b, id=number[b.id], lower=step[b.lower], upper=step[b.upper], name="") for b in problem.buffers)
    pairs = (OffsetConstraint(number[f.reader], number[f.writer], f.distance) for f in problem.offset_constraints)
    return Problem(tuple(buffers), None, tuple(pairs))


@cached(maxsize=4096)
def _proven(problem: Problem, capacity: int) -> bool:
    """Test whether buffers provably have no layout although their live bytes fit."""
    if allocate(problem, optimise=False).peak <= capacity:
        return False
    found = milp.impossible(problem, capacity, _NODES)
    monitor().over()  # what a limit cut short is not kept
    return found
