"""`Core`: the record of a target core, for compiling, choosing kernels and running code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tvm_cascade.cores.families import Family
from tvm_cascade.cores.step_model import StepModel

NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Core:
    """A core that networks are compiled for.

    Back ends: `"c"` emits portable C99, which GCC compiles; `"obj"` (to kernels `"llvm"`) emits an LLVM object.
    """

    name: str
    family: Family
    mcpu: str  # as LLVM calls it; "" for the host
    triple: str  # LLVM target triple; "" for the host
    gcc_flags: tuple[str, ...]  # code generation only, no optimisation level
    default_board: str
    runs_on: tuple[str, ...]  # cores of boards that execute this core's instructions
    c_flags: tuple[str, ...] = ()  # optimisations that a network's C is compiled with or without, whatever builds it
    llvm_options: Mapping[str, object] = field(default_factory=lambda: NONE)  # further attributes of the TVM target
    backend: str = "c"  # default, the faster one for this project's kernels: LLVM with MVE, GCC otherwise
    align: int = 4  # bytes, of buffers in the arena
    dsp: bool = False  # Armv7E-M DSP instructions: SMLAD and friends
    mve: bool = False  # Armv8.1-M vector extension (Helium)
    fpu: bool = False  # floats are computed by hardware
    doubles: bool = False  # those of 64 bits as well
    registers: int = 32  # elements of the largest local array of a kernel that compilers keep in registers
    # instructions of operations that take others than on Cortex-M3, by intrinsic; `load8` of 8 bits; `add64`, `shift64`, `mul64`,
    # which multiplies integers of 32 bits, `mul64_wide`, of 64; `sum`, which adds a product or a shifted value; `branch`; `loop`
    # of an iteration; `trunc`; `float`, `double`: arithmetic of floats without hardware, to that of 32 bits on Cortex-M3
    operations: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    code_size: float = (
        1.0  # of kernels, to the analytic model's (`schedules.tuning.kernel_cost`): fitted to linked images
    )
    # bytes of an image beside its kernels: `start`, of main, start-up code and reports; `copy`, of the library's memcpy, where
    # inputs or outputs are longer than compilers write out; and of the library's arithmetic of floats, without hardware for it:
    # `add`, `subtract`, `multiply`, `divide`, `compare`, `equal`, `from_signed`, `from_unsigned`, `to_integer`, and `common`,
    # which all but comparisons share
    image_bytes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({"start": 1_720, "copy": 324}))
    rules: tuple[str, ...] = ()  # of `schedules.rules.select.RULE_SETS`, the most demanding first
    # the kernels' back end ("c", "llvm") -> a core with the same instructions, whose kernel counts apply here too
    compatible: Mapping[str, str] = field(default_factory=lambda: NONE)
    parts: tuple[str, ...] = ()  # beginnings of the names of microcontrollers with this core, in lower case
    steps: StepModel | None = None  # instruction counts of steps; None where there is no model

    @property
    def llvm(self) -> dict[str, object]:
        """Return the argument for `tvm.target.Target`."""
        named = {"mtriple": self.triple, "mcpu": self.mcpu} if self.triple else {}
        return {"kind": "llvm", **named, **self.llvm_options}
