"""Cortex-M55: Armv8.1-M with vectors (MVE), which only LLVM's back end uses; C takes the DSP kernels."""

from __future__ import annotations

from types import MappingProxyType

from tvm_cascade.cores.core import Core
from tvm_cascade.cores.families import ARM
from tvm_cascade.cores.rule_sets import MVE
from tvm_cascade.cores.step_model import StepModel

STEPS = StepModel(  # fitted to counts on the emulated core (`cores.step_model`)
    dense=0.202,
    depthwise=1.70,
    call=100.0,
    word=4.9,
    moved=1.2,
    dense_single=0.127,
    dense_few=0.004,
    depthwise_single=0.0,
    depthwise_few=0.25,
    stripe=250.0,
    stripe_few=0.07,
    dense_parts=0.02,
    depthwise_parts=0.13,
    unscheduled=12.6,  # that of Cortex-M4
    cycle=1.1,
    row_table=100.0,
)
# Low-overhead loops cost more than they save around kernels this short (rfc/0006). Gathers and scatters that LLVM makes by
# itself lose the end of the loop around them where their offsets are its variable (MVEGatherScatterLowering): it never ends.
OPTIONS = ("-disable-arm-loloops:bool=1", "-enable-arm-maskedgatscat:bool=0")


CORE = Core(
    name="cortex-m55",
    parts=("stm32n6",),
    family=ARM,
    mcpu="cortex-m55",
    triple="thumbv8.1m.main-none-unknown-eabihf",
    gcc_flags=("-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard", "-mfpu=auto"),
    default_board="mps3-an547",
    runs_on=("cortex-m55",),
    llvm_options=MappingProxyType({"cl-opt": OPTIONS}),
    backend="obj",
    align=8,
    dsp=True,
    mve=True,
    fpu=True,
    doubles=True,
    operations=MappingProxyType({"trunc": 1.0, "shift64": 1.0, "max_float": 13.0, "max_floats": 3.0}),  # NaN by bits
    code_size=1.35,
    rules=MVE,
    compatible=MappingProxyType({"c": "cortex-m4"}),
    steps=STEPS,
)
