"""Row kernels for RISC-V cores without vectors (rv32imc): the scalar kernels, which have nothing of Arm's in them."""

from __future__ import annotations

from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.cortex_m_scalar import scalar_variants
from tvm_cascade.schedules.rules.select import Core
from tvm_cascade.schedules.rules.variants import Variant


def variants(spec: OperatorSpec, core: Core) -> list[Variant]:
    """Kernels for an operator on a RISC-V core."""
    return scalar_variants(spec) if core.name.startswith("riscv") else []
