"""Cortex-M3: Armv7-M, scalar multiply-accumulates."""

from __future__ import annotations

from types import MappingProxyType

from tvm_cascade.cores.core import Core
from tvm_cascade.cores.families import ARM
from tvm_cascade.cores.rule_sets import SCALAR
from tvm_cascade.cores.step_model import StepModel

# Multiply-accumulates fitted to counts on the emulated core; the rest was set from Cortex-M4's (`cores.step_model`).
STEPS = StepModel(
    dense=2.15,
    depthwise=3.96,
    call=19.0,
    word=21.6,
    moved=3.6,
    dense_single=0.53,
    dense_few=0.38,
    depthwise_single=0.22,
    depthwise_few=0.0,
    stripe=490.0,
    stripe_few=0.61,
    dense_parts=0.03,
    depthwise_parts=0.02,
    unscheduled=12.5,
    cycle=1.33,
    row_table=75.0,
)

CORE = Core(
    name="cortex-m3",
    parts=(
        "stm32f1",
        "stm32f2",
        "stm32l1",
        "lpc17",
        "atsam3",
    ),
    family=ARM,
    mcpu="cortex-m3",
    triple="thumbv7m-none-unknown-eabi",
    gcc_flags=("-mcpu=cortex-m3", "-mthumb", "-mfloat-abi=soft"),
    default_board="mps2-an385",
    runs_on=("cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55"),
    llvm_options=MappingProxyType({"mfloat-abi": "soft"}),
    code_size=1.15,
    image_bytes=MappingProxyType(
        {"start": 1_720, "copy": 324, "multiply": 360, "divide": 320, "compare": 270, "to_integer": 76, "common": 520}
    ),
    rules=SCALAR,
    steps=STEPS,
)
