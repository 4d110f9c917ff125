"""Tiles of several rows: one call makes several output rows, and runs through the weights once.

Where weights lie in a flash that is slower than the core, a layer costs what it reads from there: a kernel of one row
streams all weights of its layer once for every row, and for every block of pixels in it. One of several rows takes a
block of output channels at a time over all pixels. What it makes, and what it reads, must lie in memory together,
neither over the other. Where windows are single pixels the rows are one long row: fewer blocks are cut short.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportArgumentType=false, reportOperatorIssue=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import tirx
from tvm.tirx import Evaluate, PrimFunc

from tvm_cascade.graph import KernelFootprints
from tvm_cascade.schedules.driver.calls import BuiltKernel, Caller
from tvm_cascade.schedules.driver.places import i32
from tvm_cascade.schedules.forms.form import KernelForm, Site, Use, Way
from tvm_cascade.schedules.forms.narrow_rows import is_single, windows_of
from tvm_cascade.schedules.forms.rows import check_rows
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.rules.quantized import integers
from tvm_cascade.schedules.rules.select import first_rule
from tvm_cascade.schedules.rules.variants import shape_key

Expr = tvm.ir.Expr


class MultiRowTiles(KernelForm):
    """Convolutions by performance schedules, in steps of any number of rows that divides the output."""

    way = Way.ROWS

    def footprint(self, site: Site, known: KernelFootprints) -> KernelFootprints | str:
        rows = site.tensors[-1].rows if site.op.outputs else 1
        made = "its output is one row" if rows == 1 else multi_row_kernel(site, rows)
        return made if isinstance(made, str) else replace(known, multi_row=True)

    def build(self, site: Site, use: Use) -> BuiltKernel | str:
        if use.segment.tile.rows == 1 or not use.op.kernels.multi_row:
            return "steps make one row"
        if any(use.plan.storages[t].pitch for t in (*use.op.inputs, *use.op.outputs)):
            return "pixels lie apart"
        made = multi_row_kernel(site, use.tile_rows)
        return made if isinstance(made, str) else MultiRowSteps((made,), use.tile_rows)


FORM = MultiRowTiles()


@dataclass(frozen=True)
class MultiRowSteps(BuiltKernel):
    """A kernel of `rows` rows a call."""

    rows: int

    def step(self, caller: Caller, step: Expr) -> tirx.Stmt:
        check_rows(caller)
        return caller.call(step * self.rows)


def multi_row_kernel(site: Site, rows: int) -> RowKernel | str:
    """The kernel of an operator for steps of `rows` rows, a divisor of all; or why no performance schedule makes it.

    None makes convolutions in groups, nor through LLVM windows of several pixels: it moves loads of all column groups in
    front of the loops over them, and spills.
    """
    windows = windows_of(site)
    if isinstance(windows, str):
        return windows
    core, func, constants, tensors = site.core, site.func, site.constants, site.tensors
    assert core is not None
    if len(windows) != 1 or site.op.kind != "conv2d" or integers(func, "groups", (1,))[0] != 1:
        return "it is no convolution of one group"
    if tensors[-1].rows % rows:
        return f"{rows} rows do not divide the output"
    flat = is_single(windows[0])
    if not flat and core.backend != "c":
        return "through LLVM windows of several pixels spill"
    shapes = [_long(t.shape, rows) if flat else t.shape for t in tensors]
    shapes[1:1] = [tuple(c.shape) for c in constants]
    types = [tensors[0].dtype, *(str(c.dtype) for c in constants), tensors[-1].dtype]
    params = [tirx.decl_buffer(s, d, f"p{k}") for k, (s, d) in enumerate(zip(shapes, types, strict=True))]
    attrs = {k: v for k, v in func.attrs.items() if k != "global_symbol"}
    attrs |= {"step_rows": 1 if flat else rows, "joined_rows": rows if flat else 1}
    step = PrimFunc(params, Evaluate(i32(0))).with_attr(attrs)
    chosen = core.choice(shape_key(func, constants))
    if chosen is not None:  # what was counted for one row
        core = replace(core, choices=(*core.choices, (shape_key(step, constants), chosen)))
    kernel = first_rule(step, constants, core)
    if kernel is None or kernel.rows != (1 if flat else rows):
        return f"no performance schedule makes {rows} rows of it"
    return replace(kernel, rows=rows)


def _long(shape: Sequence[int], rows: int) -> tuple[int, ...]:
    """NHWC, `rows` rows joined into one."""
    return (shape[0], shape[1] // rows, shape[2] * rows, shape[3])
