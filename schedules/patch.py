"""Pixel kernels out of row kernels: gather a window into scratch, run the operator's fast row kernel on that small image.

A step by pixels makes `n` neighbouring pixels of one output row. Their window is a patch of `span` rows and a few columns;
copied out of its ring (padding filled in, wrap-around resolved) it is an ordinary image whose one output row is those
pixels. So the performance schedules of rows serve pixels too, for the price of the copy. What reads single pixels (1 x 1
convolutions, element-wise operators) reads them where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.tirx import BufferStore, Evaluate, For, IfThenElse, PrimFunc, SeqStmt

from tvm_cascade.graph import ITEM_BYTES, Graph, Op, Tensor, Window
from tvm_cascade.schedules.kernel import RowKernel
from tvm_cascade.schedules.places import i32
from tvm_cascade.schedules.select import Core, first_rule

Expr = tvm.ir.Expr


@dataclass(frozen=True)
class Gather:
    """`gather(x, slot, pixels, to, y, x0, n)`: the window of n output pixels, row-major, into `to`."""

    func: PrimFunc
    dtype: str
    rows: int  # of the patch
    fixed: int  # bytes of a patch: fixed + n * each
    each: int

    def bytes(self, n: int) -> int:
        return self.fixed + n * self.each


@dataclass(frozen=True)
class Patch:
    """A step by pixels as a gather for every input that needs one (None: read in place) and a row kernel."""

    gathers: tuple[Gather | None, ...]
    main: RowKernel  # of `chunk` pixels
    tail: RowKernel | None  # of the pixels left at the end of a row
    chunk: int

    @property
    def scratch_bytes(self) -> int:
        own = max(k.scratch_bytes for k in (self.main, self.tail) if k is not None)
        return self.own_offset + own if own else self.gathered_bytes

    @property
    def gathered_bytes(self) -> int:
        return sum(g.bytes(self.chunk) for g in self.gathers if g is not None)

    @property
    def own_offset(self) -> int:
        """Where the row kernel's own scratch starts, behind the gathered windows."""
        return -(-self.gathered_bytes // 8) * 8

    def functions(self) -> list[tuple[str, PrimFunc]]:
        """Everything that the driver calls: the row kernels, then the gathers, each with the start of its name."""
        kernels = [("", k.func) for k in (self.main, self.tail) if k is not None]
        return kernels + [("gather", g.func) for g in self.gathers if g is not None]


def _single(window: Window) -> bool:
    return window.extent == 1 and window.stride == 1 and window.padding == 0 and window.denominator == 1


def _windows(op: Op) -> list[tuple[Window, Window]] | None:
    """Row and column window of every input, None where one is no sliding window."""
    pairs: list[tuple[Window, Window]] = []
    for row, column in zip(op.windows, op.columns, strict=True):
        if row is None or column is None or 0 in (row.stride, column.stride):
            return None
        if row.denominator != 1 or column.denominator != 1 or row.dilation != 1 or column.dilation != 1:
            return None
        pairs.append((row, column))
    return pairs or None


def _nhwc(tensor: Tensor) -> bool:
    return len(tensor.shape) == 4 and tensor.shape[0] == 1 and (tensor.row_axis, tensor.col_axis) == (1, 2)


def patch_kernel(
    graph: Graph, op: Op, func: PrimFunc, constants: Sequence[np.ndarray], core: Core, chunk: int
) -> Patch | None:
    """The patch form of an operator for steps of `chunk` pixels; None where no performance schedule takes it."""
    pairs = _windows(op) if len(op.windows) == len(op.columns) == len(op.inputs) else None
    tensors = [graph.tensors[t] for t in (*op.inputs, *op.outputs)]
    if pairs is None or len(op.outputs) != 1 or not all(_nhwc(t) for t in tensors):
        return None
    columns = graph.tensors[op.outputs[0]].columns
    chunk = min(chunk, columns)
    main = first_rule(_patch_function(graph, op, func, constants, pairs, chunk), constants, core)
    rest = columns % chunk
    tail = first_rule(_patch_function(graph, op, func, constants, pairs, rest), constants, core) if rest else None
    if main is None or (rest and tail is None):
        return None
    fill = int(func.attrs["input_zero_point"]) if func.attrs and "input_zero_point" in func.attrs else 0
    gathers = tuple(
        None if _single(r) and _single(c) else _gather(graph.tensors[t], r, c, fill)
        for t, (r, c) in zip(op.inputs, pairs, strict=True)
    )
    return Patch(gathers, main, tail, chunk)


def _patch_function(
    graph: Graph,
    op: Op,
    func: PrimFunc,
    constants: Sequence[np.ndarray],
    pairs: Sequence[tuple[Window, Window]],
    n: int,
) -> PrimFunc:
    """The operator on a patch, as far as schedule rules look: shapes and attributes, no padding, no body."""
    shapes = [
        (1, r.span, (n - 1) * c.stride + c.span, graph.tensors[t].shape[3])
        for t, (r, c) in zip(op.inputs, pairs, strict=True)
    ]
    types = [graph.tensors[t].dtype for t in op.inputs]
    out = graph.tensors[op.outputs[0]]
    shapes += [tuple(c.shape) for c in constants] + [(1, 1, n, out.shape[3])]
    types += [str(c.dtype) for c in constants] + [out.dtype]
    params = [tirx.decl_buffer(s, d, f"p{k}") for k, (s, d) in enumerate(zip(shapes, types, strict=True))]
    attrs = {k: v for k, v in func.attrs.items()} | {"padding": [0, 0, 0, 0]}
    made = PrimFunc(params, Evaluate(i32(0)))
    return made.with_attr({k: v for k, v in attrs.items() if k != "global_symbol"})


def _gather(tensor: Tensor, row: Window, column: Window, fill: int) -> Gather:
    """The copy of a patch, word by word where pixels are whole words."""
    height, width, channels = tensor.shape[1:]
    item = ITEM_BYTES[tensor.dtype]
    words = channels * item % 4 == 0
    dtype = "int32" if words else tensor.dtype
    unit = channels * item // 4 if words else channels
    value = _fill_word(fill, item) if words else fill
    x, to = (tirx.Var(n, PointerType(PrimType(tensor.dtype))) for n in ("x", "to"))
    slot, pixels, y, x0, n = (tirx.Var(v, "int32") for v in ("slot", "pixels", "y", "x0", "n"))
    source = tirx.decl_buffer((prod(tensor.shape[1:3]) * unit,), dtype, "source", data=x)
    target = tirx.decl_buffer((row.span * width * unit + unit * column.span,), dtype, "target", data=to)
    first, left, span, at, wrapped, j, i = (
        tirx.Var(v, "int32") for v in ("first", "left", "span", "at", "wrapped", "j", "i")
    )
    base = tirx.Var("base", "int32")
    down, right = first + j, left + i
    c1, c2 = tirx.Var("c", "int32"), tirx.Var("c_fill", "int32")
    place = (j * span + i) * unit
    copy = SeqStmt(
        [
            tirx.Bind(at, base + down * width + right),
            tirx.Bind(wrapped, (at - tirx.Select(at >= pixels, pixels, i32(0))) * unit),
            For(c1, 0, unit, tirx.ForKind.SERIAL, BufferStore(target, source[wrapped + c1], [place + c1])),
        ]
    )
    tests = []
    if row.padding:
        tests += [down >= 0, down < height]
    if column.padding or column.stride > 1:
        tests += [right >= 0, right < width]
    if row.stride > 1 and not row.padding:
        tests += [down < height]
    body: tirx.Stmt = copy
    if tests:
        blank = BufferStore(target, tirx.const(value, dtype), [place + c2])
        body = IfThenElse(tirx.all(*tests), copy, For(c2, 0, unit, tirx.ForKind.SERIAL, blank))
    loops = For(j, 0, row.span, tirx.ForKind.SERIAL, For(i, 0, span, tirx.ForKind.SERIAL, body))
    stmts = [
        tirx.DeclBuffer(source, data=x),
        tirx.DeclBuffer(target, data=to),
        tirx.Bind(first, y * row.stride - row.padding),
        tirx.Bind(left, x0 * column.stride - column.padding),
        tirx.Bind(span, (n - 1) * column.stride + column.span),
        tirx.Bind(base, slot - tirx.max(first, i32(0)) * width - tirx.max(left, i32(0))),
        loops,
        tirx.Return(i32(0)),
    ]
    func = PrimFunc([x, slot, pixels, to, y, x0, n], SeqStmt(stmts), PrimType("int32"))
    pixel = channels * item
    fixed = row.span * (column.span - column.stride) * pixel
    return Gather(func.with_attr("tirx.noalias", True), tensor.dtype, row.span, fixed, row.span * column.stride * pixel)


def _fill_word(fill: int, item: int) -> int:
    raw = int(fill).to_bytes(item, "little", signed=fill < 0) * (4 // item)
    return int.from_bytes(raw, "little", signed=True)
