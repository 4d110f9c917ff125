"""Narrow row kernels: an operator's performance schedule applied to some pixels of a row, or to a stripe's row.

A performance schedule computes whole rows. For `n` neighbouring pixels, the operator is described with rows of `n`
columns. If its windows have several pixels, the kernel finds its input through a row table: a table in RAM with the
start of each kernel row of the window. Operators that read single pixels (1 x 1 convolutions, element-wise operators)
need no table. Padding columns are left out at compile time, so pixels at the map's edges need separate kernels; if
these run seldom, the variant with the smallest code is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tvm_cascade.graph import IDENTITY, Window
from tvm_cascade.schedules.driver.calls import OwnValues
from tvm_cascade.schedules.forms.form import Site
from tvm_cascade.schedules.kernels.kernel import Role
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.select import first_variant
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Expr, Stmt, i32, tirx

Windows = Sequence[tuple[Window, Window]]  # by input: its windows along rows and along columns
Runs = tuple[tuple[int, int], ...]  # by run of columns or stripes: the first, ascending from 0, and the kernel variant


@dataclass(frozen=True, order=True)
class Columns:
    """The columns that a step computes and reads. Steps with equal `Columns` share a kernel."""

    pixels: int  # output columns
    padding: int  # columns of padding to the left of the first input column
    valid: int  # input columns that the step reads inside of the tensor


def columns_of(across: Window, x0: int, pixels: int, width: int) -> Columns:
    """Compute the columns of a step for `pixels` pixels from column `x0` on, from an input of `width` columns."""
    first = x0 * across.stride - across.padding
    last = first + (pixels - 1) * across.stride + across.span
    return Columns(pixels, max(-first, 0), min(last, width) - max(first, 0))


def is_single(windows: tuple[Window, Window]) -> bool:
    """Test that each output pixel reads exactly the input pixel in the same row and column."""
    return all(w.extent == 1 and w.stride == 1 and w.padding == 0 and w.denominator == 1 for w in windows)


def _slides(window: Window) -> bool:
    return window.stride != 0 and window.denominator == 1


def reads_rows(windows: tuple[Window, Window]) -> bool:
    """Test that each output pixel reads all pixels of the input's same row, as the right operand of a product."""
    row, column = windows
    return is_single((row, IDENTITY)) and column.stride == 0 and column.padding == 0 and column.dilation == 1


def windows_of(site: Site, by_rows: bool = False) -> Windows | str:
    """Return the windows of an operator that can have narrow row kernels, or the reason against.

    `by_rows` allows inputs behind the first that `reads_rows` tells.
    """
    op = site.op
    if not site.scheduled:
        return "no performance schedule serves it"
    if not op.windows or not len(op.windows) == len(op.columns) == len(op.inputs) or len(op.outputs) != 1:
        return "its windows do not slide"
    pairs: list[tuple[Window, Window]] = []
    for row, column in zip(op.windows, op.columns, strict=True):
        if row is None or column is None:
            return "its windows do not slide"
        whole = by_rows and pairs and reads_rows((row, column))
        if not whole and not (_slides(row) and _slides(column)):
            return "its windows do not slide"
        if row.extent > 1 and row.dilation > 1:
            return "rows of its windows lie apart"
        pairs.append((row, column))
    made = site.tensors[-1].shape
    for pair, tensor in zip(pairs, site.tensors, strict=False):
        if is_single(pair) and tensor.shape[1:3] != made[1:3]:
            return "its last rows or columns read nothing but padding"
    nhwc = all(len(t.shape) == 4 and t.shape[0] == 1 and (t.row_axis, t.col_axis) == (1, 2) for t in site.tensors)
    return pairs if nhwc else "its tensors are not NHWC"


def narrow_variants(
    site: Site, windows: Windows, wanted: Iterable[Columns], is_seldom: Callable[[Columns], bool]
) -> dict[Columns, Variant] | str:
    """Choose the variant for each of `wanted`, or return why there is none; `is_seldom` asks for the smallest code."""
    assert site.core is not None
    made: dict[Columns, Variant] = {}
    for columns in dict.fromkeys(wanted):
        if columns.valid <= 0:
            return "some columns read nothing but padding"
        # elsewhere LLVM would unroll the loops of the small variant and make it larger
        small = is_seldom(columns) and (site.core.backend == "c" or site.core.mve)
        variant = first_variant(narrow_spec(site, windows, columns), site.core, small)
        if variant is None:
            return f"no performance schedule makes {columns.pixels} columns of it"
        made[columns] = variant
    return made


def narrow_spec(site: Site, windows: Windows, columns: Columns) -> OperatorSpec:
    """Limit an operator's spec to a step of `columns`.

    An input read through a row table has all rows and the step's valid columns; inputs read pixel by pixel are a single
    row of the step's pixels.
    """
    spec, single = site.spec, all(is_single(pair) or reads_rows(pair) for pair in windows)
    high = [1 if single else t.rows for t in site.tensors]
    wide = [t.shape[2] if reads_rows(pair) else columns.valid for pair, t in zip(windows, spec.inputs, strict=False)]
    inputs = tuple(
        t._replace(shape=(1, rows, pixels, t.shape[3]))
        for rows, pixels, t in zip(high, wide, spec.inputs, strict=False)
    )
    return replace(
        spec,
        inputs=inputs,
        output=spec.output._replace(shape=(1, high[-1], columns.pixels, spec.output.shape[3])),
        attributes=replace(spec.attributes, padding=(windows[0][0].padding, columns.padding, 0, 0)),
        rows_by_table=not single,
    )


def narrow_values(y: Expr) -> OwnValues:
    """Return the arguments of a narrow row kernel: y, and a ring with a single slot, since the pointers are already the
    pixels'.
    """
    return {Role.Y: lambda _: y, Role.SLOT: lambda _: i32(0), Role.SLOTS: lambda _: i32(1)}


def runs_of(places: Iterable[int], served: Iterable[int]) -> Runs:
    """Encode the variants (`served`) used by columns or stripes (`places`) as runs."""
    runs: list[tuple[int, int]] = []
    for place, which in zip(places, served, strict=True):
        if not runs or runs[-1][1] != which:
            runs.append((place, which))
    return tuple(runs)


def by_run(runs: Runs, place: Expr, call: Callable[[int], Stmt]) -> Stmt:
    """Write a chain of comparisons that runs `call(variant)` with the variant for column or stripe `place`."""
    body = call(runs[-1][1])
    for (_, which), (stop, _) in reversed(list(pairwise(runs))):
        body = tirx.IfThenElse(tirx.LT(place, i32(stop)), call(which), body)
    return body
