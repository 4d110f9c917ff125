"""The values of a `.tflite` network during conversion: states between calls, and list parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tvm_cascade.importers.tflite.model import MalformedModel
from tvm_cascade.passes.main_rewriting import Value, relax
from tvm_cascade.tensor_spec import State

Key = tuple[bytes, bytes]  # container and name, or "" and the number of a recurrent operator's tensor


@dataclass(frozen=True, slots=True)
class FileState:
    """A state in a file: its name, and its main-subgraph tensor at the start of a call."""

    name: str
    tensor: int
    key: Key


def tensor_key(tensor: int) -> Key:
    """Return the key for a recurrent operator's state tensor."""
    return b"", str(tensor).encode()


class Variables:
    """A network's variables during conversion: arrays or Relax values."""

    def __init__(
        self, states: tuple[FileState, ...] = (), stateless: bool = False, unrolled: bool = False, like: str = ""
    ) -> None:
        """Set up the variables. With `stateless`, recurrent operators restart in every call, in loops at the first
        step. Loops are unrolled if `unrolled`; `like` names the library for rounding, see `lower_quantized.LIKE_ATTR`.
        """
        self.stateless, self.unrolled, self.like = stateless, unrolled, like
        self.states: Mapping[Key, FileState] = {state.key: state for state in states}
        self.initial: dict[Key, np.ndarray] = {}
        self.now: dict[Key, Value] = {}  # what the states hold, of those that were read or assigned
        self.at_start = False  # while what CALL_ONCE runs is converted

    def declared(self, sizes: Mapping[str, int]) -> tuple[State, ...]:
        """Return the states with initial values; `sizes` are their bytes by name."""
        found: list[State] = []
        for key, state in self.states.items():
            first = self.initial.get(key)
            data = b"" if first is None or not first.any() else np.ascontiguousarray(first).tobytes()
            if data and len(data) != sizes[state.name]:
                raise MalformedModel(
                    f"variable {state.name} is set to {len(data)} bytes and read as {sizes[state.name]}"
                )
            found.append(State(state.name, data))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive list rows: a constant, or a value with rows along its first axis."""

    rows: int
    value: np.ndarray | Value

    def cut(self, begin: int, end: int) -> np.ndarray | Value:
        """Return the rows from `begin` to `end`."""
        if end - begin == self.rows:
            return self.value
        if isinstance(self.value, np.ndarray):
            return self.value[begin:end]
        return relax.op.strided_slice(self.value, axes=[0], begin=[begin], end=[end])

    def expression(self) -> Value:
        """Return the part as a Relax value."""
        constant = isinstance(self.value, np.ndarray)
        return relax.const(np.ascontiguousarray(self.value), str(self.value.dtype)) if constant else self.value
