"""What `<name>.h` and `<name>.c` are written from: the interface of a network, and what C adds to it."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.micro.hot_weights import HotWeight
from tvm_cascade.micro.network import Interface
from tvm_cascade.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True)
class CInterface:
    """The public side of a network in C. Inputs and outputs have their places and C names (`micro.placement`)."""

    interface: Interface
    steps: int | None = None  # of the plan, where a hook of the application's is called after each; None without hook
    hot: tuple[HotWeight, ...] = ()  # weights that are read from RAM

    @property
    def name(self) -> str:
        """The prefix of every symbol, a C identifier."""
        return self.interface.name

    @property
    def upper(self) -> str:
        """The prefix of every macro."""
        return self.name.upper()

    def side(self, which: str) -> tuple[str, tuple[TensorSpec, ...]]:
        """What the members of `inputs` or of `outputs` point to: "const " or nothing, and the tensors."""
        return ("const ", self.interface.inputs) if which == "inputs" else ("", self.interface.outputs)

    @property
    def hook(self) -> bool:
        return self.steps is not None

    @property
    def calls_back(self) -> bool:
        """Whether a run calls functions of the application: then a byte in RAM marks the run as going on."""
        return self.hook or any(spec.streamed for spec in self.interface.inputs)
