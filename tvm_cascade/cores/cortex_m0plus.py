"""Cortex-M0+: Armv6-M, one multiply-accumulate at a time."""

from __future__ import annotations

from types import MappingProxyType

from tvm_cascade.cores.core import Core
from tvm_cascade.cores.cortex_m3 import STEPS  # of the same kernels; nobody counted them on this core
from tvm_cascade.cores.families import ARM
from tvm_cascade.cores.rule_sets import SCALAR

CORE = Core(
    name="cortex-m0plus",
    family=ARM,
    mcpu="cortex-m0plus",
    triple="thumbv6m-none-unknown-eabi",
    gcc_flags=("-mcpu=cortex-m0plus", "-mthumb", "-mfloat-abi=soft"),
    default_board="microbit",
    runs_on=(
        "cortex-m0",
        "cortex-m0plus",
        "cortex-m3",
        "cortex-m4",
        "cortex-m7",
        "cortex-m33",
        "cortex-m55",
    ),
    llvm_options=MappingProxyType({"mfloat-abi": "soft"}),
    rules=SCALAR,
    steps=STEPS,
)
