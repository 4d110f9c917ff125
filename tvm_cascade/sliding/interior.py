"""The rows of every tensor that are the same function of the stream at every window position.

A row is interior if it depends on rows of the input alone, and no padding. A tensor's interior rows are a single range
[first, end). With a stride of S input rows to a row, and `hop` rows a frame, row r in a frame is row r + s in the frame
p frames ago, with p * hop = s * S; the least such p, the period, is 1 if the strides divide the hop. So all of [first,
end - s) existed before, as [first + s, end).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from tvm_cascade.graph import Window
from tvm_cascade.sliding.network import Rows, SlidingNetwork, Step


@dataclass(frozen=True, slots=True)
class Interior:
    """The interior rows of a tensor."""

    first: int
    end: int
    stride: Fraction = Fraction(1)  # rows of the network's input to a row

    def period(self, hop: int) -> int:
        """Return the frames after which this tensor's rows have moved by a whole number."""
        return (hop / self.stride).denominator

    def shift(self, hop: int) -> int:
        """Return the rows moved in a period."""
        return int(self.period(hop) * hop / self.stride)

    def reusable(self, hop: int) -> Rows:
        """Return the rows that existed a period ago; an empty range if there are none."""
        return self.first, max(self.first, self.end - self.shift(hop))


@dataclass(frozen=True)
class Reach:
    """The result of `interiors`."""

    interiors: tuple[Interior | None, ...]  # by tensor; None: no row of it is
    reasons: dict[int, str]  # by tensor without interior rows, of which its operator read some: why

    def reusable(self, tensor: int, hop: int) -> Rows:
        """Return a tensor's rows that an earlier frame had; an empty range if there are none."""
        interior = self.interiors[tensor]
        return (0, 0) if interior is None else interior.reusable(hop)


def interiors(network: SlidingNetwork) -> Reach:
    """Compute the interior rows of every tensor."""
    rows = network.series[network.input].rows
    assert rows is not None
    found: list[Interior | None] = [None] * len(network.series)
    found[network.input] = Interior(0, rows)
    reasons: dict[int, str] = {}
    for step in network.steps:
        made = _interior(network, step, found)
        if isinstance(made, Interior):
            found[step.output] = made
        elif any(found[t] is not None for t in step.inputs):
            reasons[step.output] = made
    return Reach(tuple(found), reasons)


def _interior(network: SlidingNetwork, step: Step, known: list[Interior | None]) -> Interior | str:
    """Compute the interior rows of an operator's output, or return why there are none."""
    rows = network.series[step.output].rows
    if rows is None:
        return "reads all rows at once"
    found: list[Interior] = []
    for tensor, window in zip(step.inputs, step.windows, strict=True):
        source = known[tensor]
        if source is None or window is None or window.stride == 0:
            return "mixes rows with values that depend on the whole window"
        if window.denominator != 1:
            return "makes several rows of one"
        found.append(_through(window, source, rows))
    if len({i.stride for i in found}) > 1:
        return "combines inputs that slide by different strides"
    first, end = max(i.first for i in found), min(i.end for i in found)
    return Interior(first, end, found[0].stride) if first < end else "reads padding for every row"


def _through(window: Window, source: Interior, rows: int) -> Interior:
    """Return the output rows made only from interior rows of an input."""
    first = -(-(source.first + window.padding) // window.stride)
    end = (source.end - window.span + window.padding) // window.stride + 1
    return Interior(max(first, 0), min(end, rows), source.stride * window.stride)
