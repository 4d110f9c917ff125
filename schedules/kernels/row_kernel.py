"""Generic row kernels: functions of pointers that compute an output row, derived from the operator's PrimFunc.

The operator is scheduled with the row loop outermost (`schedules.tir.staging`), padding becomes loop bounds
(`schedules.tir.padding`), the row loop's body becomes the kernel (`schedules.kernels.assembly`) and buffers become
pointers (`schedules.tir.flatten`). The driver can call a cascade's kernels in any order asked for by a plan. Ring
heights are parameters (`schedules.kernels.kernel`), so operators of equal shape share a kernel, whatever the plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.assembly import Assembly, build_if_possible, build_kernel
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.tir import PrimFunc, outputs_of


def row_kernel(
    func: PrimFunc, constants: Sequence[np.ndarray], access: RowAccess, name: str = "row_kernel"
) -> RowKernel:
    """Build the kernel for an output row of `func`, or for the whole operator if it has no row-wise form.

    Parameters
    ----------
    func
        Parameters in the order: activation inputs (as many as `access.windows`), constants, outputs. Static shapes.
    constants
        Values of the constant parameters, in order.
    """
    reason = access.opaque
    if not access.whole:
        made = build_if_possible(func, constants, Assembly, access.without_columns, name)
        if not isinstance(made, str):
            return made
        reason = made
    return whole_kernel(func, constants, len(access.windows), name, reason)


def whole_kernel(
    func: PrimFunc, constants: Sequence[np.ndarray], activations: int, name: str = "kernel", reason: str | None = None
) -> RowKernel:
    """Build the kernel of a whole operator, called like a row kernel: slots are 0, pointers are to whole tensors, y is
    ignored.
    """
    unknown = RowAccess((None,) * activations, (None,) * activations, (None,) * len(outputs_of(func)), reason)
    return build_kernel(func, constants, Assembly, unknown, name)
