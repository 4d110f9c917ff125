"""Pixel kernels out of row kernels: gather a window into scratch, run the operator's fast row kernel on that small image.

A step by pixels makes `n` neighbouring pixels of one output row. Their window is a patch of `span` rows and a few columns;
copied out of its ring (padding filled in, wrap-around resolved) it is an ordinary image whose one output row is those
pixels. So the performance schedules of rows serve pixels too, for the price of the copy. What reads single pixels (1 x 1
convolutions, element-wise operators) reads them where they lie.
"""

# TVM's nodes get their fields and operators at run time, where no type checker sees them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportIndexIssue=false, reportReturnType=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    """What copying the windows of an input into scratch takes."""

    rows: int  # of the patch
    fixed: int  # bytes of a patch of n pixels: fixed + n * each
    each: int

    def bytes(self, n: int) -> int:
        return self.fixed + n * self.each


@dataclass(frozen=True)
class Variant:
    """A step of `pixels` pixels: a gather `main(x, slot, pixels, to, y, x0)` for every input that needs one, which copies
    the window of the step's pixels, row-major, to `to`; then a row kernel."""

    pixels: int
    kernel: RowKernel
    gathers: tuple[PrimFunc | None, ...]


@dataclass(frozen=True)
class Patch:
    """Steps by pixels as gathers (None: that input is read in place) and row kernels.

    The variants are those of whole steps, of the pixels left at the end of a row, and of single pixels: a step whose
    pixels wrap around the end of a ring that is read or written in place goes pixel by pixel.
    """

    gathers: tuple[Gather | None, ...]
    variants: tuple[Variant, ...]  # of `chunk` pixels, of the rest where there is one, of 1 where it is called
    chunk: int

    @property
    def scratch_bytes(self) -> int:
        own = max(v.kernel.scratch_bytes for v in self.variants)
        return self.own_offset + own if own else self.gathered_bytes

    @property
    def gathered_bytes(self) -> int:
        return sum(g.bytes(self.chunk) for g in self.gathers if g is not None)

    @property
    def own_offset(self) -> int:
        """Where the row kernel's own scratch starts, behind the gathered windows."""
        return -(-self.gathered_bytes // 8) * 8

    def variant(self, pixels: int) -> Variant | None:
        return next((v for v in self.variants if v.pixels == pixels), None)

    def without_single(self, columns: int) -> Patch:
        """For rows of `columns` pixels, where no step wraps: without the variant of 1 unless rows leave one over."""
        used = {self.chunk, columns % self.chunk}
        return replace(self, variants=tuple(v for v in self.variants if v.pixels in used))

    def functions(self) -> list[tuple[str, PrimFunc]]:
        """Everything that the driver calls, variant by variant: kernel, then gathers; each with the start of its name."""
        return [
            f
            for v in self.variants
            for f in (("", v.kernel.func), *(("gather", g) for g in v.gathers if g is not None))
        ]


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
    gathers = [
        None if _single(r) and _single(c) else _gathered(graph.tensors[t], r, c)
        for t, (r, c) in zip(op.inputs, pairs, strict=True)
    ]
    fill = int(func.attrs["input_zero_point"]) if func.attrs and "input_zero_point" in func.attrs else 0
    variants: list[Variant] = []
    for n in dict.fromkeys(n for n in (chunk, columns % chunk, 1) if n):
        kernel = first_rule(_patch_function(graph, op, func, constants, pairs, n), constants, core)
        if kernel is None:
            return None
        copies = [
            None if g is None else _gather(graph.tensors[t], r, c, fill, n, core)
            for g, t, (r, c) in zip(gathers, op.inputs, pairs, strict=True)
        ]
        variants.append(Variant(n, kernel, tuple(copies)))
    return Patch(tuple(gathers), tuple(variants), chunk)


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


def _gathered(tensor: Tensor, row: Window, column: Window) -> Gather:
    pixel = tensor.shape[3] * ITEM_BYTES[tensor.dtype]
    return Gather(row.span, row.span * (column.span - column.stride) * pixel, row.span * column.stride * pixel)


def _gather(tensor: Tensor, row: Window, column: Window, fill: int, n: int, core: Core) -> PrimFunc:
    """The copy of the window of `n` pixels, four words or one at a time where pixels are whole ones.

    A row of the window that lies whole and unwrapped in the ring, as nearly all do, is one run; the others go pixel by
    pixel.
    """
    height, width, channels = tensor.shape[1:]
    item = ITEM_BYTES[tensor.dtype]
    words = channels * item % 4 == 0
    dtype = "int32" if words else tensor.dtype
    quads = channels * item % 16 == 0 and (core.backend == "c" or core.mve)
    lanes = 4 if quads else 1
    unit = (channels * item // 4 if words else channels) // lanes
    value = tirx.const(_fill_word(fill, item) if words else fill, dtype)
    span = (n - 1) * column.stride + column.span
    x, to = (tirx.Var(v, PointerType(PrimType(tensor.dtype))) for v in ("x", "to"))
    slot, pixels, y, x0 = (tirx.Var(v, "int32") for v in ("slot", "pixels", "y", "x0"))
    source = tirx.decl_buffer((prod(tensor.shape[1:3]) * unit * lanes,), dtype, "source", data=x)
    target = tirx.decl_buffer((row.span * span * unit * lanes,), dtype, "target", data=to)
    move, clear = _moves(source, target, value, quads, core)
    first, left, base, at, wrapped, begin, j, i = (
        tirx.Var(v, "int32") for v in ("first", "left", "base", "at", "wrapped", "begin", "j", "i")
    )
    down, right = first + j, left + i
    line = j * (span * unit)

    def turned(place: Expr) -> Expr:
        return place - tirx.Select(place >= pixels, pixels, i32(0))

    def moved(count: int, offset: Expr, place: Expr, name: str) -> tirx.Stmt:
        return _words(count, lambda k: move(offset + k, place * unit + k), name)

    def blank(count: int, offset: Expr, name: str) -> tirx.Stmt:
        return _words(count, lambda k: clear(offset + k), name)

    one = SeqStmt([tirx.Bind(at, turned(base + down * width + right)), moved(unit, line + i * unit, at, "c")])
    inside: list[Expr] = []
    if column.padding or (n - 1 + tensor.columns) * column.stride + column.span > width:
        inside = [right >= 0, right < width]
        one = IfThenElse(tirx.all(*inside), one, blank(unit, line + i * unit, "e"))
    slow = For(i, 0, span, tirx.ForKind.SERIAL, one)
    plain = [wrapped + span <= pixels] + ([left >= 0, left + span <= width] if inside else [])
    copied = SeqStmt(
        [
            tirx.Bind(begin, base + down * width + tirx.max(left, i32(0))),
            tirx.Bind(wrapped, turned(begin)),
            IfThenElse(tirx.all(*plain) if len(plain) > 1 else plain[0], moved(span * unit, line, wrapped, "r"), slow),
        ]
    )
    body: tirx.Stmt = copied
    if row.padding or row.stride > 1:
        body = IfThenElse(tirx.all(down >= 0, down < height), copied, blank(span * unit, line, "f"))
    stmts = [
        tirx.DeclBuffer(source, data=x),
        tirx.DeclBuffer(target, data=to),
        tirx.Bind(first, y * row.stride - row.padding),
        tirx.Bind(left, x0 * column.stride - column.padding),
        tirx.Bind(base, slot - tirx.max(first, i32(0)) * width - tirx.max(left, i32(0))),
        For(j, 0, row.span, tirx.ForKind.SERIAL, body),
        tirx.Return(i32(0)),
    ]
    func = PrimFunc([x, slot, pixels, to, y, x0], SeqStmt(stmts), PrimType("int32"))
    return func.with_attr("tirx.noalias", True)


def _moves(
    source: tirx.Var, target: tirx.Var, value: Expr, quads: bool, core: Core
) -> tuple[Callable[[Expr, Expr], tirx.Stmt], Callable[[Expr], tirx.Stmt]]:
    """A copy of one unit of `source` to one of `target`, and a fill of one: of an element each, or of four words."""
    if not quads:
        return (
            lambda to, at: BufferStore(target, source[at], [to]),
            lambda to: BufferStore(target, value, [to]),
        )
    if core.backend == "c":
        return (
            lambda to, at: Evaluate(
                tirx.call_extern("int32", "tc_copy16", tirx.address_of(target[to * 4]), tirx.address_of(source[at * 4]))
            ),
            lambda to: SeqStmt([BufferStore(target, value, [to * 4 + u]) for u in range(4)]),
        )

    def four(at: Expr) -> Expr:
        return tirx.Ramp(at * 4, i32(1), 4)

    return (
        lambda to, at: BufferStore(target, tirx.BufferLoad(source, [four(at)]), [four(to)]),
        lambda to: BufferStore(target, tirx.Broadcast(value, 4), [four(to)]),
    )


_UNROLL = 8  # units a pass


def _words(count: int, store: Callable[[Expr], tirx.Stmt], name: str) -> tirx.Stmt:
    """`store` for every unit, some of them a pass."""
    step = max(u for u in range(1, _UNROLL + 1) if count % u == 0)
    k = tirx.Var(name, "int32")
    stores: list[tirx.Stmt] = [store((k * step if count > step else i32(0)) + u) for u in range(step)]
    body = SeqStmt(stores) if len(stores) > 1 else stores[0]
    return For(k, 0, count // step, tirx.ForKind.SERIAL, body) if count > step else body


def _fill_word(fill: int, item: int) -> int:
    raw = int(fill).to_bytes(item, "little", signed=fill < 0) * (4 // item)
    return int.from_bytes(raw, "little", signed=True)
