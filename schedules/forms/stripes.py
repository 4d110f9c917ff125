"""Vertical stripes: steps that compute a row's columns within a stripe, and copies of halo columns.

If the operator has a performance schedule, a step calls narrow row kernels (`schedules.forms.narrow_rows`): stripes of
equal width and padding share a kernel, the first and the last stripe differ by their padding. Without a schedule, or
without enough scratch in the plan, it calls the generic stripe kernel. That kernel gets shifted pointers: to the place
of the tensor's column 0 if the ring's rows were extended to the left.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.operators.table import SLIDING
from tvm_cascade.schedules.driver.calls import BuiltKernel, Caller
from tvm_cascade.schedules.driver.places import Place, first_inside, row_slot, slot_of
from tvm_cascade.schedules.forms import narrow_rows
from tvm_cascade.schedules.forms.form import KernelForm, Site, Use, Way
from tvm_cascade.schedules.forms.narrow_rows import Runs
from tvm_cascade.schedules.forms.row_table import ring_row_table
from tvm_cascade.schedules.kernels.kernel import Role
from tvm_cascade.schedules.kernels.stripe_kernel import stripe_kernel
from tvm_cascade.schedules.tir import Expr, PrimFunc, Stmt, Var, for_range, i32, sequence, tirx

NONE = -1  # instead of a variant's number: the operator computes nothing in these stripes


class Stripes(KernelForm):
    """Form for rows of stripes, by narrow row kernels if possible, else by the generic stripe kernel."""

    way, fallback = Way.STRIPES, True

    def build(self, site: Site, use: Use) -> BuiltKernel | str:
        fast = narrow_stripe_kernel(site, use.columns)
        if not isinstance(fast, str) and fast.scratch_bytes <= use.segment.scratch_bytes:
            return fast
        made = stripe_kernel(site.computed.func, site.computed.constants, site.computed.access)
        return made if isinstance(made, str) else GenericStripeKernel((made,))


FORM = Stripes()


class Lanes:
    """Addresses for a segment's tensors in stripes, as expressions in the current stripe."""

    def __init__(self, caller: Caller) -> None:
        self.caller, self.plan, self.graph = caller, caller.plan, caller.graph
        self.stripe, self.table = caller.calls.stripes[caller.number]

    def columns(self, actor: int) -> tuple[Expr, Expr]:
        """Return the columns `[x0, x1)` computed (or accumulated) by an operator in the current stripe."""
        ops = self.caller.segment.ops
        bounds = self.caller.memory.view("flash", "uint16")
        at = self.stripe * (2 * len(ops)) + (self.table + 2 * ops.index(actor))
        return bounds[at].astype("int32"), bounds[at + 1].astype("int32")

    def lane(self, t: int) -> tuple[Place, int, int, Expr]:
        """Return a tensor's layout: place, elements per pixel, columns per stored row, and the first column stored."""
        place, tensor, storage = self.caller.calls.places[t], self.graph.tensors[t], self.plan.storages[t]
        unit = place.row_bytes // tensor.columns // ITEM_BYTES[tensor.dtype]
        if not storage.columns:
            return place, unit, tensor.columns, i32(0)
        maker = self.graph.producer[t]
        assert maker is not None
        return place, unit, storage.columns, self._first(t, self.columns(maker)[0])

    def _first(self, t: int, x: Expr) -> Expr:
        """Return the first stored column of a tensor with own columns from `x` on: halo columns, if any, lie before."""
        halo, maker = self.plan.storages[t].halo_columns, self.graph.producer[t]
        if not halo:
            return x
        segment = self.caller.segment
        return tirx.max(x - halo, i32(segment.stripes[0][segment.ops.index(maker)][0]))

    def element(self, t: int, y: Expr | None = None, x: Expr | None = None) -> Expr:
        """Return the element, from slot 0, of column `x` in row `y` of a tensor; by default column 0, and slot 0."""
        place, unit, pitch, first = self.lane(t)
        at = i32(0) if y is None else slot_of(y, place, self.graph.tensors[t]) * pitch
        return ((at if x is None else at + x) - first) * unit

    def pointer(self, t: int, y: Expr | None = None, x: Expr | None = None) -> Expr:
        """Return a pointer to `element`."""
        dtype, address = self.graph.tensors[t].dtype, self.caller.calls.places[t].address
        return self.caller.memory.address(address, dtype, self.element(t, y, x))

    def copy_halo(self, t: int, y: Expr, x: Expr, back: bool) -> list[Stmt]:
        """Copy the halo columns of row `y`, left of `x`, from their block to the ring, or back with `back`."""
        if not self.plan.storages[t].halo_columns:
            return []
        place, unit, pitch, first = self.lane(t)
        tensor, start = self.graph.tensors[t], self._first(t, x)
        i = tirx.Var(f"{'keep' if back else 'take'}_{t}", "int32")
        block = self.caller.calls.addresses[f"kept {t}"]
        ends = (
            self._of(place, place.address, (slot_of(y, place, tensor) * pitch + start - first) * unit + i),
            self._of(place, block, y * (self.plan.storages[t].halo_columns * unit) + i),
        )
        (source, at), (target, to) = ends if back else ends[::-1]
        return [for_range(i, (x - start) * unit, tirx.BufferStore(target, source[at], [to]))]

    def _of(self, place: Place, address: int, further: Expr) -> tuple[Var, Expr]:
        return self.caller.memory.element(address, place.dtype, further)


@dataclass(frozen=True)
class StripeSteps(BuiltKernel):
    """Steps that compute a stripe's row: take halo columns from the previous stripe, leave some to the next."""

    def step(self, caller: Caller, step: Expr) -> Stmt:
        lanes = Lanes(caller)
        x0, x1 = lanes.columns(caller.op.index)
        call = self.row(caller, lanes, step)
        taken = [s for t in caller.op.outputs for s in lanes.copy_halo(t, step, x0, back=False)]
        given = [s for t in caller.op.outputs for s in lanes.copy_halo(t, step, x1, back=True)]
        return sequence([*taken, call, *given])

    @abstractmethod
    def row(self, caller: Caller, lanes: Lanes, y: Expr) -> Stmt:
        """Write the calls for row y of the current stripe."""


@dataclass(frozen=True)
class GenericStripeKernel(StripeSteps):
    """Steps that call a single generic kernel for all stripes, with the columns as arguments (`kernels.stripe_kernel`)."""

    def row(self, caller: Caller, lanes: Lanes, y: Expr) -> Stmt:
        x0, x1 = lanes.columns(caller.op.index)

        def stride(i: int) -> Expr:
            _, unit, pitch, _ = lanes.lane(caller.op.inputs[i])
            return i32(pitch * unit)

        own = {
            Role.INPUT: lambda i: lanes.pointer(caller.op.inputs[i]),
            Role.ROW_STRIDE: stride,
            Role.PLANE: lambda _: i32(0),
            Role.OUTPUT: lambda i: lanes.pointer(caller.op.outputs[i], y),
            Role.BEGIN: lambda _: x0,
            Role.END: lambda _: x1,
        }
        return caller.call(y, own)


@dataclass(frozen=True)
class NarrowStripeKernel(StripeSteps):
    """Steps with calls to narrow row kernels."""

    taps: tuple[int, ...]  # by input: kernel rows in its row table; 0: it is read directly, without a table
    stripes: Runs  # by run of stripes: the first one and its variant (or `NONE`)

    @property
    def helpers(self) -> tuple[PrimFunc, ...]:
        return (ring_row_table(),) if any(self.taps) else ()

    @property
    def table_entries(self) -> int:
        return max(self.taps)

    def row(self, caller: Caller, lanes: Lanes, y: Expr) -> Stmt:
        return narrow_rows.by_run(self.stripes, lanes.stripe, lambda which: self._call(caller, lanes, which, y))

    def _call(self, caller: Caller, lanes: Lanes, which: int, y: Expr) -> Stmt:
        if which == NONE:
            return tirx.Evaluate(i32(0))
        x0, _ = lanes.columns(caller.op.index)
        calls: list[Stmt] = []

        def read(i: int) -> Expr | None:
            if not self.taps[i]:
                return lanes.pointer(caller.op.inputs[i], y, x0)
            calls.append(self._fill(caller, lanes, i, (y, x0)))
            return None

        own = {
            Role.INPUT: read,
            Role.ROW_TABLE: lambda _: tirx.address_of(caller.calls.row_table[i32(0)]),
            Role.OUTPUT: lambda i: lanes.pointer(caller.op.outputs[i], y, x0),
            **narrow_rows.narrow_values(y if any(self.taps) else i32(0)),
        }
        call = caller.call(y, own, which)
        return sequence([*calls, call])

    def _fill(self, caller: Caller, lanes: Lanes, position: int, at: tuple[Expr, Expr]) -> Stmt:
        """Fill the row table for the window of output pixel `at`; rows begin at the window's first column inside the
        tensor.
        """
        window, across = caller.op.windows[position], caller.op.columns[position]
        assert window is not None and across is not None
        place, unit, pitch, first = lanes.lane(caller.op.inputs[position])
        slot = row_slot(window, at[0], place, caller.input(position)[1].rows)
        table = tirx.address_of(caller.calls.row_table[i32(0)])
        args = [
            table,
            i32(self.taps[position]),
            slot,
            i32(place.height),
            i32(pitch * unit),
            (first_inside(across, at[1]) - first) * unit,
        ]
        return caller.help(0, args)


def narrow_stripe_kernel(site: Site, columns: Sequence[tuple[int, int]]) -> NarrowStripeKernel | str:
    """Build an operator's narrow row kernels for stripes with the given `columns` [x0, x1), or return why there are
    none.
    """
    windows = narrow_rows.windows_of(site)
    if isinstance(windows, str):
        return windows
    taps = tuple(0 if narrow_rows.is_single(pair) else pair[0].extent for pair in windows)
    if any(taps) and (site.op.kind not in SLIDING or len(site.op.inputs) != 1):
        return f"kernels of {site.op.kind} read through no row table"
    across, width = windows[0][1], site.tensors[0].columns
    wanted = [
        narrow_rows.columns_of(across, begin, end - begin, width) if begin < end else None for begin, end in columns
    ]
    total = sum(end - begin for begin, end in columns)
    made = narrow_rows.narrow_variants(
        site, windows, [c for c in wanted if c is not None], lambda c: 4 * c.pixels * wanted.count(c) < total
    )
    if isinstance(made, str):
        return made
    if not made:
        return "no stripe has columns of it"
    order = list(made)
    served = (NONE if c is None else order.index(c) for c in wanted)
    return NarrowStripeKernel(
        tuple(v.make() for v in made.values()), taps, narrow_rows.runs_of(range(len(wanted)), served)
    )
