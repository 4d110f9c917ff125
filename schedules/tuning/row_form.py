"""Row forms: an output row's interior as a function of whole tensors, which tuners can call and schedule.

A tuner cannot call a row kernel, which takes pointers, ring slots and a row number, but can call the *row form*:

    row(x: [rows of the window][W][C], constants..., out: [1][interior columns][F])

the operator's own blocks limited to a single row, and to columns, with windows free from padding, so every loop has a
constant extent and there are no conditions. `splice` puts a scheduled row form back into the kernel: in rows without
padding, the generic code computes the columns at both edges and the scheduled row form the columns between; all other
rows are computed by the generic code. Only the addresses differ from the tuned function: the window's row r becomes its
slot in the ring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import tvm

from tvm_cascade.graph import Window
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.assembly import Assembly, build
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.tir import Buffer, Expr, PrimFunc, Stmt, Var, i32, ir, s_tir, sym, tirx, tvm_ffi
from tvm_cascade.schedules.tir.flatten import window_start
from tvm_cascade.schedules.tir.splitting import fresh
from tvm_cascade.schedules.tir.staging import COLUMN, NotRowwiseError, inlined, lower_blocks


class NotTunableError(Exception):
    """An operator without a row form; the message is the reason."""


@dataclass(frozen=True)
class RowForm:
    """A row form, and the possible output rows and columns."""

    func: PrimFunc  # parameters: input rows of the windows, constants, one output row
    rows: range  # output rows that read no padding
    columns: range  # output columns that read no padding


def row_form(func: PrimFunc, access: RowAccess) -> RowForm:
    """Build an operator's row form. Raises `NotTunableError` for operators without a row form."""
    known = access.rowwise and len(access.output_axes) == 1 and len(access.columns) == len(access.windows)
    if not known or any(c is None or w is None for c, w in zip(access.columns, access.windows, strict=True)):
        raise NotTunableError(access.opaque or "its rows and columns are not known")
    func = inlined(func)
    outputs = tir.outputs_of(func)
    axis = access.output_axes[0]
    if len(outputs) != 1 or axis is None or any(a != axis for a in access.input_axes):
        raise NotTunableError("its tensors are not laid out alike")
    shape = tir.shape_of(outputs[0])
    inputs = func.params[: len(access.windows)]
    rows = _interior([w for w in access.windows if w], [tir.shape_of(x)[axis] for x in inputs], shape[axis])
    columns = _interior([c for c in access.columns if c], [tir.shape_of(x)[axis + 1] for x in inputs], shape[axis + 1])
    if len(rows) < 1 or len(columns) < 1:
        raise NotTunableError("every row or column of it reads padding")
    return RowForm(_Restriction(func, access, axis, rows, columns).build(), rows, columns)


def _interior(windows: Sequence[Window], extents: Sequence[int], outputs: int) -> range:
    """Return the output rows (or columns) with windows inside all inputs."""
    if any(w.denominator != 1 or w.stride == 0 for w in windows):
        raise NotTunableError("its windows do not advance with every slice")
    inside = [
        y
        for y in range(outputs)
        if all(w.first(y) >= 0 and w.first(y) + w.span <= n for w, n in zip(windows, extents, strict=True))
    ]
    return range(inside[0], inside[-1] + 1) if inside else range(0)


class _Restriction:
    """Builder for a row form: restricts an operator's blocks to a single row and the interior columns."""

    def __init__(self, func: PrimFunc, access: RowAccess, axis: int, rows: range, columns: range) -> None:
        self.func, self.axis, self.rows, self.columns = func, axis, rows, columns
        self.output = tir.outputs_of(func)[0]
        self.starts = {
            x: (w.first(rows.start), w.span)
            for x, w in zip(func.params[: len(access.windows)], access.windows, strict=True)
            if w is not None
        }
        self.buffers: dict[Buffer, Buffer] = {}

    def build(self) -> PrimFunc:
        realizes = tir.leaf_blocks(self.func)
        own = [tir.stores(r.block.body)[0].buffer for r in realizes]
        for x, (_, span) in self.starts.items():
            self.buffers[x] = _resized(x, {self.axis: span})
        for buffer in own:
            if tir.shape_of(buffer)[: self.axis + 2] != tir.shape_of(self.output)[: self.axis + 2]:
                raise NotTunableError("it has stages of other sizes than its output")
            self.buffers[buffer] = _resized(buffer, {self.axis: 1, self.axis + 1: len(self.columns)})
        statements = [self._nest(r) for r in realizes]
        body = tir.sequence(statements)
        inner = [self.buffers[b] for b in own if not b.same_as(self.output)]
        root = s_tir.SBlock([], [], [], "root", body, None, inner, [], {})
        params = [self.buffers.get(p, p) for p in self.func.params]
        attrs = tvm.ir.make_node("ir.DictAttrs", **{"global_symbol": "main", "tirx.noalias": True, "s_tir": True})
        return tirx.PrimFunc(
            params, s_tir.SBlockRealize([], tirx.const(True, "bool"), root), self.func.ret_type, attrs=attrs
        )

    def _nest(self, realize: Any) -> Stmt:
        block = realize.block
        store = tir.stores(block.body)[0]
        row, column = (store.indices[k] for k in (self.axis, self.axis + 1))
        if len(tir.stores(block.body)) != 1 or not all(isinstance(i, tirx.Var) for i in store.indices):
            raise NotTunableError(f"its stage {block.name_hint} does not write element by element")
        extents = {iv.var: int(iv.dom.extent) for iv in block.iter_vars}
        extents[row], extents[column] = 1, len(self.columns)
        analyzer = sym.Analyzer()
        for var, extent in extents.items():
            analyzer.bind(var, ir.Range(0, extent))
        body = self._moved(block.body, row, column, analyzer)
        init = None if block.init is None else self._moved(block.init, row, column, analyzer)
        variables = [tirx.IterVar(ir.Range(0, extents[iv.var]), iv.var, iv.iter_type) for iv in block.iter_vars]
        written = tir.stores(body)[0]
        reads = _regions([x for x in tir.loads(written.value) if not tir.is_own(x, written)])
        inner = s_tir.SBlock(
            variables, reads, _regions([written]), block.name_hint, body, init, [], [], block.annotations
        )
        loops = [tirx.Var(iv.var.name.removeprefix("v_"), "int32") for iv in block.iter_vars]
        nest = s_tir.SBlockRealize(loops, tirx.const(True, "bool"), inner)
        for loop, extent in reversed(list(zip(loops, extents.values(), strict=True))):
            nest = tir.for_range(loop, extent, nest)
        return nest

    def _moved(self, node: Any, row: Var, column: Var, analyzer: Any) -> Any:
        """Rewrite a statement for the restricted buffers, with padding conditions resolved."""
        at = {row: row + self.rows.start, column: column + self.columns.start}

        def shifted(buffer: Buffer, indices: list[Expr]) -> tuple[Buffer, list[Expr]] | None:
            if buffer in self.starts:
                indices = [tir.substitute(i, at) for i in indices]
                indices[self.axis] = indices[self.axis] - self.starts[buffer][0]
                indices = [analyzer.simplify(i) for i in indices]
            return (self.buffers[buffer], indices) if buffer in self.buffers else None

        def choose(call: Any) -> Any:
            if not tir.is_if_then_else(call):
                return call
            if tir.int_value(analyzer.simplify(tir.substitute(call.args[0], at))) != 1:
                raise NotTunableError("it tests more than padding")
            return call.args[1]

        if any(tir.collect(list(x.indices), ir.TensorLoad) for x in tir.loads(node)):
            raise NotTunableError("its indices come from tensors")
        node = tir.replace(node, ir.Call, choose)
        rest = tir.relocated(node, shifted)
        if any(v.same_as(row) for value in _values(rest) for v in tir.collect(value, tirx.Var)):
            raise NotTunableError("its values depend on the row")
        return rest


def _values(node: Any) -> list[Any]:
    """Return the stored values of all stores, with loads replaced by 0, so indices are left out."""
    stripped = tir.replace(
        [s.value for s in tir.stores(node)], ir.TensorLoad, lambda x: tirx.const(0, tir.dtype_of(x.source))
    )
    return list(stripped)


def _regions(accesses: Sequence[Any]) -> list[Any]:
    regions: dict[Buffer, Any] = {}
    for access in accesses:
        buffer = access.source if isinstance(access, ir.TensorLoad) else access.buffer
        region = tirx.BufferRegion(buffer, [ir.Range.from_min_extent(i, i32(1)) for i in access.indices])
        if buffer in regions and not tvm_ffi.structural_equal(regions[buffer], region):
            region = tirx.BufferRegion(buffer, [ir.Range(0, d) for d in tir.shape_of(buffer)])
        regions[buffer] = region
    return list(regions.values())


def _resized(buffer: Buffer, extents: Mapping[int, int]) -> Buffer:
    shape = [extents.get(k, d) for k, d in enumerate(tir.shape_of(buffer))]
    return tirx.decl_buffer(shape, tir.dtype_of(buffer), buffer.name)


def splice(
    func: PrimFunc, constants: Sequence[np.ndarray], access: RowAccess, form: RowForm, scheduled: PrimFunc, name: str
) -> RowKernel:
    """Build an operator's row kernel with `scheduled`, its row form under some schedule, in the interior.

    Parameters, constants and results equal the generic kernel's. Raises `NotTunableError` if it cannot be built.
    """
    try:
        return build(func, constants, _Spliced(access, form, scheduled), name)
    except NotRowwiseError as why:
        raise NotTunableError(str(why)) from None


class _Spliced(Assembly):
    """Builder for a row kernel with a scheduled interior."""

    def __init__(self, access: RowAccess, form: RowForm, scheduled: PrimFunc) -> None:
        super().__init__(access)
        self.form, self.scheduled = form, scheduled

    def outer(self) -> tuple[tuple[int, ...], ...]:
        return tuple((a, a + 1) for a in self.access.output_axes if a is not None)

    def cut(self, lowered: PrimFunc, outputs: Sequence[Buffer]) -> Stmt:
        row = super().cut(lowered, outputs)
        loops = [f for f in tir.collect(row, tirx.For) if COLUMN in f.annotations]
        if len(loops) != 1 or len(tir.stores(row)) != len(tir.stores(loops[0].body)):
            raise NotRowwiseError("some of the operator is computed outside of its column loop")
        rows, columns = self.form.rows, self.form.columns
        axis = self.access.output_axes[0]
        assert axis is not None
        high, wide = tir.shape_of(outputs[0])[axis : axis + 2]
        middle = [
            *_columns(loops[0], range(columns.start)),
            self._interior(lowered, outputs[0], axis),
            *_columns(loops[0], range(columns.stop, wide)),
        ]
        inside: Stmt = tir.sequence(middle)
        guards = [self.y >= rows.start] if rows.start else []
        guards += [self.y < rows.stop] if rows.stop < high else []
        if not guards:
            return inside
        return tirx.IfThenElse(reduce(tirx.And, guards), inside, *_columns(loops[0], range(wide)))

    def _interior(self, lowered: PrimFunc, output: Buffer, axis: int) -> Stmt:
        """Rewrite the scheduled row form's body to access row y of the operator's own tensors."""
        form = tvm.IRModule({"main": self.scheduled})
        function = lower_blocks(form)["main"]
        whole = dict(zip(function.params, lowered.params, strict=True))
        starts = {
            x: window_start(w, self.y)
            for x, w in zip(function.params, self.access.windows, strict=False)
            if w is not None
        }

        def redirected(buffer: Buffer, indices: list[Expr]) -> tuple[Buffer, list[Expr]] | None:
            if buffer not in whole:
                return None
            if buffer in starts:
                indices[axis] = indices[axis] + starts[buffer]
            if whole[buffer].same_as(output):
                indices[axis : axis + 2] = self.y, indices[axis + 1] + self.form.columns.start
            return whole[buffer], indices

        return tir.relocated(function.body, redirected)


def _columns(loop: Any, columns: range) -> list[Stmt]:
    """Copy a loop over all columns to run over `columns` only; empty if there are none."""
    if not columns:
        return []
    step = tirx.Var(loop.loop_var.name, "int32")
    body = _own_buffers(fresh(tir.substitute(loop.body, {loop.loop_var: step + columns.start})))
    return [tir.for_range(step, len(columns), body)]


def _own_buffers(body: Stmt) -> Stmt:
    """Copy a body with new allocated buffers: copies must not share buffers."""
    own = {
        a.buffer: tirx.decl_buffer(tir.shape_of(a.buffer), tir.dtype_of(a.buffer), a.buffer.name)
        for a in tir.collect(body, tirx.AllocBuffer)
    }

    body = tir.relocated(body, lambda buffer, indices: (own[buffer], indices) if buffer in own else None)
    return tir.replace(body, tirx.AllocBuffer, lambda stmt: tirx.AllocBuffer(own[stmt.buffer]))


def serial(kernel: PrimFunc) -> PrimFunc:
    """Convert a kernel's vectorized and unrolled loops to serial loops and remove pragmas, for C compilers."""

    def on_for(loop: Any) -> Any:
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    def on_attr(stmt: Any) -> Any:
        return stmt.body if str(stmt.attr_key).startswith("pragma_") else stmt

    body = tvm_ffi.structural_map(kernel.body, [(tirx.For, on_for), (tirx.AttrStmt, on_attr)], order="post")
    return kernel.with_body(body)
