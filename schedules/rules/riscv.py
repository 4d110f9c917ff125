"""Row kernels for RISC-V without vectors: those of `cortex_m_scalar`, two taps of a convolution an iteration.

An iteration of up to nine taps saves the ends of loops. But GCC moves its loads to its front, and holds more values than there
are registers: over the shapes of `testing.estimate_cases` convolutions then take 1.16 times the instructions of the best
variant, with two taps 1.01 times.
"""

from __future__ import annotations

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules import cortex_m_scalar
from tvm_cascade.schedules.rules.conv_row import Blocking
from tvm_cascade.schedules.rules.variants import Variant

BLOCKING = Blocking(pixels=4, channels=2, unroll=1, step=2)


def variants(spec: OperatorSpec, _target: KernelTarget) -> list[Variant]:
    """Variants of a convolution, dense layer or element-wise operator in plain scalar arithmetic."""
    return cortex_m_scalar.scalar_variants(spec, BLOCKING)
