"""Multi-row tiles: a kernel call computes several output rows and reads the weights only once.

If flash is slower than the core, reading weights dominates a layer's time: a one-row kernel reads all weights for every
row, and again for every block of pixels in the row. A multi-row kernel takes a block of output channels at a time
through all pixels of its rows. All these output rows, and the input rows they read, must be in memory at once without
overlap. If windows are single pixels the rows are treated as one long row, which leaves fewer incomplete pixel blocks
at row ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_cascade.footprints import KernelFootprints
from tvm_cascade.operators.record import TensorType
from tvm_cascade.operators.table import CONVOLUTIONS
from tvm_cascade.schedules.driver.calls import BuiltKernel, Caller
from tvm_cascade.schedules.forms.form import KernelForm, Site, Use, Way
from tvm_cascade.schedules.forms.narrow_rows import is_single, windows_of
from tvm_cascade.schedules.forms.rows import check_rows
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.select import first_variant
from tvm_cascade.schedules.rules.variants import Variant, shape_key
from tvm_cascade.schedules.tir import Expr, Stmt


class MultiRowTiles(KernelForm):
    """Form for convolutions with a performance schedule, for any number of rows that divides the output's."""

    way = Way.ROWS

    def footprint(self, site: Site, known: KernelFootprints) -> KernelFootprints | str:
        rows = site.tensors[-1].rows if site.op.outputs else 1
        made = "its output is one row" if rows == 1 else multi_row_variant(site, rows)
        return made if isinstance(made, str) else replace(known, multi_row=True)

    def build(self, site: Site, use: Use) -> BuiltKernel | str:
        if use.segment.tile.rows == 1 or not use.op.kernels.multi_row:
            return "steps make one row"
        if any(use.plan.storages[t].pitch for t in (*use.op.inputs, *use.op.outputs)):
            return "pixels lie apart"
        made = multi_row_variant(site, use.tile_rows)
        if isinstance(made, str):
            return made
        return MultiRowSteps((replace(made.make(), rows=use.tile_rows),), use.tile_rows)


FORM = MultiRowTiles()


@dataclass(frozen=True)
class MultiRowSteps(BuiltKernel):
    """Steps that make a call to a kernel for `rows` output rows."""

    rows: int

    def step(self, caller: Caller, step: Expr) -> Stmt:
        check_rows(caller)
        return caller.call(step * self.rows)


def multi_row_variant(site: Site, rows: int) -> Variant | str:
    """Choose the variant that computes an operator in steps of `rows` rows, or return why there is none.

    `rows` must divide the output's rows. There is no variant for grouped convolutions, and with LLVM none for windows
    of several pixels: LLVM would hoist the loads for all column groups before the loops over them, and spill
    registers.
    """
    windows = windows_of(site)
    if isinstance(windows, str):
        return windows
    core = site.core
    assert core is not None
    if len(windows) != 1 or site.op.kind not in CONVOLUTIONS or site.spec.attributes.groups not in (None, 1):
        return "it is no convolution of one group"
    if site.tensors[-1].rows % rows:
        return f"{rows} rows do not divide the output"
    flat = is_single(windows[0])
    if not flat and core.backend != "c":
        return "through LLVM windows of several pixels spill"
    step = _joined(site.spec, rows) if flat else replace(site.spec, tile_rows=rows)
    chosen = core.choice(shape_key(site.spec))
    if chosen is not None:  # use the variant that was chosen for one row
        core = replace(core, choices=(*core.choices, (shape_key(step), chosen)))
    variant = first_variant(step, core)
    if variant is None or variant.rows != (1 if flat else rows):
        return f"no performance schedule makes {rows} rows of it"
    return variant


def _joined(spec: OperatorSpec, rows: int) -> OperatorSpec:
    """Convert the operator to reshaped NHWC tensors: every `rows` rows of W columns become a row of `rows * W` columns."""
    inputs, output = tuple(_long(t, rows) for t in spec.inputs), _long(spec.output, rows)
    # a stride or a padding at the end of a file's single column means nothing there, and would between columns
    attributes = replace(spec.attributes, strides=(1, 1), padding=(0, 0, 0, 0))
    return replace(spec, inputs=inputs, output=output, attributes=attributes, tile_rows=1, joined_rows=rows)


def _long(tensor: TensorType, rows: int) -> TensorType:
    batch, height, width, channels = tensor.shape
    return tensor._replace(shape=(batch, height // rows, width * rows, channels))
