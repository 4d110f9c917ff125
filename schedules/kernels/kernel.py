"""What a kernel is: a private PrimFunc over pointers that returns int32 0, and what each of its parameters wants.

Row r of a tensor lies at slot `r % height` of its storage. Parameters, in order (`RowKernel.params` lists them):

- per activation input i: `x{i}`, pointer to slot 0 of its storage; `x{i}_slot`, the slot of the window's first row,
  `first(y) mod height`; `x{i}_height`, the slots of the storage. An input that is read whole has slot 0. Where the
  rows of a tensor are not contiguous (NCHW: the row axis is not the first with more than one element) follow
  `x{i}_plane` and `x{i}_row`, the element strides between planes and between slots;
- a pointer per constant;
- `scratch`, int8*, aligned to 8 bytes, where `scratch_bytes > 0`;
- per output: a pointer to the first element of its row y, and `out{i}_plane` where its rows are not contiguous;
- `y`, the output row. A whole-operator kernel ignores it: the pointers are then those of whole tensors.

A pixel kernel (`RowKernel.pixels`) makes columns `[x0, x1)` of row y. Pixel p of a tensor, `row * columns + column`,
lies at slot `p % pixels` of its storage. Its parameters differ:

- `x{i}_slot` is the slot of pixel `max(first(y), 0) * columns + max(first column of x0, 0)`, the first that can be
  read; `x{i}_pixels` stands in the place of the height: the pixel slots of the storage;
- per output: `out{i}`, pointer to slot 0 of its storage; `out{i}_slot`, the slot of pixel (y, x0); `out{i}_pixels`;
- `y`, `x0`, `x1`. An operator whose columns are not known always makes whole rows: x0 is 0 and x1 the row's width.

A located kernel, of a step by pixels with a performance schedule (`schedules.forms.patch`), is a row kernel of few columns
whose windowed input is `x0`, pointer to slot 0 of its storage, and `x0_rows`, pointer to an int32 per kernel row: the
element of the storage at which the row's first column lies.

Tensors without contiguous pixels (NCHW) have the parameters of a row kernel here too: the roles tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from tvm_cascade.schedules.tir import PrimFunc


class Role(Enum):
    """What the driver passes for a parameter."""

    INPUT = "input"  # pointer to slot 0 of the storage of activation `index`
    SLOT = "slot"  # int32, slot of the window's first row
    HEIGHT = "height"  # int32, slots of the storage
    ROWS = "rows"  # pointer to an int32 per kernel row: where it starts, in elements from slot 0 of the storage
    PLANE = "plane"  # int32, elements from one plane of the storage to the next
    ROW_STRIDE = "row_stride"  # int32, elements from one slot of the storage to the next
    CONSTANT = "constant"  # pointer to `constants[index]`
    SCRATCH = "scratch"  # int8 pointer to `scratch_bytes` bytes
    OUTPUT = "output"  # pointer to row y of output `index`
    OUTPUT_PLANE = "output_plane"  # int32, elements from one plane of the output's storage to the next
    Y = "y"  # int32, the output row
    PIXEL_SLOT = "pixel_slot"  # int32, slot of the first pixel that may be read
    PIXELS = "pixels"  # int32, pixel slots of the storage
    OUTPUT_BASE = "output_base"  # pointer to slot 0 of the storage of output `index`
    OUTPUT_SLOT = "output_slot"  # int32, slot of pixel (y, x0)
    OUTPUT_PIXELS = "output_pixels"  # int32, pixel slots of the output's storage
    ACCUMULATOR = "accumulator"  # pointer to what an accumulating kernel keeps between calls
    BEGIN = "begin"  # int32, first element of the flattened input to consume
    END = "end"  # int32, first element after the last to consume
    X0 = "x0"  # int32, first output column
    X1 = "x1"  # int32, first output column after the last


_POINTERS = (Role.INPUT, Role.ROWS, Role.CONSTANT, Role.SCRATCH, Role.OUTPUT, Role.OUTPUT_BASE, Role.ACCUMULATOR)


@dataclass(frozen=True, slots=True)
class Param:
    role: Role
    index: int  # of the activation, constant or output; 0 for scratch and y
    dtype: str  # element type of a pointer, else "int32"

    @property
    def is_pointer(self) -> bool:
        return self.role in _POINTERS


@dataclass(frozen=True)
class RowKernel:
    """A row kernel (or, with `whole`, a kernel of the whole operator) and what to pass to it."""

    func: PrimFunc
    constants: tuple[np.ndarray, ...]  # in parameter order, possibly repacked for the kernel
    scratch_bytes: int = 0
    params: tuple[Param, ...] = ()
    whole: bool = False  # one call computes every row
    reason: str | None = None  # why it is `whole`, where that was not asked for
    rule: str = "generic"  # the schedule rule that made it
    pixels: bool = False  # one call computes columns [x0, x1) of a row, storages count pixels
    rows: int = 1  # one call computes rows [y, y + rows): the output's storage is contiguous there


def contract_params(
    inputs: Sequence[str],
    constants: Sequence[str],
    outputs: Sequence[str],
    scratch: bool = False,
    located: bool = False,
) -> tuple[Param, ...]:
    """Parameters of a kernel whose rows are contiguous, from the element types of its tensors."""
    listed: list[Param] = []
    for i, dtype in enumerate(inputs):
        listed.append(Param(Role.INPUT, i, dtype))
        where = (Role.ROWS,) if located else (Role.SLOT, Role.HEIGHT)
        listed += [Param(role, i, "int32") for role in where]
    listed += [Param(Role.CONSTANT, i, dtype) for i, dtype in enumerate(constants)]
    listed += [Param(Role.SCRATCH, 0, "int8")] if scratch else []
    listed += [Param(Role.OUTPUT, i, dtype) for i, dtype in enumerate(outputs)]
    return (*listed, Param(Role.Y, 0, "int32"))
