"""Row kernels of few columns: what serves some pixels of a row, or a row of a stripe, by an operator's performance schedule.

A performance schedule makes whole rows. For `n` neighbouring pixels the operator is described as one whose rows have `n`
columns, and which is read by a row table where windows have several pixels: a table in RAM tells where each kernel row of
the window begins. Columns of padding are the kernel's business, as in whole rows: pixels at the edges have kernels of
their own, small ones where they are few. What reads single pixels (1 x 1 convolutions, element-wise operators) reads them
in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tvm_cascade.graph import Window
from tvm_cascade.schedules.driver.calls import OwnValues
from tvm_cascade.schedules.forms.form import Site
from tvm_cascade.schedules.kernels.kernel import Role, RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.select import first_rule
from tvm_cascade.schedules.tir import Expr, Stmt, i32, tirx

Windows = Sequence[tuple[Window, Window]]  # along rows and columns, of every input
Runs = tuple[tuple[int, int], ...]  # the first column or stripe, ascending from 0, of a run, and what serves it
SLIDING = ("conv2d", "depthwise_conv2d", "max_pool2d", "avg_pool2d")  # kinds whose kernels read through a row table


@dataclass(frozen=True, order=True)
class Columns:
    """The geometry of a step along the columns. Steps of equal geometry share a kernel."""

    pixels: int  # output columns
    padding: int  # columns of padding before the first of the window
    valid: int  # columns of the window inside of the tensor


def columns_of(across: Window, x0: int, pixels: int, width: int) -> Columns:
    """The columns of a step of `pixels` pixels from column `x0` on, whose input is `width` columns wide."""
    first = x0 * across.stride - across.padding
    last = first + (pixels - 1) * across.stride + across.span
    return Columns(pixels, max(-first, 0), min(last, width) - max(first, 0))


def is_single(windows: tuple[Window, Window]) -> bool:
    """Whether an output pixel reads one input pixel, that of its own place."""
    return all(w.extent == 1 and w.stride == 1 and w.padding == 0 and w.denominator == 1 for w in windows)


def _slides(window: Window) -> bool:
    return window.stride != 0 and window.denominator == window.dilation == 1


def windows_of(site: Site) -> Windows | str:
    """The windows of an operator that row kernels of few columns may serve, or why they may not."""
    op = site.op
    if not site.scheduled:
        return "no performance schedule serves it"
    if not op.windows or not len(op.windows) == len(op.columns) == len(op.inputs) or len(op.outputs) != 1:
        return "its windows do not slide"
    pairs: list[tuple[Window, Window]] = []
    for row, column in zip(op.windows, op.columns, strict=True):
        if row is None or column is None or not all(_slides(w) for w in (row, column)):
            return "its windows do not slide"
        pairs.append((row, column))
    nhwc = all(len(t.shape) == 4 and t.shape[0] == 1 and (t.row_axis, t.col_axis) == (1, 2) for t in site.tensors)
    return pairs if nhwc else "its tensors are not NHWC"


def narrow_kernels(
    site: Site, windows: Windows, wanted: Iterable[Columns], is_seldom: Callable[[Columns], bool]
) -> dict[Columns, RowKernel] | str:
    """The row kernel for each of `wanted`, small ones for those that run seldom; or why there are none."""
    assert site.core is not None
    made: dict[Columns, RowKernel] = {}
    for columns in dict.fromkeys(wanted):
        if columns.valid <= 0:
            return "some columns read nothing but padding"
        # other kernels grow where LLVM writes their loops out
        small = is_seldom(columns) and (site.core.backend == "c" or site.core.mve)
        kernel = first_rule(narrow_spec(site, windows, columns), site.core, small)
        if kernel is None:
            return f"no performance schedule makes {columns.pixels} columns of it"
        made[columns] = kernel
    return made


def narrow_spec(site: Site, windows: Windows, columns: Columns) -> OperatorSpec:
    """The operator in one step.

    Of an input that is read through a row table it has all rows and the valid columns of a window; of what is read in
    place the step's pixels.
    """
    spec, single = site.spec, all(is_single(pair) for pair in windows)
    high = [1 if single else t.rows for t in site.tensors]
    inputs = tuple(
        t._replace(shape=(1, rows, columns.valid, t.shape[3])) for rows, t in zip(high, spec.inputs, strict=False)
    )
    return replace(
        spec,
        inputs=inputs,
        output=spec.output._replace(shape=(1, high[-1], columns.pixels, spec.output.shape[3])),
        attributes=replace(spec.attributes, padding=(windows[0][0].padding, columns.padding, 0, 0)),
        rows_by_table=not single,
    )


def narrow_values(y: Expr) -> OwnValues:
    """What a kernel of few columns is told in the place of a ring's slots: its pointers are those of its pixels."""
    return {Role.Y: lambda _: y, Role.SLOT: lambda _: i32(0), Role.SLOTS: lambda _: i32(1)}


def runs_of(places: Iterable[int], served: Iterable[int]) -> Runs:
    """The first place of every run of places that the same variant serves, and that variant."""
    runs: list[tuple[int, int]] = []
    for place, which in zip(places, served, strict=True):
        if not runs or runs[-1][1] != which:
            runs.append((place, which))
    return tuple(runs)


def by_run(runs: Runs, place: Expr, call: Callable[[int], Stmt]) -> Stmt:
    """`call` of the variant that serves `place`."""
    body = call(runs[-1][1])
    for (_, which), (stop, _) in reversed(list(pairwise(runs))):
        body = tirx.IfThenElse(tirx.LT(place, i32(stop)), call(which), body)
    return body
