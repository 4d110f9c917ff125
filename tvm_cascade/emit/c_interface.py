"""`CInterface`: a network's facts for the emitters of `<name>.h` and `<name>.c`."""

from __future__ import annotations

from dataclasses import dataclass, field

from tvm_cascade.emit.hot_weights import Copies
from tvm_cascade.emit.network import Interface, NetworkMemory
from tvm_cascade.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a memory, with a C name for the first byte."""

    name: str
    start: int  # in offsets of `TensorSpec`
    bytes: int
    kept: bool  # whether it holds states, which networks that share the memory have arrays of their own for


@dataclass(frozen=True, slots=True)
class CInterface:
    """The C interface of a network. Its inputs and outputs have arena offsets and C names (`emit.placement`)."""

    interface: Interface
    steps: int | None = None  # of the plan, where the application's hook is called after each; None without a hook
    copies: Copies = field(default_factory=Copies)  # weights that are copied to RAM and read there

    @property
    def name(self) -> str:
        """Return the prefix of every symbol, a C identifier."""
        return self.interface.name

    @property
    def upper(self) -> str:
        """Return the prefix of every macro."""
        return self.name.upper()

    @property
    def memories(self) -> tuple[NetworkMemory, ...]:
        """Return the network's memories, each an array."""
        return self.interface.arrays

    def array(self, memory: NetworkMemory) -> str:
        """Name a memory's array."""
        return f"{self.name}_{memory.label}"

    def place(self, offset: int) -> str:
        """Return a C expression for the byte at an offset (see `TensorSpec`): `<array>[n]`."""
        at = next(m for m in reversed(self.memories) if m.start <= offset and (m.bytes or len(self.memories) == 1))
        part = next(p for p in reversed(self.parts(at)) if p.start <= offset)
        return f"{part.name}[{offset - part.start}]"

    def parts(self, memory: NetworkMemory) -> tuple[Part, ...]:
        """Split a memory into the parts with a pointer in the driver, by ascending address; the whole memory if it has
        no states.
        """
        array, start, kept = self.array(memory), memory.kept_start, memory.kept_bytes
        if not kept:
            return (Part(array, memory.start, memory.bytes, False),)
        states = Part(f"{array}_kept", start, kept, True)
        if not memory.shared_bytes:
            return (states,)
        first = start == memory.start
        rest = Part(f"{array}_shared", start + kept if first else memory.start, memory.shared_bytes, False)
        return (states, rest) if first else (rest, states)

    def side(self, which: str) -> tuple[str, tuple[TensorSpec, ...]]:
        """Return the pointers' qualifier ("const " or "") and the tensors of the struct `inputs` or `outputs`."""
        return ("const ", self.interface.inputs) if which == "inputs" else ("", self.interface.outputs)

    @property
    def hook(self) -> bool:
        return self.steps is not None

    @property
    def calls_back(self) -> bool:
        """Return True if a run calls functions of the application; the byte `<name>_busy` in RAM is then set during a
        run.
        """
        return self.hook or any(spec.streamed for spec in self.interface.inputs)

    @property
    def takes_pushed(self) -> bool:
        """Return True if a run takes the data given to `<name>_push`: networks with states and one input, such as rows
        of a stream.
        """
        inputs = self.interface.inputs
        return bool(self.interface.states) and len(inputs) == 1 and not inputs[0].streamed
