"""Allocation validator: checks offsets against the problem's definition; shares no code with the solvers."""

from __future__ import annotations

from collections.abc import Mapping

from tvm_cascade.errors import ValidationError
from tvm_cascade.memory.problem import Allocation, Buffer, OffsetConstraint, Problem


def validate(problem: Problem, allocation: Allocation) -> None:
    """Check that `allocation` solves `problem`.

    Buffers live together must be disjoint, or obey every offset constraint between them. Offsets must be aligned and
    pinned buffers in place. The peak must be the end of the highest buffer, within the capacity, and not below the
    stated bound.

    Raises
    ------
    ValidationError
        One of these does not hold; the message names the buffers.
    """
    buffers, offsets = problem.buffers, allocation.offsets
    if len(buffers) != len(offsets):
        raise ValidationError(f"{len(buffers)} buffers and {len(offsets)} offsets")
    for buffer, offset in zip(buffers, offsets, strict=True):
        _check_place(buffer, offset)
    _check_pairs(problem, offsets)
    top = max((o + b.size for b, o in zip(buffers, offsets, strict=True)), default=0)
    if top != allocation.peak:
        raise ValidationError(f"the peak is {top} bytes, the allocation says {allocation.peak}")
    if problem.capacity is not None and top > problem.capacity:
        raise ValidationError(f"the peak of {top} bytes exceeds the capacity of {problem.capacity}")
    if allocation.bound > top:
        raise ValidationError(f"the bound of {allocation.bound} bytes exceeds the peak of {top}")


def _check_place(buffer: Buffer, offset: int) -> None:
    if offset < 0 or offset % buffer.alignment:
        raise ValidationError(f"buffer {buffer.id} lies at {offset}, not a multiple of {buffer.alignment}")
    if buffer.offset is not None and offset != buffer.offset:
        raise ValidationError(f"buffer {buffer.id} is pinned at {buffer.offset} and lies at {offset}")


def _check_pairs(problem: Problem, offsets: tuple[int, ...]) -> None:
    place = {b.id: o for b, o in zip(problem.buffers, offsets, strict=True)}
    excused: dict[tuple[int, int], list[OffsetConstraint]] = {}
    for f in problem.offset_constraints:
        key = (min(f.reader, f.writer), max(f.reader, f.writer))
        excused.setdefault(key, []).append(f)
    by_birth = sorted(problem.buffers, key=lambda b: b.lower)
    for i, a in enumerate(by_birth):
        for b in by_birth[i + 1 :]:
            if b.lower >= a.upper:
                break  # nor is any that is born later live with `a`
            if a.lower >= b.upper:
                continue
            if not (place[a.id] < place[b.id] + b.size and place[b.id] < place[a.id] + a.size):
                continue
            _check_overlap(a, b, excused.get((min(a.id, b.id), max(a.id, b.id)), []), place)


def _check_overlap(a: Buffer, b: Buffer, follows: list[OffsetConstraint], place: Mapping[int, int]) -> None:
    if not follows:
        raise ValidationError(f"buffers {a.id} and {b.id} are live together and share bytes")
    for f in follows:
        if place[f.reader] - place[f.writer] < f.distance:
            raise ValidationError(
                f"buffer {f.writer} overtakes {f.reader}: {place[f.reader] - place[f.writer]} bytes apart, "
                f"{f.distance} needed"
            )
