"""`Site`, an operator of a Relax function as seen by rules, and `Sliding`, a rule's answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm_cascade.graph import IDENTITY, Window
from tvm_cascade.passes.integer.untyped import Call, Value, relax
from tvm_cascade.sliding.network import Rows


class NotSliding(Exception):
    """Raised by a rule if an operator's rows depend on all rows, or are no rows; then the whole output is computed in
    every frame.
    """


@dataclass(frozen=True)
class Site:
    """A call with the time axes of the inputs."""

    call: Call
    inputs: tuple[Value, ...]  # tensors with rows, in the order of the arguments, those of tuples included
    axes: tuple[int, ...]  # their time axes
    constants: tuple[Value, ...]  # tensors that do not depend on the network's input
    shape: tuple[int, ...]  # of the output
    dtype: str  # of the output

    @property
    def name(self) -> str:
        """Return the operator's name without `relax.` and namespace."""
        return str(self.call.op.name).rpartition(".")[2]

    @property
    def rows(self) -> int:
        """Count the input rows."""
        return shape_of(self.inputs[0])[self.axes[0]]

    def is_input(self, position: int) -> bool:
        """Test whether argument `position` is a tensor with rows."""
        return len(self.call.args) > position and any(self.call.args[position].same_as(v) for v in self.inputs)


Part = Callable[[Sequence[Value], Rows, Sequence[Rows]], Value]
"""A value of the output's rows, from the call's arguments with the rows that it reads in place of the inputs, and which
rows of each these are."""


@dataclass(frozen=True)
class Sliding:
    """The way an operator slides: the output's time axis, the windows, and how to compute some output rows."""

    axis: int
    windows: tuple[Window, ...]
    part: Part
    free: bool = False  # see `tvm_cascade.sliding.Step`
    macs: int = 0  # as in `Step`


def shape_of(value: Value) -> tuple[int, ...]:
    """Return the static shape of a tensor."""
    return tuple(int(d) for d in value.ty.shape.values)


def same_call(site: Site) -> Part:
    """Return the same operator on rows: for operators with attributes that do not mention the time axis."""

    def part(args: Sequence[Value], _rows: Rows, _read: Sequence[Rows]) -> Value:
        call = site.call
        return relax.Call(call.op, list(args), call.attrs, call.ty_args)

    return part


def row_for_row(site: Site, axis: int, part: Part | None = None, free: bool = False, macs: int = 0) -> Sliding:
    """Describe an operator that computes every row from the same row of the inputs."""
    return Sliding(axis, (IDENTITY,) * len(site.inputs), part or same_call(site), free, macs)
