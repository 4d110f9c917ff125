"""What accumulating kernels of all operators share (`schedules.kernels.accumulate`): sums between calls, and parameters."""

from __future__ import annotations

from tvm_cascade.schedules.kernels.kernel import Param, Role, RowKernel
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.tir import Value, i32, kernel_function, pointer_var, tirx


class RunningSums:
    """Sums that a kernel keeps between calls, beside the first element and the end of a call's inputs."""

    def __init__(self, k: KernelBuilder, dtype: str = "int32") -> None:
        self.k, self.dtype = k, dtype
        self.handle = pointer_var("acc", dtype)
        self.buffer = k.view(self.handle, dtype, "sums")
        self.begin, self.end = tirx.Var("begin", "int32"), tirx.Var("end", "int32")

    def at(self, index: Value) -> Value:
        return self.buffer[i32(index)]

    def finished(self, name: str) -> RowKernel:
        """Build the kernel from the builder's statements, with the parameters specified by `Accumulating`."""
        k = self.k
        kept = [(v, p) for v, p in zip(k.params, k.roles, strict=True) if p.role in (Role.INPUT, Role.CONSTANT)]
        kept += [(self.handle, Param(Role.ACCUMULATOR, 0, self.dtype))]
        kept += [(v, p) for v, p in zip(k.params, k.roles, strict=True) if p.role is Role.OUTPUT]
        kept += [(self.begin, Param(Role.BEGIN, 0, "int32")), (self.end, Param(Role.END, 0, "int32"))]
        func = kernel_function(name, [v for v, _ in kept], k.statements())
        return RowKernel(func, k.arrays, 0, tuple(p for _, p in kept), rule=name)
