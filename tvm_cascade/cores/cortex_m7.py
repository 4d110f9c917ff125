"""Cortex-M7: Armv7E-M with DSP instructions, floats of double precision in hardware."""

from __future__ import annotations

from types import MappingProxyType

from tvm_cascade.cores.core import Core
from tvm_cascade.cores.cortex_m4 import STEPS  # the same instructions from the same compilers
from tvm_cascade.cores.families import ARM
from tvm_cascade.cores.rule_sets import DSP

CORE = Core(
    name="cortex-m7",
    family=ARM,
    mcpu="cortex-m7",
    triple="thumbv7em-none-unknown-eabihf",
    gcc_flags=("-mcpu=cortex-m7", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-d16"),
    default_board="mps2-an500",
    runs_on=("cortex-m7",),
    align=8,
    dsp=True,
    fpu=True,
    rules=DSP,
    compatible=MappingProxyType({"c": "cortex-m4", "llvm": "cortex-m4"}),
    steps=STEPS,
)
