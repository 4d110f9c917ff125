"""Generic row kernels that find every input row in an address table, so rows may lie anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.assembly import Assembly, build_if_possible
from tvm_cascade.schedules.kernels.kernel import Param, Role, RowKernel
from tvm_cascade.schedules.tir import Buffer, Expr, PrimFunc, pointer_var, tirx
from tvm_cascade.schedules.tir.flatten import Pointer, pointer, row_major, window_start
from tvm_cascade.schedules.tir.staging import NotRowwiseError

_ANYWHERE = 1 << 30  # elements: a row may lie anywhere in a memory


def addressed_row_kernel(
    func: PrimFunc, constants: Sequence[np.ndarray], access: RowAccess, name: str = "row_kernel"
) -> RowKernel | str:
    """Build the kernel for an output row of `func`, or return why there is none.

    An input read through a sliding window has the parameters `x{i}` and `x{i}_rows`: an int32 for every row from the
    window's first on, the element behind `x{i}` at which that row begins. Entries of padding are not read. All other
    parameters are a row kernel's (`schedules.kernels.kernel`).
    """
    if access.whole:
        return access.opaque or "the operator's rows are not known"
    return build_if_possible(func, constants, AddressedAssembly, access.without_columns, name)


class AddressedAssembly(Assembly):
    """Builder for a row kernel with reads through address tables."""

    def input(self, i: int, source: Buffer) -> None:
        shape, axis, window = tir.shape_of(source), self.access.input_axes[i], self.access.windows[i]
        if axis is None or window is None or window.stride == 0:
            super().input(i, source)
            return
        if prod(shape[:axis]) != 1:
            raise NotRowwiseError("rows of an input are not contiguous")
        handle, flat = pointer(f"x{i}", tir.dtype_of(source), _ANYWHERE)
        told = pointer_var(f"x{i}_rows", "int32")
        rows = tirx.decl_buffer((shape[axis] + window.span,), "int32", f"x{i}_rows_data", data=told)
        self.params += [handle, told]
        self.roles += [Param(Role.INPUT, i, tir.dtype_of(source)), Param(Role.ROW_TABLE, i, "int32")]
        self.declarations += [tirx.DeclBuffer(flat, data=handle), tirx.DeclBuffer(rows, data=told)]
        first, after = window_start(window, self.y), row_major(shape[axis + 1 :])

        def index(indices: Sequence[Expr]) -> Expr:
            return rows[self.analyzer.simplify(indices[axis] - first)] + after(indices[axis + 1 :])

        self.pointers[source] = Pointer(handle, flat, index)
