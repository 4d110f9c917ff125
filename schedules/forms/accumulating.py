"""Accumulating reductions: each step adds a part of the input to an accumulator, and the last writes the output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tvm_cascade.cascading.geometry import has_pixels
from tvm_cascade.footprints import KernelFootprints
from tvm_cascade.graph import ITEM_BYTES, Tensor
from tvm_cascade.schedules.driver.calls import BuiltKernel, Caller
from tvm_cascade.schedules.driver.places import tiles_are_contiguous
from tvm_cascade.schedules.forms.form import KernelForm, Site, Use, Way
from tvm_cascade.schedules.forms.stripes import Lanes
from tvm_cascade.schedules.kernels.accumulate import Accumulating, accumulate_kernel
from tvm_cascade.schedules.kernels.kernel import Role
from tvm_cascade.schedules.rules.dense_sum import dense_sum
from tvm_cascade.schedules.rules.pool_sum import pool_sum
from tvm_cascade.schedules.tir import Expr, Stmt, i32, sequence, tirx


class AccumulatingSteps(KernelForm):
    """Form for operators with a single input read in a reduction, such as global pools and dense layers."""

    way = Way.ACCUMULATING

    def footprint(self, site: Site, known: KernelFootprints) -> KernelFootprints | str:
        made = "its weights are decoded once a row" if site.decodes else accumulating(site)
        return made if isinstance(made, str) else replace(known, accumulator_bytes=made.accumulator_bytes)

    def build(self, site: Site, use: Use) -> BuiltKernel | str:
        made = accumulating(site)
        if isinstance(made, str):
            return made
        if site.core is not None:
            made = pool_sum(site.spec, made, site.core)
            made = dense_sum(site.spec, made, site.core, _unit(site))
        return AccumulatingKernel((made.kernel,))


FORM = AccumulatingSteps()


def accumulating(site: Site) -> Accumulating | str:
    """Build an operator's generic accumulating kernel, or return why there is none.

    Steps deliver whole pixels of the tensor that owns the input's memory: these must be multiples of the kernel's
    granule.
    """
    op, graph = site.op, site.graph
    if len(op.inputs) != 1:
        return "it has several inputs"
    window = op.windows[0] if op.windows else None
    if window is not None and window.stride and graph.tensors[op.inputs[0]].rows > 1:
        return "its input is read in sliding windows"
    made = accumulate_kernel(site.computed.func, site.computed.constants)
    if isinstance(made, str):
        return made
    owner, offset = _owner(site)
    axis = owner.row_axis
    if axis is None or offset or prod(owner.shape[:axis]) != 1 or prod(owner.shape) != made.elements:
        return "rows of the input do not lie one behind the other"
    return "it sums up parts of pixels" if _unit(site) % made.granule else made


def _owner(site: Site) -> tuple[Tensor, int]:
    """Return the tensor whose memory the input lies in, and the input's offset in elements."""
    graph = site.graph
    owner, offset = graph.tensors[site.op.inputs[0]], 0
    while (maker := graph.producer[owner.index]) is not None and graph.ops[maker].view:
        offset += graph.ops[maker].view_offsets[graph.ops[maker].outputs.index(owner.index)]
        owner = graph.tensors[graph.ops[maker].inputs[0]]
    return owner, offset


def _unit(site: Site) -> int:
    """Return the elements in a pixel of the tensor that owns the input's memory, in a row if the tensor has no columns."""
    owner, _ = _owner(site)
    assert owner.row_axis is not None
    return prod(owner.shape[owner.row_axis + (2 if owner.col_axis == owner.row_axis + 1 else 1) :])


@dataclass(frozen=True)
class AccumulatingKernel(BuiltKernel):
    """Steps adding input elements `[begin, end)` to the accumulator."""

    suffix: ClassVar[str] = "_sum"

    def step(self, caller: Caller, step: Expr) -> Stmt:
        if caller.number in caller.calls.stripes:
            return self._in_stripes(caller, step)
        return self._in_order(caller, step)

    def _in_stripes(self, caller: Caller, y: Expr) -> Stmt:
        """Add the stripe's columns of input row y."""
        lanes, t = Lanes(caller), caller.op.inputs[0]
        x0, x1 = lanes.columns(caller.op.index)
        unit, columns = lanes.lane(t)[1], caller.graph.tensors[t].columns
        return self._add(caller, lanes.pointer(t, y, x0), (y * columns + x0) * unit, (y * columns + x1) * unit)

    def _in_order(self, caller: Caller, step: Expr) -> Stmt:
        """Add the input's next row, or next pixels: in two calls if these wrap around the ring's end."""
        t, plan = caller.op.inputs[0], caller.plan
        while (root := plan.storages[t].root) is not None:
            t = root
        owner, place, tile = caller.graph.tensors[t], caller.calls.places[t], caller.segment.tile.columns
        pixels = owner.columns if tile and has_pixels(owner) else 1
        unit = owner.row_bytes // ITEM_BYTES[owner.dtype] // pixels
        if place.scattered:
            return self._add(caller, caller.row(t, step), step * unit, (step + 1) * unit)
        bound, y, x0, x1 = caller.tile(step, pixels, tile if pixels > 1 else 1)
        slots = place.pixels if pixels > 1 else place.height
        first = y * pixels + x0
        whole = slots >= owner.rows * pixels
        slot = first if whole else tirx.truncmod(first, i32(slots))
        begin, end = first * unit, (y * pixels + x1) * unit

        def at(element: Expr) -> Expr:
            return caller.memory.address(place.address, caller.input(0)[0].dtype, element)

        if whole or pixels == 1 or tiles_are_contiguous(plan, t, tile):
            return sequence([*bound, self._add(caller, at(slot * unit), begin, end)])
        wraps = tirx.GT(slot + (x1 - x0), i32(slots))
        middle = begin + (i32(slots) - slot) * unit
        parts = [
            self._add(caller, at(slot * unit), begin, middle),
            self._add(caller, at(i32(0)), middle, end),
        ]
        single = self._add(caller, at(slot * unit), begin, end)
        return sequence([*bound, tirx.IfThenElse(wraps, tirx.SeqStmt(parts), single)])

    def _add(self, caller: Caller, at: Expr, begin: Expr, end: Expr) -> Stmt:
        """Call the kernel for elements `[begin, end)` of the input; `at` points to the first."""

        def output(i: int) -> Expr:
            place = caller.output(i)[0]
            return caller.memory.address(place.address, place.dtype)

        own = {
            Role.INPUT: lambda _: at,
            Role.BEGIN: lambda _: begin,
            Role.END: lambda _: end,
            Role.OUTPUT: output,
        }
        return caller.call(i32(0), own)
