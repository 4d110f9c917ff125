"""A network whose only input is a window that slides: its tensors as rows along the time axis, its operators as windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm_cascade.graph import IDENTITY, Window

Rows = tuple[int, int]
"""Rows [first, end) of a tensor."""


@dataclass(frozen=True, slots=True)
class Series:
    """A tensor. Constants do not appear."""

    name: str
    rows: int | None  # along the time axis; None: it has none, and all of it changes with every frame
    row_bytes: int = 0  # of one row; of the whole tensor where there are no rows


@dataclass(frozen=True, slots=True)
class Step:
    """An operator with one output.

    Its rows do not depend on where in the output they stand, but for the padding that they read: that is what makes it
    commute with a shift. An operator of which this does not hold has an output without rows.
    """

    name: str  # for messages
    inputs: tuple[int, ...]
    output: int
    windows: tuple[Window | None, ...]  # by input; None: every row of the output depends on all of the input
    macs: int = 0  # multiply-accumulates of a tap of the first window for a row; of all, where the output has no rows
    free: bool = False  # moves or converts values only: computed wherever it is read, its rows are never kept
    total_bytes: int = 0  # of the sum of all rows, where the output is a function of that, exact in integers; else 0
    terms: int = 0  # elements of a row that such a sum adds


@dataclass(frozen=True)
class SlidingNetwork:
    """Tensors and operators in topological order; tensors are referred to by index."""

    series: tuple[Series, ...]
    steps: tuple[Step, ...]
    input: int
    outputs: tuple[int, ...]

    @cached_property
    def producer(self) -> dict[int, Step]:
        """The operator that computes each tensor; none for the input."""
        return {step.output: step for step in self.steps}

    @cached_property
    def readers(self) -> tuple[tuple[tuple[Step, int], ...], ...]:
        """For each tensor the operators that read it, each with the position of the input."""
        found: list[list[tuple[Step, int]]] = [[] for _ in self.series]
        for step in self.steps:
            for position, tensor in enumerate(step.inputs):
                found[tensor].append((step, position))
        return tuple(tuple(f) for f in found)

    def macs(self, step: Step, rows: Rows | None = None) -> int:
        """Multiply-accumulates of rows of an operator's output (None: of all), padding not counted."""
        height, source = self.series[step.output].rows, self.series[step.inputs[0]].rows
        if height is None or source is None:
            return step.macs
        window = self.window(step, 0)
        return step.macs * sum(window.taps(y, source) for y in range(*(rows or (0, height)))) if step.macs else 0

    def final_readers(self, tensor: int) -> list[tuple[Step, int]]:
        """The operators that read a tensor, those behind `free` ones in the place of these."""
        found: list[tuple[Step, int]] = []
        for step, position in self.readers[tensor]:
            passes = step.free and self.series[step.output].rows is not None and step.windows[position] == IDENTITY
            found += self.final_readers(step.output) if passes else [(step, position)]
        return found

    def is_final(self, tensor: int) -> bool:
        """Whether a tensor is an output, behind `free` operators or as it is."""
        behind = (s.output for s, k in self.readers[tensor] if s.free and s.windows[k] == IDENTITY)
        return tensor in self.outputs or any(self.is_final(t) for t in behind)

    def window(self, step: Step, position: int) -> Window:
        """The window of an operator's input with rows, where None stands for all of them."""
        rows = self.series[step.inputs[position]].rows
        assert rows is not None
        known = step.windows[position]
        return Window.whole(rows) if known is None or self.series[step.output].rows is None else known


def read_rows(window: Window, rows: Rows, height: int) -> Rows:
    """The rows of an input of `height` rows that the output's `rows` read: at least one, although all may be padding."""
    first = min(max(window.first(rows[0]), 0), height - 1)
    last = window.first(rows[1] - 1) + window.span
    return first, max(first + 1, min(last, height))


def merged(ranges: Sequence[Rows]) -> tuple[Rows, ...]:
    """The union of ranges, ascending, none touching the next."""
    union: list[Rows] = []
    for first, end in sorted(r for r in ranges if r[0] < r[1]):
        if union and first <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((first, end))
    return tuple(union)


def without(ranges: Sequence[Rows], hole: Rows) -> tuple[Rows, ...]:
    """Ranges of rows `[first, end)`, less the rows that lie in `hole`."""
    below = [(first, min(end, hole[0])) for first, end in ranges]
    above = [(max(first, hole[1]), end) for first, end in ranges]
    return merged([*below, *above])
