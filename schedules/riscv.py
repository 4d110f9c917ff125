"""Row kernels for RISC-V cores without vectors (rv32imc): the scalar kernels, which have nothing of Arm's in them."""

from __future__ import annotations

import numpy as np
from tvm.tirx import PrimFunc

from tvm_cascade.schedules.cortex_m_scalar import scalar_kernel
from tvm_cascade.schedules.row_kernel import RowKernel
from tvm_cascade.schedules.select import Core


def rule(func: PrimFunc, constants: tuple[np.ndarray, ...], core: Core) -> RowKernel | None:
    """A kernel for `func` on a RISC-V core, None where none here applies."""
    return scalar_kernel(func, constants) if core.name.startswith("riscv") else None


rules = (rule,)
