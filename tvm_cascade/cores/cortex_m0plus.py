"""Cortex-M0+: Armv6-M, scalar multiply-accumulates. Kernels and step model (not counted here) are Cortex-M3's."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from tvm_cascade.cores.cortex_m3 import CORE as CORTEX_M3
from tvm_cascade.cores.cortex_m3 import STEPS

# Armv6-M has eight low registers, no multiply-accumulate and no long product (libgcc's), no saturation and no loads of signed
# bytes at a constant offset; branches compare what they have to load first.
OPERATIONS = MappingProxyType(
    {
        "load8": 2.0,
        "mla": 3.0,
        "smmlar": 45.0,
        "smmla": 42.0,
        "smlalh": 45.0,
        "ssat8": 5.0,
        "usat8": 5.0,
        "mul64": 35.0,
        "mul64_wide": 35.0,
        "sum": 1.0,
        "branch": 4.0,
        "float": 2.3,
        "double": 4.2,
    }
)
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
    registers=2,
    operations=OPERATIONS,
    code_size=2.3,
    image_bytes=MappingProxyType(
        {
            "start": 1_790,
            "add": 772,
            "subtract": 804,
            "multiply": 636,
            "divide": 576,
            "compare": 516,
            "from_signed": 152,
            "from_unsigned": 132,
            "to_integer": 64,
            "common": 60,
        }
    ),
    steps=replace(STEPS, cycle=1.34),
)
