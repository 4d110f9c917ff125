"""32-bit RISC-V (rv32imac), without vectors or FPU: scalar kernels without Arm's instructions."""

from __future__ import annotations

from types import MappingProxyType

from tvm_cascade.cores.core import Core
from tvm_cascade.cores.cortex_m3 import STEPS  # an assumption: steps were not counted on this core
from tvm_cascade.cores.families import RISCV
from tvm_cascade.cores.rule_sets import COMMON

CORE = Core(
    name="riscv32",
    family=RISCV,
    mcpu="generic-rv32",
    triple="riscv32-unknown-none-elf",
    # of specification 2.2: it includes the counters, which a measuring image reads
    gcc_flags=("--specs=picolibc.specs", "-march=rv32imac", "-misa-spec=2.2", "-mabi=ilp32", "-mcmodel=medany"),
    # GCC carries values of loops from iteration to iteration, in more registers than there are: it stores and loads them again
    c_flags=("-fno-predictive-commoning",),
    default_board="riscv32-virt",
    runs_on=("rv32imac", "rv32gc", "rv32imc"),  # nothing that is emitted is atomic, so imc executes it too
    llvm_options=MappingProxyType({"mabi": "ilp32", "mattr": ["+m", "+a", "+c"]}),
    code_size=1.85,
    image_bytes=MappingProxyType(
        {
            "start": 1_880,
            "add": 812,
            "subtract": 878,
            "multiply": 586,
            "divide": 586,
            "compare": 296,
            "equal": 90,
            "from_signed": 190,
            "from_unsigned": 162,
            "to_integer": 94,
            "common": 316,
        }
    ),
    operations=MappingProxyType(
        {
            "mla": 2.0,
            "smmlar": 7.0,
            "smmla": 4.0,
            "smlalh": 6.0,
            "ssat8": 4.0,
            "usat8": 4.0,
            "mul64": 2.0,
            "mul64_wide": 7.0,
            "add64": 4.0,  # the carry is computed
            "sum": 1.0,
            "branch": 1.0,  # branches compare
            "loop": 2.0,
            "float": 2.0,
        }
    ),
    rules=("riscv", *COMMON),
    steps=STEPS,
)
