"""Channel-tiled kernels of an inverted bottleneck: the wide intermediate a group of channels at a time.

The PrimFunc (`cascading.channels`) is an expansion, a depthwise convolution and a projection in sequence, with the
attribute `channel_groups`. Moving the blocks by schedule primitives would still compute all channels of a row at once,
so new loops are written around the blocks' statements, for columns [x0, x1) of row y:

    sums[x, d] = 0
    for g: for r, c covered by the windows, e of g: acc = 0; for i: acc += x[r, c, i] * we[i, e]; wide[r, c, e] = requantize(acc)
           for x: for e of g: acc = 0; for r, c of the window: acc += wide[r, c, e] * wd[r, c, e]; pixel[e] = requantize(acc)
                  for d: acc = 0; for e of g: acc += pixel[e] * wp[e, d]; sums[x, d] += acc
    for x, d: out[y, x, d] = requantize(sums[x, d])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tvm_cascade.footprints import MIN_SCRATCH_ELEMENTS
from tvm_cascade.graph import Window
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.assembly import Assembly, build, build_kernel
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import read_attributes
from tvm_cascade.schedules.kernels.stripe_kernel import StripeAssembly
from tvm_cascade.schedules.tir import Buffer, Expr, PrimFunc, Stmt, for_range, i32, sym, tirx
from tvm_cascade.schedules.tir.staging import ROW, NotRowwiseError, inlined

_WRITTEN_OUT = 32  # most terms of a sum that is unrolled

# indices of a block's buffer to where the kernel holds it
Place = Callable[[Sequence[Expr]], tuple[Buffer, list[Expr]]]


def groups_of(func: PrimFunc) -> int:
    """Count the channel groups in a channel-tiled function, 0 for any other function."""
    return read_attributes(func).channel_groups or 0


def grouped_row_kernel(func: PrimFunc, constants: Sequence[np.ndarray], access: RowAccess, name: str) -> RowKernel:
    """Build the channel-tiled kernel for an output row, with a row kernel's parameters."""
    return build_kernel(func, constants, _GroupedRow, access, name)


def grouped_stripe_kernel(func: PrimFunc, constants: Sequence[np.ndarray], access: RowAccess, width: int) -> RowKernel:
    """Build the channel-tiled kernel for at most `width` columns `[x0, x1)` of a row, with a stripe kernel's
    parameters.
    """
    return build(func, constants, _GroupedStripe(access, width), "grouped_stripe_kernel")


class _GroupedRow(Assembly):
    def staged(self, func: PrimFunc) -> PrimFunc:
        width = tir.shape_of(tir.outputs_of(func)[0])[2]
        return _Loops(func, i32(0), i32(width), width).function()


class _GroupedStripe(StripeAssembly):
    def __init__(self, access: RowAccess, width: int) -> None:
        super().__init__(access)
        self.parts, self.width = False, width  # the loops know x0 and x1 themselves

    def staged(self, func: PrimFunc) -> PrimFunc:
        return _Loops(func, self.x0, self.x1, self.width).function()


@dataclass(frozen=True)
class _Block:
    """A block of the operator, with a statement to copy into the new loops."""

    realize: object

    @property
    def store(self) -> Stmt:
        return tir.stores(self.realize.block.body)[0]  # type: ignore[attr-defined]

    @property
    def target(self) -> Buffer:
        return self.store.buffer

    def at(self, place: Sequence[Expr], reduced: Sequence[Expr], places: Mapping[Buffer, Place]) -> Stmt:
        """Copy the statement for the output element at `place` and the reduction variables' values `reduced`."""
        values = dict(zip(self.store.indices, place, strict=True))
        rest = [iv.var for iv in self.realize.block.iter_vars if iv.var not in values]  # type: ignore[attr-defined]
        values |= dict(zip(rest, reduced, strict=True))

        def moved(buffer: Buffer, indices: list[Expr]) -> tuple[Buffer, list[Expr]] | None:
            return places[buffer](indices) if buffer in places else None

        return tir.relocated(tir.substitute(self.store, values), moved)

    def extents(self) -> list[int]:
        """Return the extents of the block's reduction variables."""
        own = list(self.store.indices)
        ivs = self.realize.block.iter_vars  # type: ignore[attr-defined]
        return [int(iv.dom.extent) for iv in ivs if not any(iv.var.same_as(i) for i in own)]


class _Loops:
    """Builder for a channel-tiled kernel's loops, for columns `[x0, x1)`, at most `width` columns."""

    def __init__(self, func: PrimFunc, x0: Expr, x1: Expr, width: int) -> None:
        self.func = inlined(func)
        found = [_Block(r) for r in tir.leaf_blocks(self.func)]
        if len(found) != 6:
            raise NotRowwiseError(f"an inverted bottleneck of {len(found)} blocks")
        self.expand, self.expanded, self.depthwise, self.filtered, self.project, self.projected = found
        self.groups, self.x0, self.x1 = groups_of(func), x0, x1
        _, self.height, self.columns, channels = tir.shape_of(self.expanded.target)
        _, self.rows, _, made = tir.shape_of(self.projected.target)
        self.each = channels // self.groups
        self.down, self.across = windows_of(func)
        self.y = tirx.Var("y", "int32")
        self.top, self.left = (v * w.stride - w.padding for v, w in ((self.y, self.down), (x0, self.across)))
        self.made, self.count = made, x1 - x0
        self.low = tirx.max(self.left, i32(0))
        self.high = tirx.min((x1 - 1) * self.across.stride - self.across.padding + self.across.span, i32(self.columns))
        self.covered = self.across.stride * (width - 1) + self.across.extent  # at most
        self.wide = tirx.decl_buffer((self.down.extent * self.covered * self.each,), "int8", "wide")
        few = MIN_SCRATCH_ELEMENTS - 1 if made < MIN_SCRATCH_ELEMENTS else 0
        self.pixel = tirx.decl_buffer((max(self.each, MIN_SCRATCH_ELEMENTS),), "int8", "pixel")
        self.sums = tirx.decl_buffer((few + width * made,), "int32", "sums")
        self.acc = tirx.decl_buffer((1,), "int32", "acc")
        self.analyzer = sym.Analyzer()

    def function(self) -> PrimFunc:
        """Return the loops as a function, in an annotated outermost loop over rows."""
        group = tirx.Var("group", "int32")
        begin = group * self.each
        body = tirx.SeqStmt(
            [
                self._clear(),
                for_range(group, self.groups, tirx.SeqStmt([self._expansion(begin), self._projection(begin)])),
                self._outputs(),
            ]
        )
        body = tirx.IfThenElse(self.x0 < self.x1, body, None)
        own = [tirx.AllocBuffer(b) for b in (self.wide, self.pixel, self.sums, self.acc)]
        rows = tirx.For(self.y, i32(0), i32(self.rows), tirx.ForKind.SERIAL, tirx.SeqStmt([*own, body]), None, {ROW: 1})
        return tirx.PrimFunc(self.func.params, rows, self.func.ret_type, attrs=self.func.attrs)

    def _clear(self) -> Stmt:
        x, d = (tirx.Var(n, "int32") for n in ("x", "d"))
        return for_range(
            x, self.count, for_range(d, self.made, tirx.BufferStore(self.sums, i32(0), [x * self.made + d]))
        )

    def _expansion(self, begin: Expr) -> Stmt:
        """Compute the group's channels of the expansion for all rows and columns that the windows read, padding left out."""
        r, c, e = (tirx.Var(n, "int32") for n in ("row", "column", "e"))
        first, last = tirx.max(i32(0) - self.top, i32(0)), tirx.min(self.height - self.top, i32(self.down.extent))
        place = [i32(0), self.top + first + r, self.low + c, begin + e]
        places = {self.expand.target: self._scalar, self.expanded.target: self._wide(begin)}
        body = tirx.SeqStmt([*self._summed(self.expand, place, places), self.expanded.at(place, [], places)])
        return for_range(r, last - first, for_range(c, self.high - self.low, for_range(e, self.each, body)))

    def _projection(self, begin: Expr) -> Stmt:
        """Apply the depthwise filter to the group's channels and add their products to the projection's sums, column by
        column.
        """
        x, e, d, part = (tirx.Var(n, "int32") for n in ("x", "e", "d", "part"))
        places = {
            self.expanded.target: self._wide(begin),
            self.depthwise.target: self._scalar,
            self.filtered.target: lambda at: (self.pixel, [self._difference(at[3], begin)]),
            self.project.target: self._scalar,
        }
        here = [i32(0), self.y, self.x0 + x, begin + e]
        filtered = [*self._summed(self.depthwise, here, places), self.filtered.at(here, [], places)]
        add = self.project.at([i32(0), self.y, self.x0 + x, d], [i32(0), i32(0), begin + part], places)
        at = x * self.made + d
        total = tirx.BufferStore(self.sums, self.sums[at] + self.acc[i32(0)], [at])
        summed = [
            tirx.BufferStore(self.acc, i32(0), [i32(0)]),
            for_range(part, self.each, add, self._kind(self.each)),
            total,
        ]
        added = for_range(d, self.made, tirx.SeqStmt(summed))
        return for_range(x, self.count, tirx.SeqStmt([for_range(e, self.each, tirx.SeqStmt(filtered)), added]))

    def _outputs(self) -> Stmt:
        x, d = (tirx.Var(n, "int32") for n in ("x", "d"))
        store = self.projected.at([i32(0), self.y, self.x0 + x, d], [], {self.project.target: self._sum})
        return for_range(x, self.count, for_range(d, self.made, store))

    def _summed(self, block: _Block, place: Sequence[Expr], places: Mapping[Buffer, Place]) -> list[Stmt]:
        """Write the loops of a block's reduction, into the scalar accumulator."""
        loops = [tirx.Var(f"k{n}", "int32") for n in range(len(block.extents()))]
        body = block.at(place, loops, places)
        padded = block is self.depthwise  # padding becomes bounds of its loops, so they cannot be unrolled
        kind = tirx.ForKind.SERIAL if padded else self._kind(prod(block.extents()))
        for var, extent in zip(reversed(loops), reversed(block.extents()), strict=True):
            body = for_range(var, extent, body, kind)
        return [tirx.BufferStore(self.acc, i32(0), [i32(0)]), body]

    def _kind(self, terms: int) -> object:
        """Choose the kind of a loop over `terms` terms: few terms are unrolled, so addresses become constants."""
        return tirx.ForKind.UNROLLED if terms <= _WRITTEN_OUT else tirx.ForKind.SERIAL

    def _scalar(self, _at: Sequence[Expr]) -> tuple[Buffer, list[Expr]]:
        return self.acc, [i32(0)]

    def _sum(self, at: Sequence[Expr]) -> tuple[Buffer, list[Expr]]:
        return self.sums, [self._difference(at[2], self.x0) * self.made + at[3]]

    def _wide(self, begin: Expr) -> Place:
        def place(at: Sequence[Expr]) -> tuple[Buffer, list[Expr]]:
            row, column, e = (self._difference(i, s) for i, s in zip(at[1:], (self.top, self.left, begin), strict=True))
            return self.wide, [(row * self.covered + column) * self.each + e]

        return place

    def _difference(self, index: Expr, start: Expr) -> Expr:
        return self.analyzer.simplify(index - start)


def windows_of(func: PrimFunc) -> tuple[Window, Window]:
    """Return the depthwise convolution's windows along rows and along columns, from the function's attributes."""
    attributes = read_attributes(func)
    kernel, strides, padding = attributes.kernel, attributes.strides, attributes.padding
    assert kernel is not None and strides is not None and padding is not None
    return tuple(Window(kernel[n], strides[n], 1, padding[n]) for n in (0, 1))  # type: ignore[return-value]
