"""Inputs and outputs of a model: `TensorSpec` records, from the model's file to the compiled network."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

import numpy as np

from tvm_cascade.errors import UsageError
from tvm_cascade.fixed_inputs import FixedInput
from tvm_cascade.graph import Graph

__all__ = ["Domain", "IoSpec", "State", "TensorSpec", "free_name", "graph_io", "named_apart", "unique_names"]


@dataclass(frozen=True, slots=True)
class Domain:
    """The real numbers for which the reader of an input is defined, ends included."""

    low: float = -inf
    high: float = inf
    nonzero: bool = False  # all but 0


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output, with the element type and layout of the model's file.

    Importers fill in the first five fields, `emit.placement` the rest.
    """

    name: str  # in the model's file, any text; made unique among the inputs or the outputs (`named_apart`)
    shape: tuple[int, ...]
    dtype: str  # numpy's name of the element type
    scale: float | None = None  # real = scale * (stored - zero_point); None where the tensor is not quantized
    zero_point: int | None = None
    c_name: str = ""  # member of `struct <network>_inputs` or `_outputs`
    offset: int | None = None  # bytes from the start of the arena; None if streamed, or before placement
    stream_axis: int | None = None  # of an input that the network asks for row by row: the axis of its rows
    stream_shape: tuple[int, ...] = ()  # of such an input: the shape that `stream_axis` counts, where it is not `shape`
    passes: int = 1  # of such an input: how often the network asks for it from the first row to the last
    extent: int | None = None  # of an input of indices: they lie below it; None for other inputs
    window: int = 0  # of an input that takes new rows alone: the rows of the window that they end; 0 for other inputs
    window_axis: int = 1  # of such an input: the axis of its rows
    domain: Domain | None = None  # of an input: the numbers that it is asked for; None where any will do
    file_name: str = ""  # in the model's file, where `name` had to be made unique

    @property
    def bytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def streamed(self) -> bool:
        return self.stream_axis is not None

    @property
    def row_bytes(self) -> int:
        """Return the bytes in a streamed input's row, all planes together."""
        return self.bytes if self.stream_axis is None else self.bytes // self.row_shape[self.stream_axis]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape with the streamed rows: the input's, or the shape after the first reshape."""
        return self.stream_shape or self.shape

    @property
    def type_text(self) -> str:
        """Format element type and shape, as in `int8[1, 49, 10, 1]`."""
        return f"{self.dtype}{list(self.shape)}"

    def check(self, array: np.ndarray, label: str = "") -> None:
        """Raise `UsageError` unless `array` has the element type and the shape of this input; `label` replaces its name."""
        if str(array.dtype) != self.dtype or array.shape != self.shape:
            given = f"{array.dtype}{list(array.shape)}"
            raise UsageError(f"input '{label or self.name}' is {given}, the network wants {self.type_text}")


@dataclass(frozen=True, slots=True)
class Cut:
    """A network's cut from its file: tensor names as asked for; empty if the network is whole."""

    until: tuple[str, ...] = ()  # tensors that are the outputs
    start: tuple[str, ...] = ()  # tensors that are inputs

    def __bool__(self) -> bool:
        return bool(self.until or self.start)


WHOLE = Cut()


@dataclass(frozen=True, slots=True)
class State:
    """A tensor kept from one call to the next: a parameter and a result of `main`."""

    name: str  # as the plan and the emitted network call it
    initial: bytes = b""  # of all its elements before the first call; empty: zeros
    returned: str = ""  # the output of the model's file that gives it back; empty where the file keeps it itself
    form: tuple[int, ...] = ()  # shape of its last elements in the file, which lacks the first; empty: its own


@dataclass(frozen=True, slots=True)
class IoSpec:
    """Inputs as `main`'s parameters, outputs as `main`'s results are ordered.

    The last `len(states)` inputs and as many outputs are states, pair by pair: a call reads a state from the input and
    writes it to the output at the same position, with the same shape and type.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    cut: Cut = WHOLE  # of the model's file
    states: tuple[State, ...] = ()
    fixed: tuple[FixedInput, ...] = ()  # inputs of the file that are no inputs of the network
    like: str = ""  # the library whose rounding was asked for; empty: LiteRT's

    @property
    def own_inputs(self) -> tuple[TensorSpec, ...]:
        """Return the inputs without the states."""
        return self.inputs[: len(self.inputs) - len(self.states)]

    @property
    def own_outputs(self) -> tuple[TensorSpec, ...]:
        """Return the outputs without the states."""
        return self.outputs[: len(self.outputs) - len(self.states)]

    @property
    def state_specs(self) -> tuple[TensorSpec, ...]:
        """Return the states as inputs, under the states' names."""
        specs = self.inputs[len(self.own_inputs) :]
        return tuple(replace(s, name=state.name) for s, state in zip(specs, self.states, strict=True))


def free_name(name: str, taken: Container[str]) -> str:
    """Return `name`, extended by underscores until not in `taken`."""
    while name in taken:
        name += "_"
    return name


def unique_names(names: Iterable[str]) -> list[str]:
    """Make names unique: a repeated name gets the position as a suffix: `y, y` become `y, y_1`."""
    made: list[str] = []
    for position, name in enumerate(names):
        made.append(free_name(name if name not in made else f"{name}_{position}", made))
    return made


def named_apart(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Give inputs or outputs unique names."""
    pairs = zip(specs, unique_names(s.name for s in specs), strict=True)
    return tuple(s if s.name == name else replace(s, name=name, file_name=s.name) for s, name in pairs)


def graph_io(graph: Graph) -> IoSpec:
    """Build inputs and outputs from a graph's names, for networks that come from no file."""
    sides = [
        tuple(TensorSpec(graph.tensors[t].name, graph.tensors[t].shape, graph.tensors[t].dtype) for t in side)
        for side in (graph.inputs, graph.outputs)
    ]
    return IoSpec(sides[0], sides[1])
