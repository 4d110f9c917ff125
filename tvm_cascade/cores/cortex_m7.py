"""Cortex-M7: Armv7E-M as Cortex-M4, with a double-precision FPU."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from tvm_cascade.cores.cortex_m4 import CORE as CORTEX_M4
from tvm_cascade.cores.cortex_m4 import STEPS

CORE = replace(
    CORTEX_M4,
    name="cortex-m7",
    parts=(
        "stm32f7",
        "stm32h7",
        "mimxrt10",
        "imxrt10",
        "atsame70",
    ),
    mcpu="cortex-m7",
    gcc_flags=("-mcpu=cortex-m7", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-d16"),
    default_board="mps2-an500",
    doubles=True,
    operations=MappingProxyType({"trunc": 1.0}),  # which FPv4 lacks
    steps=replace(STEPS, cycle=1.0),
    runs_on=("cortex-m7",),
    align=8,
    compatible=MappingProxyType({"c": "cortex-m4", "llvm": "cortex-m4"}),
)
