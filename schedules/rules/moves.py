"""Kernels for operators that only copy data: rows of concatenations, padding and slices along columns or channels, and
states.

An output row is a sequence of runs, each contiguous in an input or filled with one value; or a row from one of several
inputs. If all runs are aligned to words, the kernel copies words (on MVE up to sixteen bytes at a time); otherwise the
generic kernel, which copies element by element, is as good.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import gcd, prod

from tvm_cascade.cores import KernelTarget
from tvm_cascade.operators.record import TensorType
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import Attributes, OperatorSpec
from tvm_cascade.schedules.rules.emit import KernelBuilder, best_step
from tvm_cascade.schedules.rules.lanes import put, splat, vector
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx

_STEP = 8  # most units of a run copied in one loop iteration
_BYTES = {"int8": 1, "uint8": 1, "int16": 2, "int32": 4, "float32": 4}


@dataclass(frozen=True, slots=True)
class Run:
    """A run with `bytes` bytes in every block of an output row, copied from byte `start` in that block of an input's
    row.
    """

    source: int  # input; -1: no input, `fill` in every byte
    start: int
    bytes: int
    fill: int = 0


@dataclass(frozen=True)
class Move:
    """How an output row is copied: the same `runs` for each of `blocks` blocks."""

    blocks: int
    runs: tuple[Run, ...]
    strides: tuple[int, ...]  # by input: bytes from the start of one block to the start of the next
    dtype: str
    top: int = 0  # rows of padding at the top
    rows: int = 0  # input rows, where rows are padded; 0: every output row has an input row
    fill: int = 0  # of every byte of a row of padding
    ends: tuple[int, ...] = ()  # where each run is all of a row, the row at which that of another input begins


def read_move(spec: OperatorSpec) -> Move | None:
    """Read a concat, pad or strided_slice as a `Move`; None for any other operator or axis."""
    tensors, out = spec.inputs, spec.output
    if spec.constants or any(len(t.shape) != 4 or t.shape[0] != 1 for t in (*tensors, out)):
        return None
    if len({t.dtype for t in (*tensors, out)}) != 1 or out.dtype not in _BYTES:
        return None
    if spec.kind in ("concat", "concatenate") and set(spec.attributes.table_of_input or (-1,)) == {-1}:
        return _concat(spec.attributes.axis, [t.shape for t in tensors], out.dtype)
    if spec.kind == "pad":
        return _pad(spec.attributes, tensors[0].shape, out.dtype)
    if spec.kind == "strided_slice":
        return _slice(spec.attributes, tensors[0].shape, out)
    return None


def _concat(axis: int | None, shapes: list[tuple[int, ...]], dtype: str) -> Move | None:
    if axis not in (1, 2, 3):
        return None
    if axis == 1:
        size = prod(shapes[0][2:]) * _BYTES[dtype]
        runs = tuple(Run(i, 0, size) for i in range(len(shapes)))
        return Move(1, runs, (size,) * len(shapes), dtype, ends=tuple(accumulate(s[1] for s in shapes)))
    sizes = [prod(s[axis:]) * _BYTES[dtype] for s in shapes]
    runs = tuple(Run(i, 0, size) for i, size in enumerate(sizes))
    return Move(prod(shapes[0][2:axis]), runs, tuple(sizes), dtype)


def _pad(given: Attributes, shape: tuple[int, ...], dtype: str) -> Move | None:
    widths, value = given.pad_width or (), given.value
    if len(widths) != 8 or any((*widths[:2], *widths[6:])) or value is None or _BYTES[dtype] != 1:
        return None
    fill, pixel = value & 255, shape[3]
    runs = (Run(-1, 0, widths[4] * pixel, fill), Run(0, 0, shape[2] * pixel), Run(-1, 0, widths[5] * pixel, fill))
    rows = shape[1] if widths[2] or widths[3] else 0
    return Move(1, tuple(r for r in runs if r.bytes), (shape[2] * pixel,), dtype, widths[2], rows, fill)


def _slice(given: Attributes, shape: tuple[int, ...], out: TensorType) -> Move | None:
    begin, strides, item = given.begin or (), given.strides or (), _BYTES[out.dtype]
    _, _, width, channels = out.shape
    if len(begin) != 4 or set(strides[2:]) != {1}:
        return None
    if channels == shape[3]:
        pixel = channels * item
        return Move(1, (Run(0, begin[2] * pixel, width * pixel),), (shape[2] * pixel,), out.dtype)
    if width != shape[2]:
        return None
    return Move(width, (Run(0, begin[3] * item, channels * item),), (shape[3] * item,), out.dtype)


def _unit(move: Move, vectors: bool) -> int:
    """Return the alignment of all runs in bytes: 16, 8, 4 or less; without vectors at most 4."""
    marks = [move.strides[r.source] for r in move.runs if r.source >= 0]
    marks += [v for r in move.runs for v in (r.start, r.bytes)]
    unit = gcd(*marks, 16)
    return unit if vectors or unit < 4 else 4


class _Mover:
    def __init__(self, move: Move, row_bytes: tuple[int, ...], unit: int) -> None:
        self.move, self.unit = move, unit
        self.k = k = KernelBuilder([move.dtype] * len(row_bytes), (), [move.dtype])
        each = 1 if unit == 8 else 4  # bytes of an element of the views: words are in reach from further away
        self.item, self.lanes = "int8" if each == 1 else "int32", unit // each
        self.each = each
        self.xs = [k.view(k.inputs[i][0], self.item, "xs") for i in range(len(row_bytes))]
        self.rows = [k.let(k.row_offset(i, 0, b // each), "row") for i, b in enumerate(row_bytes)]
        self.out = k.view(k.outputs[0], self.item, "outs")

    def build(self) -> RowKernel:
        return self.k.kernel(self._emit)

    def _emit(self) -> None:
        k, move = self.k, self.move
        width = sum(r.bytes for r in move.runs)
        if move.ends:
            for run, first, end in zip(move.runs, (0, *move.ends), move.ends, strict=False):
                with k.when(tirx.all(k.y >= first, k.y < end)):
                    self._run(run, i32(0), i32(0))
        elif move.rows:
            inside = k.let(k.y - move.top, "inside")
            with k.when(tirx.any(inside < 0, inside >= move.rows)):
                self._run(Run(-1, 0, width, move.fill), i32(0), i32(0))
            with k.when(tirx.all(inside >= 0, inside < move.rows)):
                self._blocks(width)
        else:
            self._blocks(width)

    def _blocks(self, width: int) -> None:
        with self.k.loop(self.move.blocks, "b") as b:
            at = 0
            for run in self.move.runs:
                stride = self.move.strides[run.source] if run.source >= 0 else 0
                self._run(run, b * (width // self.each) + at // self.each, b * (stride // self.each))
                at += run.bytes

    def _run(self, run: Run, to: Value, block: Value) -> None:
        """Emit the copy of a run, up to `_STEP` units per loop iteration."""
        k, count = self.k, run.bytes // self.unit
        step = best_step(count, _STEP)
        hop = self.unit // self.each
        source = self.rows[run.source] + block + run.start // self.each if run.source >= 0 else None
        for i in k.unrolled(count // step, step):
            self._unit(run, to + i * hop, None if source is None else source + i * hop)

    def _unit(self, run: Run, to: Value, source: Value | None) -> None:
        k = self.k
        if self.lanes == 1:
            word = int.from_bytes(bytes([run.fill] * 4), "little", signed=True)
            k.store(self.out, to, i32(word) if source is None else self.xs[run.source][source])
            return
        if source is None:
            fill = int.from_bytes(bytes([run.fill] * self.each), "little", signed=True)
            value = splat(tirx.const(fill, self.item), self.lanes)
        else:
            value = vector(self.xs[run.source], source, self.lanes)
        put(k, self.out, to, value, self.lanes)


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the variants for pure copies (`Move`): by vectors with 16 or 8 bytes, if the core has them, then by words.

    There are none if runs are not aligned to words.
    """
    if spec.kind == "assign_state":
        return _states(spec, target)
    move = read_move(spec)
    if move is None or _unit(move, False) < 4:
        return []
    rows = tuple(prod(t.shape[2:]) * _BYTES[t.dtype] for t in spec.inputs)
    forms = [("vectors", True)] if target.vectors else []
    forms.append(("words", False))
    return [Variant(name, lambda move=move, v=v: _Mover(move, rows, _unit(move, v)).build()) for name, v in forms]


def _states(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the variants for the operator that writes a state (`passes.states`), from the first byte to the last."""
    given = spec.attributes.runs or ()
    runs = [Run(*given[k : k + 3]) for k in range(0, len(given), 3)]
    unit = gcd(*(v for r in runs for v in (r.start, r.bytes)), 16)
    if unit < 4 or spec.output.dtype not in _BYTES:
        return []
    forms = [("vectors", unit)] if target.vectors and unit > 4 else []
    return [Variant(name, lambda u=u: _state_kernel(spec, runs, u)) for name, u in (*forms, ("words", 4))]


def _state_kernel(spec: OperatorSpec, runs: list[Run], unit: int) -> RowKernel:
    """Build a kernel that writes a state's new value in units of `unit` bytes.

    The last input and the output are both the state. Every read of the old value comes before a write there: no run
    comes from further up than it goes.
    """
    k = KernelBuilder([t.dtype for t in spec.inputs], (), [spec.output.dtype])
    item, each = ("int32", 4) if unit == 4 else ("int8", 1)
    hop, state = unit // each, len(spec.inputs) - 1
    out = k.view(k.outputs[0], item, "outs")
    views = [out if i == state else k.view(x[0], item, "xs") for i, x in enumerate(k.inputs)]

    def emit() -> None:
        at = 0
        for run in runs:
            count = run.bytes // unit
            step = best_step(count, _STEP)
            for i in k.unrolled(count // step, step):
                to, source = i * hop + at // each, i * hop + run.start // each
                value = views[run.source][source] if unit == 4 else vector(views[run.source], source, unit)
                put(k, out, to, value, unit) if unit > 4 else k.store(out, to, value)
            at += run.bytes

    return k.kernel(emit)
