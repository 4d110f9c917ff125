"""Placement validator: checks a placement in several memories against its problem; shares no code with the solver."""

from __future__ import annotations

from math import isclose

from tvm_cascade.errors import ValidationError
from tvm_cascade.memory.pools import Placement, PlacementProblem
from tvm_cascade.memory.problem import Allocation, Problem
from tvm_cascade.memory.validate import validate


def validate_placement(asked: PlacementProblem, placed: Placement) -> None:
    """Raise `ValidationError` unless `placed` solves `asked`.

    Every buffer lies in one memory, joined ones in the same; every memory is a valid allocation within its capacity, of the
    peak that is stated; the cycles are those of the accesses, and the bound is not above what was reached.
    """
    buffers = asked.problem.buffers
    if not len(buffers) == len(placed.chosen) == len(placed.offsets) or len(placed.peaks) != len(asked.memories):
        raise ValidationError("a buffer or a memory is left out")
    for a, b in asked.joined:
        if placed.chosen[a] != placed.chosen[b]:
            raise ValidationError(f"buffers {buffers[a].id} and {buffers[b].id} lie in two memories")
    cycles = 0.0
    for m, ram in enumerate(asked.memories):
        own = [k for k, c in enumerate(placed.chosen) if c == m]
        ids = {buffers[k].id for k in own}
        among = tuple(f for f in asked.problem.offset_constraints if {f.reader, f.writer} <= ids)
        part = Problem(tuple(buffers[k] for k in own), ram.capacity, among)
        validate(part, Allocation(tuple(placed.offsets[k] for k in own), placed.peaks[m], 0, False))
        cycles += sum(asked.accessed[k] for k in own) * ram.cycles_per_byte
    if not isclose(cycles, placed.cycles, rel_tol=1e-9, abs_tol=1e-6):
        raise ValidationError(f"the accesses cost {cycles} cycles, the placement says {placed.cycles}")
    reached = cycles if asked.objective == "time" else sum(placed.peaks)
    if placed.bound > reached * (1 + 1e-9) + 1e-6:
        raise ValidationError(f"the bound of {placed.bound} exceeds {reached}")
