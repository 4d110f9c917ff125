"""Cortex-M33: Armv8-M with the DSP instructions of Cortex-M4 and a single-precision FPU."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from tvm_cascade.cores.cortex_m4 import CORE as CORTEX_M4
from tvm_cascade.cores.cortex_m4 import STEPS

CORE = replace(
    CORTEX_M4,
    name="cortex-m33",
    parts=(
        "stm32u5",
        "stm32h5",
        "stm32l5",
        "stm32wba",
        "nrf53",
        "nrf54l",
        "nrf91",
        "rp2350",
        "lpc55",
    ),
    mcpu="cortex-m33",
    triple="thumbv8m.main-none-unknown-eabihf",
    gcc_flags=("-mcpu=cortex-m33", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"),
    operations=MappingProxyType({"trunc": 1.0}),  # which FPv4 lacks
    default_board="mps2-an505",
    steps=replace(STEPS, cycle=1.25),
    runs_on=("cortex-m33", "cortex-m55"),
    compatible=MappingProxyType({"c": "cortex-m4", "llvm": "cortex-m4"}),
)
