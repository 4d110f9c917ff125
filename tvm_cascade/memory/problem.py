"""Problem and solution of arena allocation: buffers with lifetimes in, offsets out.

Times are steps of a schedule, lifetimes half-open `[lower, upper)`, sizes and offsets bytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Buffer:
    """A memory block, not to be moved while live."""

    id: int
    size: int  # bytes
    lower: int  # first step of its lifetime
    upper: int  # first step after its lifetime
    alignment: int = 1  # bytes
    offset: int | None = None  # bytes: the buffer must lie there (it is pinned); None: anywhere
    name: str = ""


@dataclass(frozen=True, slots=True)
class OffsetConstraint:
    """Two buffers live at once that may still share bytes: a dying input, and the overwriting output.

    A valid layout keeps them disjoint, or has `offset(reader) - offset(writer) >= distance`, in bytes: then the writer
    overwrites only bytes already read for the last time.
    """

    reader: int  # buffer that is consumed front to back
    writer: int  # buffer that is filled front to back
    distance: int  # bytes, may be negative


@dataclass(frozen=True, slots=True)
class Problem:
    """Buffers to lay out in an arena, with at most `capacity` bytes if given."""

    buffers: tuple[Buffer, ...]
    capacity: int | None = None  # bytes
    offset_constraints: tuple[OffsetConstraint, ...] = ()


@dataclass(frozen=True, slots=True)
class Allocation:
    """A solution: the offsets, in the order of `Problem.buffers`."""

    offsets: tuple[int, ...]
    peak: int  # bytes: max of offset + size
    bound: int  # bytes: no allocation is smaller
    optimal: bool  # peak proven minimal
    seconds: float = 0.0  # spent on it
