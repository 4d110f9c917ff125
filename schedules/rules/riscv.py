"""Row kernels for RISC-V without vectors: as in `cortex_m_scalar`, with two taps of a convolution per iteration.

An iteration with up to nine taps saves loop ends. But GCC moves its loads to the front, and holds more values than
there are registers: over the shapes in `testing.estimate_cases` convolutions then take 1.16 times the best variant's
instructions, with two taps 1.01 times.
"""

from __future__ import annotations

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules import cortex_m_scalar
from tvm_cascade.schedules.rules.conv_row import Blocking
from tvm_cascade.schedules.rules.variants import Variant

BLOCKING = Blocking(pixels=4, channels=2, unroll=1, step=2)


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the variants of a convolution, dense layer or element-wise operator in plain scalar arithmetic."""
    return cortex_m_scalar.scalar_variants(spec, target, BLOCKING, BLOCKING)
