"""Pixel kernels out of row kernels: steps by pixels that read the window of their pixels where it lies.

A step by pixels makes `n` neighbouring pixels of one output row. Each kernel row of their window is one run of pixels in
the input's ring, and as a ring is larger than the window, its end falls into one of these runs at most. So the offset of
every run goes into a small table in scratch, the run that wraps around is copied behind the table, and the operator's
fast row kernel reads rows from where the table says: the performance schedules of rows serve pixels too, and scratch
holds one kernel row, not the window. Columns of padding are the kernel's business, as in whole rows: pixels at the edges
have kernels of their own, small ones where they are few. What reads single pixels (1 x 1 convolutions, element-wise
operators) reads them in place.
"""

# TVM's nodes get their fields and operators at run time, where no type checker sees them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportIndexIssue=false, reportReturnType=false
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.tirx import BufferStore, Evaluate, For, IfThenElse, PrimFunc, SeqStmt

from tvm_cascade.cores import KernelTarget
from tvm_cascade.graph import ITEM_BYTES, Graph, Op, Tensor, Window
from tvm_cascade.schedules.driver.places import i32
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.select import first_rule

Expr = tvm.ir.Expr
SLIDING = ("conv2d", "depthwise_conv2d", "max_pool2d", "avg_pool2d")  # kinds whose kernels read located rows


@dataclass(frozen=True)
class Located:
    """What reading the windows of an input where they lie takes."""

    locate: PrimFunc  # locate(x, slot, pixels, to, away, valid, y): the table, and the run that wraps behind it
    table: int  # bytes of the table; the copied run lies behind it
    fixed: int  # bytes of scratch for a step of n pixels: fixed + n * each
    each: int

    def bytes(self, n: int) -> int:
        return self.fixed + n * self.each


@dataclass(frozen=True, order=True)
class Form:
    """What the steps that share a kernel have in common: how many pixels, and which columns of their window there are."""

    pixels: int
    padding: int  # columns of padding before the first
    valid: int  # columns of the window inside of the tensor


@dataclass(frozen=True)
class Variant:
    form: Form
    kernel: RowKernel


@dataclass(frozen=True)
class Patch:
    """Steps by pixels as row kernels of few columns.

    `located` has an entry per input, None where it is read in place, pixel by pixel. `steps` tells which variant serves
    the steps from a column on, `singles` the same for steps of one pixel: a step whose pixels wrap around the end of a
    ring that is read or written in place goes pixel by pixel.
    """

    located: tuple[Located | None, ...]
    variants: tuple[Variant, ...]
    steps: tuple[tuple[int, int], ...]  # first column, ascending from 0, and variant
    singles: tuple[tuple[int, int], ...]
    chunk: int

    @property
    def scratch_bytes(self) -> int:
        own = max(v.kernel.scratch_bytes for v in self.variants)
        return self.own_offset + own if own else self.located_bytes

    @property
    def located_bytes(self) -> int:
        return self.located_offset(len(self.located))

    def located_offset(self, position: int) -> int:
        """Where the table of an input starts."""
        return sum(g.bytes(self.chunk) for g in self.located[:position] if g is not None)

    @property
    def own_offset(self) -> int:
        """Where the row kernel's own scratch starts, behind what is located."""
        return -(-self.located_bytes // 8) * 8

    def without_singles(self) -> Patch:
        """For rings in which no step wraps: without the variants that single pixels alone need."""
        used = sorted({v for _, v in self.steps})
        steps = tuple((x, used.index(v)) for x, v in self.steps)
        return replace(self, variants=tuple(self.variants[v] for v in used), steps=steps, singles=())

    def functions(self) -> list[tuple[str, PrimFunc]]:
        """Everything that the driver calls: kernels by variant, then what locates; each with the start of its name."""
        return [("", v.kernel.func) for v in self.variants] + [("locate", g.locate) for g in self.located if g]


def is_single(window: Window) -> bool:
    return window.extent == 1 and window.stride == 1 and window.padding == 0 and window.denominator == 1


def sliding_windows(op: Op) -> list[tuple[Window, Window]] | None:
    """Row and column window of every input, None where one is no sliding window."""
    pairs: list[tuple[Window, Window]] = []
    for row, column in zip(op.windows, op.columns, strict=True):
        if row is None or column is None or 0 in (row.stride, column.stride):
            return None
        if row.denominator != 1 or column.denominator != 1 or row.dilation != 1 or column.dilation != 1:
            return None
        pairs.append((row, column))
    return pairs or None


def is_nhwc(tensor: Tensor) -> bool:
    return len(tensor.shape) == 4 and tensor.shape[0] == 1 and (tensor.row_axis, tensor.col_axis) == (1, 2)


def patch_kernel(graph: Graph, op: Op, spec: OperatorSpec, core: KernelTarget, chunk: int) -> Patch | None:
    """The patch form of an operator for steps of `chunk` pixels; None where no performance schedule takes it."""
    pairs = sliding_windows(op) if len(op.windows) == len(op.columns) == len(op.inputs) else None
    tensors = [graph.tensors[t] for t in (*op.inputs, *op.outputs)]
    if pairs is None or len(op.outputs) != 1 or not all(is_nhwc(t) for t in tensors):
        return None
    located = tuple(
        None
        if is_single(r) and is_single(c)
        else _located(graph.tensors[t], graph.tensors[op.outputs[0]].rows, r, c, core)
        for t, (r, c) in zip(op.inputs, pairs, strict=True)
    )
    if any(located) and op.kind.removeprefix("concat_") not in SLIDING:
        return None
    if len(located) > 1 and any(g is not None and (g.fixed | g.each) % 4 for g in located):  # tables lie at words
        return None
    columns = graph.tensors[op.outputs[0]].columns
    chunk, width, across = min(chunk, columns), tensors[0].columns, pairs[0][1]
    starts = range(0, columns, chunk)
    forms = [form_of(across, x, min(chunk, columns - x), width) for x in starts]
    singles = [form_of(across, x, 1, width) for x in range(columns)]
    variants: dict[Form, int] = {}
    made: list[Variant] = []
    for form in dict.fromkeys([*forms, *singles]):
        step = step_spec(graph, op, spec, pairs, form) if form.valid > 0 else None
        seldom = 4 * max(forms.count(form) / len(forms), singles.count(form) / len(singles)) < 1
        small = seldom and (core.backend == "c" or core.mve)  # other kernels grow where LLVM writes their loops out
        kernel = None if step is None else first_rule(step, core, small)
        if kernel is None:
            return None
        variants[form] = len(made)
        made.append(Variant(form, kernel))
    whole, single = (runs_of(x, (variants[f] for f in fs)) for x, fs in ((starts, forms), (range(columns), singles)))
    return Patch(located, tuple(made), whole, single, chunk)


def form_of(across: Window, x0: int, pixels: int, width: int) -> Form:
    first = x0 * across.stride - across.padding
    last = first + (pixels - 1) * across.stride + across.span
    return Form(pixels, max(-first, 0), min(last, width) - max(first, 0))


def runs_of(columns: Iterable[int], variants: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """The first column of every run of equal variants, and that variant."""
    runs: list[tuple[int, int]] = []
    for x, v in zip(columns, variants, strict=True):
        if not runs or runs[-1][1] != v:
            runs.append((x, v))
    return tuple(runs)


def step_spec(
    graph: Graph, op: Op, spec: OperatorSpec, pairs: Sequence[tuple[Window, Window]], form: Form
) -> OperatorSpec:
    """The operator in one step.

    Of an input whose rows a table locates it has all rows and the valid columns of a window; of what is read in place
    the step's pixels.
    """
    out = spec.output.shape
    single = all(is_single(r) and is_single(c) for r, c in pairs)
    inputs = tuple(
        replace(t, shape=(1, 1 if single else graph.tensors[i].rows, form.valid, t.shape[3]))
        for i, t in zip(op.inputs, spec.inputs, strict=True)
    )
    return replace(
        spec,
        inputs=inputs,
        output=replace(spec.output, shape=(1, 1 if single else graph.tensors[op.outputs[0]].rows, form.pixels, out[3])),
        attributes=replace(spec.attributes, padding=(pairs[0][0].padding, form.padding, 0, 0)),
        rows_by_table=not single,
    )


def _located(tensor: Tensor, rows: int, row: Window, column: Window, core: KernelTarget) -> Located:
    """What an input takes of which an output of `rows` rows reads windows."""
    pixel = tensor.shape[3] * ITEM_BYTES[tensor.dtype]
    table = -(-row.span // 4) * 16  # rows are copied up to sixteen bytes at a time
    locate = _locate(tensor, rows, row, table, core)
    return Located(locate, table, table + (column.span - column.stride) * pixel, column.stride * pixel)


def _locate(tensor: Tensor, rows: int, row: Window, table_bytes: int, core: KernelTarget) -> PrimFunc:
    """The table of a step's kernel rows, and the copy of the run of `valid` pixels that wraps, pixel by pixel, `away`
    elements from `x`; four words or one at a time where pixels are whole ones."""
    height, width, channels = tensor.shape[1:]
    item = ITEM_BYTES[tensor.dtype]
    words = channels * item % 4 == 0
    dtype = "int32" if words else tensor.dtype
    quads = channels * item % 16 == 0 and (core.backend == "c" or core.mve)
    lanes = 4 if quads else 1
    unit = (channels * item // 4 if words else channels) // lanes
    x, to = tirx.Var("x", PointerType(PrimType(tensor.dtype))), tirx.Var("to", PointerType(PrimType("int32")))
    slot, pixels, away, valid, y = (tirx.Var(v, "int32") for v in ("slot", "pixels", "away", "valid", "y"))
    source = tirx.decl_buffer((prod(tensor.shape[1:3]) * unit * lanes,), dtype, "source", data=x)
    table = tirx.decl_buffer((row.extent,), "int32", "table", data=to)
    target = tirx.decl_buffer((1 << 30,), dtype, "target", data=to)
    first, base, i, place = (tirx.Var(v, "int32") for v in ("first", "base", "i", "place"))

    def turned(pixel: Expr) -> Expr:
        return pixel - tirx.Select(pixel >= pixels, pixels, i32(0))

    located: list[tirx.Stmt] = []
    torn: Expr = i32(-1)  # the first pixel of the run that wraps
    for tap in range(row.extent):
        at, so_far = tirx.Var("at", "int32"), tirx.Var("torn", "int32")
        wraps = at + valid > pixels
        if (rows - 1) * row.stride - row.padding + tap >= height:
            wraps = tirx.all(wraps, first + tap < height)
        located += [
            tirx.Bind(at, turned(base + tap * width)),
            BufferStore(table, tirx.Select(wraps, away, at * channels), [i32(tap)]),
            tirx.Bind(so_far, tirx.Select(wraps, at, torn)),
        ]
        torn = so_far
    move = _move(source, target, quads, core)
    behind = table_bytes // (4 if words else item) // lanes
    pixel = SeqStmt(
        [
            tirx.Bind(place, turned(torn + i)),
            _units(unit, lambda k: move(i * unit + behind + k, place * unit + k)),
        ]
    )
    stmts = [
        tirx.DeclBuffer(source, data=x),
        tirx.DeclBuffer(table, data=to),
        tirx.DeclBuffer(target, data=to),
        tirx.Bind(first, y * row.stride - row.padding),
        tirx.Bind(base, slot - (tirx.max(first, i32(0)) - first) * width if row.padding else slot),
        *located,
        IfThenElse(torn >= 0, For(i, 0, valid, tirx.ForKind.SERIAL, pixel), None),
        tirx.Return(i32(0)),
    ]
    func = PrimFunc([x, slot, pixels, to, away, valid, y], SeqStmt(stmts), PrimType("int32"))
    return func.with_attr("tirx.noalias", True)


def _move(source: tirx.Var, target: tirx.Var, quads: bool, core: KernelTarget) -> Callable[[Expr, Expr], tirx.Stmt]:
    """A copy of one unit of `source` to one of `target`: of an element, or of four words."""
    if not quads:
        return lambda to, at: BufferStore(target, source[at], [to])
    if core.backend == "c":
        return lambda to, at: Evaluate(
            tirx.call_extern("int32", "tc_copy16", tirx.address_of(target[to * 4]), tirx.address_of(source[at * 4]))
        )

    def four(at: Expr) -> Expr:
        return tirx.Ramp(at * 4, i32(1), 4)

    return lambda to, at: BufferStore(target, tirx.BufferLoad(source, [four(at)]), [four(to)])


_UNROLL = 8  # units a pass


def _units(count: int, store: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
    """`store` for every unit, some of them a pass."""
    step = max(u for u in range(1, _UNROLL + 1) if count % u == 0)
    k = tirx.Var("k", "int32")
    stores: list[tirx.Stmt] = [store((k * step if count > step else i32(0)) + u) for u in range(step)]
    body = SeqStmt(stores) if len(stores) > 1 else stores[0]
    return For(k, 0, count // step, tirx.ForKind.SERIAL, body) if count > step else body
