"""Xtensa LX7 in the ESP32-S3: C for ESP-IDF's compiler, by scalar kernels; the vector instructions are not used.

No compiler is run here (`Family.links`): the emitted C runs on this machine, and instructions are counts on riscv32
with kernels in the same C.
"""

from __future__ import annotations

from types import MappingProxyType

from tvm_cascade.cores.core import Core
from tvm_cascade.cores.cortex_m3 import STEPS  # an assumption: steps were not counted on this core
from tvm_cascade.cores.families import XTENSA
from tvm_cascade.cores.riscv32 import CORE as RISCV32
from tvm_cascade.cores.rule_sets import COMMON

CORE = Core(
    name="xtensa-lx7",
    family=XTENSA,
    mcpu="",
    triple="",
    gcc_flags=(),
    default_board="esp32s3",
    runs_on=("xtensa-lx7",),
    fpu=True,  # of single precision
    operations=RISCV32.operations,  # as rates are
    rules=("riscv", *COMMON),
    compatible=MappingProxyType({"c": "riscv32"}),
    parts=("esp32s3",),
    steps=STEPS,
)
