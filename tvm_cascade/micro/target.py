"""Targets: what the code generator and the compiler must know of a core.

`backend` is the better of `c` (portable C99 through gcc) and `obj` (LLVM object) on the kernels of this project: LLVM
where MVE is, gcc elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tvm_cascade.errors import UsageError
from tvm_cascade.micro.family import ARM, HOST, RISCV, Family


@dataclass(frozen=True, slots=True)
class Target:
    """A core that networks are compiled for."""

    name: str
    mcpu: str  # as gcc and LLVM call it; "" for the host
    triple: str  # LLVM target triple; "" for the host
    gcc_flags: tuple[str, ...]  # code generation only, no optimisation level
    backend: str  # default of --emit: "c" or "obj"
    align: int  # bytes, of buffers in the arena
    default_board: str
    llvm: Mapping[str, object] = field(default_factory=dict)  # argument of tvm.target.Target
    runs_on: tuple[str, ...] = ()  # cores of boards that execute this target's instructions
    family: Family = ARM

    @property
    def has_fpu(self) -> bool:
        """Whether floats are computed by hardware."""
        return "-mfloat-abi=hard" in self.gcc_flags or not self.triple


def _cortex_m(
    core: str,
    arch: str,
    *,
    runs_on: str,
    board: str,
    backend: str = "c",
    align: int = 4,
    float_abi: str = "soft",
    fpu: str = "",
) -> Target:
    triple = f"{arch}-none-unknown-eabi{'hf' if float_abi == 'hard' else ''}"
    flags = [f"-mcpu={core}", "-mthumb", f"-mfloat-abi={float_abi}"]
    if fpu:
        flags.append(f"-mfpu={fpu}")
    llvm: dict[str, object] = {"kind": "llvm", "mtriple": triple, "mcpu": core}
    if float_abi == "soft":
        llvm["mfloat-abi"] = "soft"
    if core == "cortex-m55":
        # its low-overhead loops cost more than they save around kernels this short (RFC 0006)
        llvm["cl-opt"] = ("-disable-arm-loloops:bool=1",)
    return Target(
        name=core,
        mcpu=core,
        triple=triple,
        gcc_flags=tuple(flags),
        backend=backend,
        align=align,
        default_board=board,
        llvm=MappingProxyType(llvm),
        runs_on=tuple(f"cortex-{name}" for name in runs_on.split()),
    )


_ALL = (
    _cortex_m("cortex-m0plus", "thumbv6m", runs_on="m0 m0plus m3 m4 m7 m33 m55", board="microbit"),
    _cortex_m("cortex-m3", "thumbv7m", runs_on="m3 m4 m7 m33 m55", board="mps2-an385"),
    _cortex_m(
        "cortex-m4", "thumbv7em", runs_on="m4 m7 m33 m55", board="mps2-an386", float_abi="hard", fpu="fpv4-sp-d16"
    ),
    _cortex_m("cortex-m7", "thumbv7em", runs_on="m7", board="mps2-an500", align=8, float_abi="hard", fpu="fpv5-d16"),
    _cortex_m(
        "cortex-m33", "thumbv8m.main", runs_on="m33 m55", board="mps2-an505", float_abi="hard", fpu="fpv5-sp-d16"
    ),
    _cortex_m(
        "cortex-m55",
        "thumbv8.1m.main",
        runs_on="m55",
        board="mps3-an547",
        backend="obj",
        align=8,
        float_abi="hard",
        fpu="auto",
    ),
    Target(
        name="riscv32",
        mcpu="generic-rv32",
        triple="riscv32-unknown-none-elf",
        # of specification 2.2: it includes the counters, which a measuring image reads
        gcc_flags=("--specs=picolibc.specs", "-march=rv32imac", "-misa-spec=2.2", "-mabi=ilp32", "-mcmodel=medany"),
        backend="c",
        align=4,
        default_board="riscv32-virt",
        llvm=MappingProxyType(
            {
                "kind": "llvm",
                "mtriple": "riscv32-unknown-none-elf",
                "mcpu": "generic-rv32",
                "mabi": "ilp32",
                "mattr": ["+m", "+a", "+c"],
            }
        ),
        runs_on=("rv32imac", "rv32gc"),
        family=RISCV,
    ),
    Target("host", "", "", (), "c", 16, "host", MappingProxyType({"kind": "llvm"}), ("host",), HOST),
)

TARGETS: Mapping[str, Target] = MappingProxyType({target.name: target for target in _ALL})


def get_target(name: str) -> Target:
    """The target of that name; raises `UsageError` with the known ones."""
    try:
        return TARGETS[name]
    except KeyError:
        raise UsageError(f"unknown target {name!r}; known: {', '.join(TARGETS)}") from None
