"""The calling convention for kernels: private PrimFuncs over pointers with result int32 0, and their parameters.

Row r of a tensor lies at slot `r % height` in storage, a ring of `height` rows. Parameters, in order
(`RowKernel.params` lists them):

- per activation input i: `x{i}`, pointer to slot 0 of its storage; `x{i}_slot`, the slot of the window's first row,
  `first(y) mod height`; `x{i}_height`, the slots of the storage. An input that is read whole has slot 0. Where the
  rows of a tensor are not contiguous (NCHW: the row axis is not the first with more than one element) follow
  `x{i}_plane` and `x{i}_row`, the element strides between planes and between slots;
- a pointer per constant;
- `scratch`, int8*, aligned to 8 bytes, where `scratch_bytes > 0`;
- per output: a pointer to the first element of its row y, and `out{i}_plane` where its rows are not contiguous;
- `y`, the output row. A whole-operator kernel ignores it: the pointers are then those of whole tensors.

A pixel kernel (`schedules.kernels.pixel_kernel`) computes columns `[begin, end)` of row y. Pixel p of a tensor, `row *
columns + column`, lies at slot `p % pixels` in storage. The parameters differ for tensors with contiguous pixels; for
other tensors (NCHW) they are a row kernel's:

- `x{i}_slot` is the slot of pixel `max(first(y), 0) * columns + max(first column of begin, 0)`, the first that can be
  read; `x{i}_pixels`, the number of pixel slots of the storage, replaces `x{i}_height`;
- per output: `out{i}`, pointer to slot 0 of its storage; `out{i}_slot`, the slot of pixel (y, begin); `out{i}_pixels`;
- `y`, `begin`, `end`. An operator whose columns are not known always computes whole rows: begin is 0, end their width.

A kernel that reads through a row table (`schedules.forms.narrow_rows`) is a narrow row kernel with two parameters for
the windowed input: `x0`, pointer to slot 0 of its storage, and `x0_rows`, pointer to an int32 per kernel row: the
storage element of the row's first column. An accumulating kernel adds input elements `[begin, end)`
(`schedules.kernels.accumulate`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from weakref import WeakValueDictionary

import numpy as np

from tvm_cascade.schedules.kernels.storage import AS_THEY_ARE, Storage
from tvm_cascade.schedules.tir import PrimFunc


class Role(Enum):
    """The meaning of a kernel parameter, that is, the value passed by the driver."""

    # pointers
    INPUT = "input"  # to slot 0 of the storage of activation `index`
    ROW_TABLE = "row_table"  # to an int32 per kernel row: where it starts, in elements from slot 0 of the storage
    CONSTANT = "constant"  # to `constants[index]`
    SCRATCH = "scratch"  # int8, to `scratch_bytes` bytes
    ACCUMULATOR = "accumulator"  # to the sums that an accumulating kernel keeps between calls
    OUTPUT = "output"  # to row y of output `index`; in a kernel with OUTPUT_SLOT, to slot 0 of its storage
    # int32, of the storage of activation `index`
    SLOT = "slot"  # slot of the window's first row, or of the first pixel that may be read
    SLOTS = "slots"  # row slots, or pixel slots, of the storage
    PLANE = "plane"  # elements from one plane to the next
    ROW_STRIDE = "row_stride"  # elements from one slot to the next
    # int32, of the storage of output `index`
    OUTPUT_SLOT = "output_slot"  # slot of pixel (y, begin)
    OUTPUT_SLOTS = "output_slots"  # pixel slots of the storage
    OUTPUT_PLANE = "output_plane"  # elements from one plane to the next
    # int32, the part of the output to compute
    Y = "y"  # the output row
    BEGIN = "begin"  # the first output column, or element of the flattened input
    END = "end"  # the first one after the last


_POINTERS = (Role.INPUT, Role.ROW_TABLE, Role.CONSTANT, Role.SCRATCH, Role.OUTPUT, Role.ACCUMULATOR)


@dataclass(frozen=True, slots=True)
class Param:
    role: Role
    index: int  # of the activation, constant or output; 0 for scratch and y
    dtype: str  # element type of a pointer, else "int32"

    @property
    def is_pointer(self) -> bool:
        return self.role in _POINTERS


@dataclass(frozen=True, eq=False)
class Deferred:
    """A function written at first use: planning looks at many kernels but emits few."""

    write: Callable[[], PrimFunc]

    @classmethod
    def of(cls, write: Callable[[], PrimFunc], form: Hashable | None) -> Deferred:
        """Return the function of `write`. Functions with equal `form`, which must determine the function, are shared
        and written once.
        """
        return cls(write) if form is None else _FORMS.setdefault(form, cls(write))

    @cached_property
    def func(self) -> PrimFunc:
        return self.write()


_FORMS: WeakValueDictionary[Hashable, Deferred] = WeakValueDictionary()  # what some kernel still uses


@dataclass(frozen=True)
class RowKernel:
    """A row kernel (or, with `whole`, a kernel for the whole operator), constants and parameters."""

    code: PrimFunc | Deferred
    constants: tuple[np.ndarray, ...]  # in parameter order, possibly repacked for the kernel
    scratch_bytes: int = 0
    params: tuple[Param, ...] = ()  # the meaning of each parameter of `func`
    whole: bool = False  # one call computes every row
    reason: str | None = None  # why it is `whole`, where a row kernel was asked for
    rule: str = "generic"  # how it was made: the performance schedule, or from the operator's own function
    scheduled: bool = False  # whether by a schedule of its kind of operator, which makes parts of rows as well
    rows: int = 1  # one call computes rows [y, y + rows): the output's storage is contiguous there
    storage: Storage = AS_THEY_ARE  # of the weights

    @property
    def func(self) -> PrimFunc:
        """Return the kernel as a function."""
        return self.code.func if isinstance(self.code, Deferred) else self.code


def contract_params(
    inputs: Sequence[str],
    constants: Sequence[str],
    outputs: Sequence[str],
    scratch: bool = False,
    row_table: bool = False,
) -> tuple[Param, ...]:
    """List the parameters of a row kernel on tensors with contiguous rows, from the tensors' element types."""
    listed: list[Param] = []
    for i, dtype in enumerate(inputs):
        listed.append(Param(Role.INPUT, i, dtype))
        where = (Role.ROW_TABLE,) if row_table else (Role.SLOT, Role.SLOTS)
        listed += [Param(role, i, "int32") for role in where]
    listed += [Param(Role.CONSTANT, i, dtype) for i, dtype in enumerate(constants)]
    listed += [Param(Role.SCRATCH, 0, "int8")] if scratch else []
    listed += [Param(Role.OUTPUT, i, dtype) for i, dtype in enumerate(outputs)]
    return (*listed, Param(Role.Y, 0, "int32"))
