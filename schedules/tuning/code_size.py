"""Bytes of code of a plan, estimated from the kernels that it calls: equal ones are emitted once, and count once."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi

from tvm_cascade.cores.core import Core
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.tuning.kernel_cost import kernel_cost
from tvm_cascade.schedules.tuning.tune import PER_CALL, RUNTIME
from tvm_cascade.search_monitor import counted


def code_bytes(kernels: Sequence[BuiltKernel | None], core: Core) -> int:
    """Estimated bytes of the code of a plan that calls `kernels` (None for views).

    Kernels take what the analytic model says (`kernel_cost`), times `Core.code_size`. The driver and the start-up code are
    the fixed allowances `PER_CALL`, for every kernel called, and `RUNTIME`.
    """
    written = {id(func): func for kernel in kernels if kernel for _, func in kernel.functions("")}
    distinct = {tvm_ffi.structural_hash(func): func for func in written.values()}
    size = sum(kernel_cost(func).bytes for func in counted("bytes of code", list(distinct.values())))
    return round(size * core.code_size) + RUNTIME + PER_CALL * sum(kernel is not None for kernel in kernels)
