"""Placement of buffers in several memories: problem and solution (`memory.pools`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_cascade.machine import Ram
from tvm_cascade.memory.problem import Problem
from tvm_cascade.memory.weights import ALIGN, NO_COPIES, WeightCopies, WeightProblem


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """Buffers, the available memories, fastest first, and the access costs."""

    problem: Problem  # its capacity is ignored
    memories: tuple[Ram, ...]
    accessed: tuple[float, ...]  # bytes read and written in an inference, by position of the buffer
    joined: tuple[tuple[int, int], ...] = ()  # positions of buffers that lie in the same memory
    objective: str = "time"  # or "bytes"
    weights: WeightProblem | None = None  # that may be copied
    most: int | None = None  # bytes of all memories together, with copies of weights; None: as many as they have

    def bytes(self, peaks: Sequence[int], copies: WeightCopies) -> int:
        """Count the bytes in all memories, with blocks taking `peaks`."""
        if self.weights is None or not copies:
            return sum(peaks)
        return sum(peaks) + -peaks[copies.memory] % ALIGN + self.weights.bytes(copies)


@dataclass(frozen=True, slots=True)
class Placement:
    """The memory and offset of every buffer in the problem."""

    chosen: tuple[int, ...]  # position of the memory, in the order of `Problem.buffers`
    offsets: tuple[int, ...]  # bytes within the memory
    peaks: tuple[int, ...]  # bytes of each memory
    cycles: float  # of all accesses of buffers
    bound: float  # no placement has a smaller objective: cycles less those saved, or the sum of the peaks
    optimal: bool  # the objective is proven least
    copies: WeightCopies = NO_COPIES  # of weights
    saved: float = 0.0  # cycles by them; negative where it is not known what reads of flash cost

    @property
    def bytes(self) -> int:
        """Count the bytes in all memories."""
        return sum(self.peaks)


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """A plan placed in memories: the problem, the blocks' places, and the cost of an inference."""

    placement: Placement
    problem: PlacementProblem
    cycles: float  # arithmetic, accesses of memories and of flash


def fills(asked: PlacementProblem) -> bool:
    """Return True if copied weights fill the space left by buffers: if bytes are the objective, or flash reads cost
    nothing.
    """
    return asked.weights is not None and (asked.objective != "time" or asked.weights.flash is None)
