"""Rows at separate addresses: steps that find every row in a table in flash.

A plan may give each row of a tensor a separate address (`Storage.row_addresses`). The driver has a table of these
addresses for every tensor; a kernel gets a pointer into it, at the entry for the window's first row. So nothing is
computed or copied for a step: kernels that read through row tables (`schedules.forms.narrow_rows`) take this table
directly, for whole rows. Operators without a performance schedule have a generic kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_cascade.cascading.geometry import outermost
from tvm_cascade.footprints import KernelFootprints
from tvm_cascade.operators.table import SLIDING
from tvm_cascade.schedules.driver.calls import BuiltKernel, Caller
from tvm_cascade.schedules.forms import narrow_rows
from tvm_cascade.schedules.forms.form import KernelForm, Site, Use, Way
from tvm_cascade.schedules.kernels.addressed_row import addressed_row_kernel
from tvm_cascade.schedules.kernels.channel_groups import groups_of
from tvm_cascade.schedules.kernels.kernel import Role, RowKernel
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Expr, Stmt, i32


class RowAddresses(KernelForm):
    """Form for operators writing single rows and reading rows through windows."""

    way = Way.ROWS

    def footprint(self, site: Site, known: KernelFootprints) -> KernelFootprints | str:
        made = _variant(site)
        return made if isinstance(made, str) else replace(known, row_addresses=True)

    def build(self, site: Site, use: Use) -> BuiltKernel | str:
        tensors = (*use.op.inputs, *use.op.outputs)
        if not any(use.plan.storages[t].row_addresses for t in tensors):
            return "rows of its tensors lie one behind the other"
        made = _variant(site)
        if isinstance(made, str):
            return made
        if made is not None:
            return AddressedRowSteps((made.make(),))
        computed = site.computed
        generic = addressed_row_kernel(computed.func, computed.constants, computed.access)
        return generic if isinstance(generic, str) else AddressedRowSteps((generic,))


FORM = RowAddresses()


def _variant(site: Site) -> Variant | str | None:
    """Return the whole-row performance schedule that reads through a row table; None for the generic kernel; or why
    there is none.
    """
    access = site.computed.access
    if site.computed.tuned is not None or groups_of(site.computed.func):
        return "its kernel finds rows in rings alone"
    if site.row.whole or access.whole or not site.op.windows:
        return site.row.reason or "it has no kernel of one row"
    if not all(outermost(t) and t.row_axis is not None for t in site.tensors):
        return "rows of its tensors are not contiguous"
    if not site.scheduled:
        return None
    windows = narrow_rows.windows_of(site)
    if isinstance(windows, str):
        return windows
    single = all(narrow_rows.is_single(pair) for pair in windows)
    if not single and (site.op.kind not in SLIDING or len(site.op.inputs) != 1):
        return f"kernels of {site.op.kind} read through no row table"
    across, width = windows[0][1], site.tensors[0].columns
    columns = narrow_rows.columns_of(across, 0, site.tensors[-1].columns, width)
    made = narrow_rows.narrow_variants(site, windows, [columns], lambda _: False)
    return made if isinstance(made, str) else made[columns]


@dataclass(frozen=True)
class AddressedRowSteps(BuiltKernel):
    """Steps that compute a row, with pointers to the rows and into the address tables."""

    def step(self, caller: Caller, step: Expr) -> Stmt:
        kernel, y = self.variants[0], step
        by_table = {p.index for p in kernel.params if p.role is Role.ROW_TABLE}

        def read(i: int) -> Expr | None:
            t = caller.op.inputs[i]
            if i in by_table:
                return caller.memory.row(t, 0, caller.graph.tensors[t].dtype)
            return caller.row(t, y) if _by_rows(kernel, caller, i) else None

        own = {
            Role.INPUT: read,
            Role.ROW_TABLE: lambda i: caller.row_table(i, y),
            Role.OUTPUT: lambda i: caller.row(caller.op.outputs[i], y),
            Role.SLOT: lambda i: i32(0) if _by_rows(kernel, caller, i) else None,
            Role.SLOTS: lambda i: i32(1) if _by_rows(kernel, caller, i) else None,
        }
        return caller.call(y, own)


def _by_rows(kernel: RowKernel, caller: Caller, i: int) -> bool:
    """Return True if a kernel gets a pointer to the very row of input `i` it reads."""
    window = caller.op.windows[i]
    return kernel.scheduled and window is not None and window.stride > 0
