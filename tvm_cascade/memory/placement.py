"""A placement of buffers in several memories: what is asked, and what is answered (`memory.pools`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_cascade.machine import Ram
from tvm_cascade.memory.problem import Problem
from tvm_cascade.memory.weights import ALIGN, NO_COPIES, WeightCopies, WeightProblem


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """Buffers, the memories that they may lie in, fastest first, and what an access of each costs."""

    problem: Problem  # its capacity is ignored
    memories: tuple[Ram, ...]
    accessed: tuple[float, ...]  # bytes read and written in an inference, by position of the buffer
    joined: tuple[tuple[int, int], ...] = ()  # positions of buffers that lie in the same memory
    objective: str = "time"  # or "bytes"
    weights: WeightProblem | None = None  # that may be copied
    most: int | None = None  # bytes of all memories together, with copies of weights; None: as many as they have

    def bytes(self, peaks: Sequence[int], copies: WeightCopies) -> int:
        """Bytes of all memories, of which blocks take `peaks`."""
        if self.weights is None or not copies:
            return sum(peaks)
        return sum(peaks) + -peaks[copies.memory] % ALIGN + self.weights.bytes(copies)


@dataclass(frozen=True, slots=True)
class Placement:
    """The memory and offset of every buffer of the problem."""

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
        """Bytes of all memories."""
        return sum(self.peaks)


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """A plan that was placed in memories: what was asked, where its blocks lie, and what an inference takes."""

    placement: Placement
    problem: PlacementProblem
    cycles: float  # arithmetic, accesses of memories and of flash


def fills(asked: PlacementProblem) -> bool:
    """Whether copies of weights take what buffers leave: where bytes are the objective, or a read of flash has no cost."""
    return asked.weights is not None and (asked.objective != "time" or asked.weights.flash is None)
