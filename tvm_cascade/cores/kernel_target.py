"""`KernelTarget`: a core with the back end, the objective and the kernel variants of a single compilation."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.cores.core import Core
from tvm_cascade.cores.host import CORE as HOST


@dataclass(frozen=True, slots=True)
class KernelTarget:
    """A core, the back end of a compilation, and the kernels chosen."""

    core: Core = HOST
    backend: str = "llvm"  # "c" or "llvm"
    optimise: str = "balanced"  # objective of the choices: size, speed or balanced
    small_weights: bool = False  # whether the network's file stores weights of four bits or fewer
    small_floats: bool = False  # whether it stores floats of 16 or 8 bits, which generic kernels decode by helpers, too
    code_price: float = (
        0.0  # instructions that a byte may cost that coded weights save (`schedules.rules.coded`), or merging
    )
    choices: tuple[tuple[str, str], ...] = ()  # (shape, variant chosen for it); other shapes get the default variant

    @property
    def name(self) -> str:
        return self.core.name

    @property
    def dsp(self) -> bool:
        return self.core.dsp

    @property
    def mve(self) -> bool:
        return self.core.mve

    @property
    def vectors(self) -> bool:
        """Return True if kernels may use vectors: the C back end cannot print them."""
        return self.core.mve and self.backend == "llvm"

    @property
    def packs_weights(self) -> bool:
        """Return True if kernels keep weights that fit four bits so: the file does, or the flash counts most."""
        return self.small_weights or self.optimise == "size"

    @property
    def merges_kernels(self) -> bool:
        """Return True if kernels that differ in constants alone are one: the flash counts more than instructions."""
        return self.optimise == "size"

    @property
    def tunable(self) -> bool:
        """Return True if the core has performance schedules to choose from."""
        return bool(self.core.rules)

    def choice(self, shape: str) -> str | None:
        """Return the variant chosen for a shape, if any."""
        return next((v for s, v in self.choices if s == shape), None)
