"""Row kernels for RISC-V cores without vectors (rv32imc): the scalar kernels, which have nothing of Arm's in them."""

from __future__ import annotations

import numpy as np
from tvm.tirx import PrimFunc

from tvm_cascade.schedules.rules.cortex_m_scalar import scalar_variants
from tvm_cascade.schedules.rules.select import Core
from tvm_cascade.schedules.rules.variants import Variant


def variants(func: PrimFunc, constants: tuple[np.ndarray, ...], core: Core) -> list[Variant]:
    """Kernels for `func` on a RISC-V core."""
    return scalar_variants(func, constants) if core.name.startswith("riscv") else []
