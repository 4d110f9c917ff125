"""Cortex-M0+: Armv6-M, scalar multiply-accumulates. Kernels and step model (not counted here) are those of Cortex-M3."""

from __future__ import annotations

from dataclasses import replace

from tvm_cascade.cores.cortex_m3 import CORE as CORTEX_M3
from tvm_cascade.cores.cortex_m3 import STEPS

CORE = replace(
    CORTEX_M3,
    name="cortex-m0plus",
    parts=(
        "stm32g0",
        "stm32l0",
        "stm32c0",
        "stm32u0",
        "rp2040",
        "samd21",
    ),
    mcpu="cortex-m0plus",
    triple="thumbv6m-none-unknown-eabi",
    gcc_flags=("-mcpu=cortex-m0plus", "-mthumb", "-mfloat-abi=soft"),
    default_board="microbit",
    runs_on=("cortex-m0", "cortex-m0plus", *CORTEX_M3.runs_on),
    steps=replace(STEPS, cycle=1.34),
)
