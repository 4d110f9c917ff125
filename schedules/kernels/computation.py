"""`Computation`: an operator as the input to kernel building: function, constants' values and windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tvm_cascade.graph import Tensor
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.channel_groups import grouped_row_kernel, groups_of
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.pixel_kernel import pixel_kernel
from tvm_cascade.schedules.kernels.row_kernel import row_kernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec, read_spec
from tvm_cascade.schedules.tir import PrimFunc


@dataclass(frozen=True)
class Computation:
    """An operator's PrimFunc with its row windows. Operators of equal structure share function, windows and name."""

    name: str  # of its generic kernels
    func: PrimFunc  # parameters: activations, constants, outputs
    constants: tuple[np.ndarray, ...]
    access: RowAccess
    macs: int
    in_place: tuple[int, ...]  # positions of the inputs that the output may overwrite
    tuned: RowKernel | None = None  # replaces the generic row kernel

    @cached_property
    def spec(self) -> OperatorSpec:
        """Return the operator description by which performance schedules are selected."""
        return read_spec(self.func, self.constants)

    @property
    def kernel(self) -> RowKernel:
        """Return the generic kernel for whole rows, or for the whole operator."""
        if self.tuned is not None:
            return self.tuned
        make = grouped_row_kernel if groups_of(self.func) else row_kernel
        return make(self.func, self.constants, self.access, self.name)

    @property
    def pixel_kernel(self) -> RowKernel | str:
        """Return the generic kernel for parts of rows, or why there is none."""
        if groups_of(self.func):
            return "its rows cannot be made in parts"
        return pixel_kernel(self.func, self.constants, self.access, f"{self.name}_pixels")

    def has_plain_rows(self, tensors: Sequence[Tensor]) -> bool:
        """Test that the computation runs by rows of NHWC tensors with batch 1, or is a single row; `tensors` are inputs
        and outputs.

        Performance schedules assume that axis 1 is the row axis. Rows along axis 2 of `[1, 1, H, W]` are contiguous,
        too, but W elements long.
        """
        access = self.access
        if access.whole:  # it is told that a tensor has `rows` rows, and takes axis 1 for them
            return access.opaque is None and all(
                len(t.shape) < 4 or t.row_axis == 1 or t.rows >= t.shape[1] for t in tensors
            )
        axes = (*access.input_axes, *access.output_axes)
        return all(a is None or (a == 1 and t.shape[0] == 1) for t, a in zip(tensors, axes, strict=True))
