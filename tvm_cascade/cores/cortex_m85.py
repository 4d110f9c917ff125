"""Cortex-M85: Armv8.1-M with vectors as Cortex-M55, and pointer authentication, which nothing here uses.

LLVM schedules for the core itself. GCC gets -mcpu=cortex-m55, because Debian's GCC 12 does not know cortex-m85; the
instructions are the same. No emulator has the core: step model and kernel counts are taken from Cortex-M55, and code
runs on the emulated Cortex-M55.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from tvm_cascade.cores.cortex_m55 import CORE as CORTEX_M55

CORE = replace(
    CORTEX_M55,
    name="cortex-m85",
    parts=("ra8",),
    mcpu="cortex-m85",
    runs_on=("cortex-m85", "cortex-m55"),
    compatible=MappingProxyType({"c": "cortex-m4", "llvm": "cortex-m55"}),
)
