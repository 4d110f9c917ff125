"""A network with a sliding window as only input: tensors as rows along the time axis, operators as windows."""

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
    """An operator with a single output.

    Its rows do not depend on their position in the output, except through padding: so the operator commutes with a
    shift. An operator without this property has an output without rows.
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
        """Return each tensor's computing operator; none for the input."""
        return {step.output: step for step in self.steps}

    @cached_property
    def carrier(self) -> int:
        """Return the tensor to keep in place of the input's rows.

        This is the input itself, or the last tensor of a chain of `free` operators, each computing row by row, as long
        as rows do not grow in bytes.
        """
        tensor = self.input
        while tensor not in self.outputs and len(self.readers[tensor]) == 1:
            (step, position), *_ = self.readers[tensor]
            same = step.windows[position] == IDENTITY and len(step.inputs) == 1
            own, made = self.series[tensor], self.series[step.output]
            if not (step.free and same and made.rows == own.rows and made.row_bytes <= own.row_bytes):
                break
            tensor = step.output
        return tensor

    @cached_property
    def readers(self) -> tuple[tuple[tuple[Step, int], ...], ...]:
        """Return each tensor's reading operators, each with the input's position."""
        found: list[list[tuple[Step, int]]] = [[] for _ in self.series]
        for step in self.steps:
            for position, tensor in enumerate(step.inputs):
                found[tensor].append((step, position))
        return tuple(tuple(f) for f in found)

    def macs(self, step: Step, rows: Rows | None = None) -> int:
        """Count the multiply-accumulates for rows of an operator's output (None: all rows), padding not counted."""
        height, source = self.series[step.output].rows, self.series[step.inputs[0]].rows
        if height is None or source is None:
            return step.macs
        window = self.window(step, 0)
        return step.macs * sum(window.taps(y, source) for y in range(*(rows or (0, height)))) if step.macs else 0

    def final_readers(self, tensor: int) -> list[tuple[Step, int]]:
        """List the operators that read a tensor. A `free` reader is replaced by the readers of the reader's output."""
        found: list[tuple[Step, int]] = []
        for step, position in self.readers[tensor]:
            passes = step.free and self.series[step.output].rows is not None and step.windows[position] == IDENTITY
            found += self.final_readers(step.output) if passes else [(step, position)]
        return found

    def is_final(self, tensor: int) -> bool:
        """Return True if a tensor is an output, directly or behind `free` operators."""
        behind = (s.output for s, k in self.readers[tensor] if s.free and s.windows[k] == IDENTITY)
        return tensor in self.outputs or any(self.is_final(t) for t in behind)

    def window(self, step: Step, position: int) -> Window:
        """Return the window by which an operator reads input `position`, a tensor with rows.

        If no window is known, or the output has no rows, the operator reads all rows: the window covers the whole
        input.
        """
        rows = self.series[step.inputs[position]].rows
        assert rows is not None
        known = step.windows[position]
        return Window.whole(rows) if known is None or self.series[step.output].rows is None else known


def read_rows(window: Window, rows: Rows, height: int) -> Rows:
    """Return the rows of an input with `height` rows read for the output's `rows`: at least one, although all may be
    padding.
    """
    first = min(max(window.first(rows[0]), 0), height - 1)
    last = window.first(rows[1] - 1) + window.span
    return first, max(first + 1, min(last, height))


def merged(ranges: Sequence[Rows]) -> tuple[Rows, ...]:
    """Merge ranges that overlap or touch; return the union, ascending."""
    union: list[Rows] = []
    for first, end in sorted(r for r in ranges if r[0] < r[1]):
        if union and first <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((first, end))
    return tuple(union)


def without(ranges: Sequence[Rows], hole: Rows) -> tuple[Rows, ...]:
    """Remove the rows in `hole` from ranges `[first, end)`."""
    below = [(first, min(end, hole[0])) for first, end in ranges]
    above = [(max(first, hole[1]), end) for first, end in ranges]
    return merged([*below, *above])
