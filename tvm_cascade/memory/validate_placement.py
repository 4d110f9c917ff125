"""Placement validator: checks a placement in several memories against its problem; shares no code with the solver."""

from __future__ import annotations

from math import isclose

from tvm_cascade.errors import ValidationError
from tvm_cascade.memory.placement import Placement, PlacementProblem
from tvm_cascade.memory.problem import Allocation, Problem
from tvm_cascade.memory.validate import validate


def validate_placement(asked: PlacementProblem, placed: Placement) -> None:
    """Raise `ValidationError` unless `placed` solves `asked`.

    Every buffer lies in a single memory, joined buffers in the same; every memory is a valid allocation within
    capacity, with the stated peak, and the sum keeps the cap; the cycles equal the accesses' cost, and the bound does
    not exceed the result.
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
    _validate_copies(asked, placed)
    if asked.most is not None and asked.bytes(placed.peaks, placed.copies) > asked.most:
        raise ValidationError(f"all memories together hold more than {asked.most} bytes")
    paid = 0.0 if asked.weights is None or asked.weights.flash is None else placed.saved
    reached = cycles - paid if asked.objective == "time" else sum(placed.peaks)
    if placed.bound > reached + abs(reached) * 1e-9 + 1e-6:
        raise ValidationError(f"the bound of {placed.bound} exceeds {reached}")


def _validate_copies(asked: PlacementProblem, placed: Placement) -> None:
    """Validate the copied weights: each copied once, within the limits, beside the blocks, and saving as stated."""
    weights, copies = asked.weights, placed.copies
    if weights is None or not copies:
        if copies or placed.saved:
            raise ValidationError("weights are copied that were not to be")
        return
    ram, taken = asked.memories[copies.memory], [*copies.hot, *copies.prefetched]
    if len(set(taken)) < len(taken):
        raise ValidationError("a weight is copied twice")
    sizes = {k: (weights.weights[k].size + 7) // 8 * 8 for k in taken}
    segments = {weights.weights[k].segment for k in copies.prefetched}
    if None in segments:
        raise ValidationError("a weight is prefetched that several segments read")
    half = max(
        (sum(sizes[k] for k in copies.prefetched if weights.weights[k].segment == s) for s in segments), default=0
    )
    hot = sum(sizes[k] for k in copies.hot)
    if hot > weights.hot or 2 * half > weights.prefetched:
        raise ValidationError(f"{hot} bytes of hot and {2 * half} of prefetched weights exceed what they may take")
    beside = (placed.peaks[copies.memory] + 7) // 8 * 8
    if ram.capacity is not None and beside + hot + 2 * half > ram.capacity:
        raise ValidationError(f"copies of weights lie behind the end of {ram.name}")
    wait, saved = weights.flash or 0.0, 0.0
    for k in taken:
        weight, again = weights.weights[k], k in copies.prefetched
        saved += weight.reads * wait - weight.reads * ram.cycles_per_byte
        saved -= weight.size * (wait + ram.cycles_per_byte + weights.copying) if again else 0.0
    if not isclose(saved, placed.saved, rel_tol=1e-9, abs_tol=1e-6):
        raise ValidationError(f"copies of weights save {saved} cycles, the placement says {placed.saved}")
