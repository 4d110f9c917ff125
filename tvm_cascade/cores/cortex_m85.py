"""Cortex-M85: Armv8.1-M with vectors as Cortex-M55, and pointer authentication, which nothing here uses.

LLVM schedules for the core itself. GCC is told Cortex-M55, since GCC 12, Debian's, does not know its name: the
instructions are the same. No emulator has the core: rates of steps and counts of kernels are those of Cortex-M55, and its
code is run on the emulated one.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from tvm_cascade.cores.cortex_m55 import CORE as CORTEX_M55

CORE = replace(
    CORTEX_M55,
    name="cortex-m85",
    mcpu="cortex-m85",
    runs_on=("cortex-m85", "cortex-m55"),
    compatible=MappingProxyType({"c": "cortex-m4", "llvm": "cortex-m55"}),
)
