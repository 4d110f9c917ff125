"""Cortex-M33: Armv8-M with DSP instructions, floats of single precision in hardware."""

from __future__ import annotations

from types import MappingProxyType

from tvm_cascade.cores.core import Core
from tvm_cascade.cores.cortex_m4 import STEPS  # the same instructions from the same compilers
from tvm_cascade.cores.families import ARM
from tvm_cascade.cores.rule_sets import DSP

CORE = Core(
    name="cortex-m33",
    family=ARM,
    mcpu="cortex-m33",
    triple="thumbv8m.main-none-unknown-eabihf",
    gcc_flags=("-mcpu=cortex-m33", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"),
    default_board="mps2-an505",
    runs_on=(
        "cortex-m33",
        "cortex-m55",
    ),
    dsp=True,
    fpu=True,
    rules=DSP,
    compatible=MappingProxyType({"c": "cortex-m4", "llvm": "cortex-m4"}),
    steps=STEPS,
)
