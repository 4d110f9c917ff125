"""Cortex-M4: Armv7E-M with DSP instructions and a single-precision FPU."""

from __future__ import annotations

from tvm_cascade.cores.core import Core
from tvm_cascade.cores.families import ARM
from tvm_cascade.cores.rule_sets import DSP
from tvm_cascade.cores.step_model import StepModel

STEPS = StepModel(  # fitted to counts on the emulated core (`cores.step_model`)
    dense=1.51,
    depthwise=3.55,
    call=75.0,
    word=12.2,
    moved=3.1,
    dense_single=0.297,
    dense_few=0.24,
    depthwise_single=0.118,
    depthwise_few=0.0,
    stripe=450.0,
    stripe_few=0.31,
    dense_parts=0.05,
    depthwise_parts=0.04,
    unscheduled=12.6,
    cycle=1.3,
    row_table=100.0,
)

CORE = Core(
    name="cortex-m4",
    parts=(
        "stm32f3",
        "stm32f4",
        "stm32g4",
        "stm32l4",
        "nrf52",
        "samd51",
        "apollo3",
    ),
    family=ARM,
    mcpu="cortex-m4",
    triple="thumbv7em-none-unknown-eabihf",
    gcc_flags=("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
    default_board="mps2-an386",
    runs_on=("cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55"),
    dsp=True,
    fpu=True,
    rules=DSP,
    steps=STEPS,
)
