"""Stripes out of row kernels: columns `[x0, x1)` of a row by the operator's fast row kernel for so few columns.

As for steps by pixels (`schedules.forms.patch`), the row kernel reads the rows of its window from where a table says. A row of
a stripe's ring has all the columns that the stripe needs, so no run wraps and nothing is copied: `locate_rows` writes
the table. Stripes of the same width that begin and end alike share a kernel; first and last ones differ by their padding.
"""

# TVM's nodes get their fields and operators at run time, where no type checker sees them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportIndexIssue=false, reportReturnType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.tirx import BufferStore, For, PrimFunc, SeqStmt

from tvm_cascade.cores import KernelTarget
from tvm_cascade.graph import Graph, Op
from tvm_cascade.schedules.driver.places import i32
from tvm_cascade.schedules.forms.patch import (
    SLIDING,
    Form,
    Variant,
    form_of,
    is_nhwc,
    is_single,
    runs_of,
    sliding_windows,
    step_spec,
)
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.select import first_rule

NONE = -1  # of a stripe in which an operator makes nothing


@dataclass(frozen=True)
class StripePatch:
    """The row kernels of an operator that runs in stripes.

    `located` tells the kernel rows that an input is read by, 0 where it is read in place. `stripes` has the first stripe,
    ascending from 0, and the variant of every run of stripes (or `NONE`).
    """

    located: tuple[int, ...]
    variants: tuple[Variant, ...]
    stripes: tuple[tuple[int, int], ...]

    @property
    def scratch_bytes(self) -> int:
        return max(v.kernel.scratch_bytes for v in self.variants)

    def functions(self) -> list[tuple[str, PrimFunc]]:
        """Everything that the driver calls: kernels by variant, then `locate_rows`; each with the start of its name."""
        return [("", v.kernel.func) for v in self.variants] + ([("locate", locate_rows())] if any(self.located) else [])


def stripe_patch(
    graph: Graph, op: Op, spec: OperatorSpec, core: KernelTarget, columns: Sequence[tuple[int, int]]
) -> StripePatch | None:
    """The row kernels that make `columns` of an operator, by stripe; None where no performance schedule takes them all."""
    pairs = sliding_windows(op) if len(op.windows) == len(op.columns) == len(op.inputs) else None
    tensors = [graph.tensors[t] for t in (*op.inputs, *op.outputs)]
    if pairs is None or len(op.outputs) != 1 or not all(is_nhwc(t) for t in tensors):
        return None
    located = tuple(0 if is_single(r) and is_single(c) else r.extent for r, c in pairs)
    if any(located) and (op.kind not in SLIDING or len(op.inputs) != 1):
        return None
    across, width = pairs[0][1], tensors[0].columns
    forms = [form_of(across, begin, end - begin, width) if begin < end else None for begin, end in columns]
    made: dict[Form, Variant] = {}
    for form in dict.fromkeys(f for f in forms if f is not None):
        step = step_spec(graph, op, spec, pairs, form) if form.valid > 0 else None
        seldom = 4 * form.pixels * forms.count(form) < sum(end - begin for begin, end in columns)
        small = seldom and (core.backend == "c" or core.mve)  # as for steps by pixels
        kernel = None if step is None else first_rule(step, core, small)
        if kernel is None:
            return None
        made[form] = Variant(form, kernel)
    order = list(made)
    variants = (NONE if form is None else order.index(form) for form in forms)
    return StripePatch(located, tuple(made.values()), runs_of(range(len(forms)), variants)) if made else None


def locate_rows() -> PrimFunc:
    """`locate_rows(table, taps, slot, height, pitch, start) -> 0`: elements at which `taps` kernel rows begin.

    The first lies in slot `slot` of a ring of `height` rows, `pitch` elements from row to row, from element `start` on.
    """
    table = tirx.Var("table", PointerType(PrimType("int32")))
    names = ("taps", "slot", "height", "pitch", "start")
    taps, slot, height, pitch, start = (tirx.Var(n, "int32") for n in names)
    target = tirx.decl_buffer((1 << 20,), "int32", "target", data=table)
    row, tap = tirx.decl_buffer((1,), "int32", "row"), tirx.Var("tap", "int32")
    after = tirx.Var("after", "int32")
    body = [
        BufferStore(target, row[0] * pitch + start, [tap]),
        tirx.Bind(after, row[0] + 1),
        BufferStore(row, tirx.Select(after >= height, i32(0), after), [i32(0)]),
    ]
    stmts = [
        tirx.DeclBuffer(target, data=table),
        tirx.AllocBuffer(row),
        BufferStore(row, slot, [i32(0)]),
        For(tap, 0, taps, tirx.ForKind.SERIAL, SeqStmt(body)),
        tirx.Return(i32(0)),
    ]
    return PrimFunc([table, taps, slot, height, pitch, start], SeqStmt(stmts), PrimType("int32"))
