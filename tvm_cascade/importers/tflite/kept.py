"""What a network of a `.tflite` file keeps between calls, while it is converted: records for `importers/tflite/states.py`, and
how recurrent operators find and leave it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.tflite.functions import FunctionConverters
from tvm_cascade.importers.tflite.model import MalformedModel
from tvm_cascade.importers.tflite.moves import Value, relax, zero_point_of
from tvm_cascade.importers.tflite.site import UnsupportedForm
from tvm_cascade.tensor_spec import State

Key = tuple[bytes, bytes]  # container and name, or "" and the number of a recurrent operator's tensor


@dataclass(frozen=True, slots=True)
class FileState:
    """A state of a file: its name, and the tensor of the main subgraph that holds it when a call begins."""

    name: str
    tensor: int
    key: Key


def tensor_key(tensor: int) -> Key:
    """The key of the state that a recurrent operator keeps in a tensor."""
    return b"", str(tensor).encode()


class Variables:
    """What the variables of a network hold while it is converted: an array, or a value of Relax."""

    def __init__(self, states: tuple[FileState, ...] = (), stateless: bool = False) -> None:
        """With `stateless`, recurrent operators begin every call anew, those in loops with the first step."""
        self.stateless = stateless
        self.states: Mapping[Key, FileState] = {state.key: state for state in states}
        self.initial: dict[Key, np.ndarray] = {}
        self.now: dict[Key, Value] = {}  # what the states hold, of those that were read or assigned
        self.at_start = False  # while what CALL_ONCE runs is converted

    def declared(self, sizes: Mapping[str, int]) -> tuple[State, ...]:
        """The states, with what they hold before the first call; `sizes` are their bytes by name."""
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


class KeptConverters(FunctionConverters):
    """How converters of recurrent operators find and leave their states. Steps of a loop go on where the one before ended."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.variables = Variables()

    def held_state(self, tensor: stock.TensorWrapper) -> Value | None:
        """What a recurrent operator finds in the tensor of a state; None where it begins anew in every call."""
        key, held = self._key_of(tensor), self.variables
        if self.nested and not held.stateless:
            raise UnsupportedForm(
                "a recurrent operator inside of a loop or a branch, whose state would be kept from call to call: take it out, or "
                "let every call begin anew (--stateless)"
            )
        if not self.nested and key not in held.states:
            return None
        if key not in held.now:
            zero = zero_point_of(tensor) if tensor.qnn_params else 0
            first = np.full(self._shape(tensor), zero, self.get_tensor_type_str(tensor.tensor.Type()))
            held.initial[key] = first
            held.now[key] = relax.const(first, str(first.dtype)) if self.nested else self.get_expr(tensor.tensor_idx)
        return held.now[key]

    def keep_state(self, tensor: stock.TensorWrapper, value: Value) -> None:
        """Let the tensor of a state hold `value` for the next call."""
        self.variables.now[self._key_of(tensor)] = value

    def _key_of(self, tensor: stock.TensorWrapper) -> Key:
        """The key of a state: in a loop or branch, which has tensors of its own, with where its subgraph lies in the file."""
        own = tensor_key(tensor.tensor_idx)
        return (str(self.subgraph._tab.Pos).encode(), own[1]) if self.nested else own
