"""What a network's C files, `<name>.h` and `<name>.c`, are written from."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.micro.hot_weights import HotWeight
from tvm_cascade.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True)
class CInterface:
    """The public side of a network in C. Inputs and outputs have their places and C names (`micro.placement`)."""

    name: str  # C identifier, the prefix of every symbol
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    arena_bytes: int
    arena_align: int  # bytes
    steps: int | None = None  # of the plan, where a hook of the application's is called after each; None without hook
    hot: tuple[HotWeight, ...] = ()  # weights that are read from RAM

    @property
    def upper(self) -> str:
        """The prefix of every macro."""
        return self.name.upper()

    @property
    def hook(self) -> bool:
        return self.steps is not None

    @property
    def calls_back(self) -> bool:
        """Whether a run calls functions of its application: then a byte tells them, and others, that it goes on."""
        return self.hook or any(spec.streamed for spec in self.inputs)
