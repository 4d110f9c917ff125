"""Row kernels for products of two activations, as attention has, in blocks of four columns.

A block's sums stay in registers while the depth is walked: an element of the left operand serves four neighbouring
elements of the right operand's row. Of int8 an output row is made at a time: the right operand's zero point is taken off
once, times the sum of the left row, and requantization is the convolutions'. Of float32 two rows share the right operand's
elements, or four where vectors hold the columns; sums are added up in the generic kernel's order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import ONCE, OperatorSpec
from tvm_cascade.schedules.rules.emit import KernelBuilder, best_step
from tvm_cascade.schedules.rules.fpu_float_kernels import FLOAT
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.lanes import put, vector
from tvm_cascade.schedules.rules.requantize import Requantize, emit_requantize, plan_requantize
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx

_BLOCK = 4  # columns of the output
_ROWS, _ROWS_OF_VECTORS = 2, 4  # of a block of floats
_STEP = 4  # elements of the depth in one loop iteration


@dataclass(frozen=True)
class Matrices:
    """A product `[rows, depth]` by `[depth, columns]` in every row of the tensors."""

    rows: int
    depth: int
    columns: int
    right_rows: int  # of the depth in a row of the right operand's tensor


def read_matrices(spec: OperatorSpec, dtype: str) -> Matrices | None:
    """Read two activations' product, rank 3 or 4, batch 1; None for any other operator."""
    if spec.kind != "batch_matmul" or len(spec.inputs) != 2:
        return None
    (x, y), out = (t.shape for t in spec.inputs), spec.output.shape
    if {t.dtype for t in (*spec.inputs, spec.output)} != {dtype} or not len(x) == len(y) == len(out) in (3, 4):
        return None
    if out[0] != 1 or x[:-1] != out[:-1] or y[0] != 1 or (len(out) == 4 and y[1] not in (1, out[1])):
        return None
    whole = len(out) == 4
    return Matrices(out[2] if whole else 1, x[-1], out[-1], x[-1] if whole else 1)


@dataclass(frozen=True, eq=False)
class Product(Matrices):
    """A product between int8 matrices."""

    zero_points: tuple[int, int]
    bias: np.ndarray
    requantize: Requantize


def read_product(spec: OperatorSpec) -> Product | None:
    """Read an int8 product of two activations of rank 3 or 4, batch 1; None for any other operator."""
    matrices = read_matrices(spec, "int8")
    if matrices is None or len(spec.constants) != 3:
        return None
    given, columns = spec.attributes, matrices.columns
    bias, m, s = (np.broadcast_to(c.ravel(), columns) for c in spec.constants)
    zeros, depth = given.input_zero_points or (0, 0), matrices.depth
    reach = depth * (128 + abs(zeros[0])) * (128 + abs(zeros[1]))
    low, high, clamp = bias.astype(np.int64) - reach, bias.astype(np.int64) + reach, given.clamp or (-128, 127)
    q = plan_requantize(m, s, low, high, given.output_zero_point or 0, (clamp[0], clamp[1]), given.rounding == ONCE)
    return Product(matrices.rows, depth, columns, matrices.right_rows, (zeros[0], zeros[1]), bias, q)


class _Blocks:
    def __init__(self, product: Product) -> None:
        self.p = p = product
        numbers = np.concatenate([np.column_stack([p.bias, p.requantize.table]).ravel(), p.zero_points]).astype(
            np.int32
        )
        self.k = k = KernelBuilder(["int8", "int8"], [numbers], ["int8"])
        self.x, self.y = (k.view(k.inputs[i][0], "int8", name) for i, name in enumerate(("xs", "ys")))
        self.out, self.table = k.view(k.outputs[0], "int8", "outs"), k.view(k.constants[0], "int32", "table")

    def build(self) -> RowKernel:
        p, q = self.p, self.p.requantize
        form = "matmul", p.rows, p.depth, p.columns, p.right_rows, p.zero_points[1] != 0
        return self.k.kernel(
            self._emit, form=(*form, q.short, q.narrow, q.even, q.sign, q.zero_point, q.lo, q.hi, q.reason)
        )

    def _emit(self) -> None:
        k, p = self.k, self.p
        zero, other = (k.let(self.table[i32(4 * p.columns + i)], "zero") for i in range(2))
        left = k.let(k.row_offset(0, 0, p.rows * p.depth), "left")
        right = k.let(k.row_offset(1, 0, p.right_rows * p.columns), "right")
        with k.loop(p.rows, "m") as m:
            start = k.let(left + m * p.depth, "start")
            away = self._sum(start, zero, other) if p.zero_points[1] else i32(0)
            for first, count, size in self._blocks():
                with k.loop(count, "block") as block:
                    self._block(start, right, m * p.columns, first + block * size, size, zero, away)

    def _blocks(self) -> list[tuple[int, int, int]]:
        """List block runs: the first column, the block count, and the columns in each."""
        whole, rest = divmod(self.p.columns, _BLOCK)
        found = [(0, whole, _BLOCK)] if whole else []
        return [*found, (whole * _BLOCK, 1, rest)] if rest else found

    def _sum(self, start: Value, zero: Value, other: Value) -> Value:
        """Return the sum of the centred left row, times the right operand's zero point."""
        k, total = self.k, self.k.local(1, "total")
        k.store(total, 0, i32(0))
        step = best_step(self.p.depth, _STEP)
        for i in k.unrolled(self.p.depth // step, step, "i"):
            k.store(total, 0, total[i32(0)] + self.x[start + i].astype("int32"))
        return k.let((total[i32(0)] - zero * self.p.depth) * other, "away")

    def _block(
        self, start: Value, right: Value, row: Value, column: Value, size: int, zero: Value, away: Value
    ) -> None:
        k, p = self.k, self.p
        sums = k.local(size, "sums")
        for j in range(size):
            k.store(sums, j, i32(0))
        step = best_step(p.depth, _STEP)
        for i in k.unrolled(p.depth // step, step, "i"):
            value = k.let(self.x[start + i].astype("int32") - zero, "value")
            at = k.let(right + i * p.columns + column, "at")
            for j in range(size):
                k.store(sums, j, sums[i32(j)] + value * self.y[at + j].astype("int32"))
        for j in range(size):
            place = k.let((column + j) * 4, "place")
            bias, m, addend, shift = (k.let(self.table[place + i], "number") for i in range(4))
            acc = k.let(sums[i32(j)] + bias - away, "acc")
            value = emit_requantize(k, p.requantize, acc, m, addend, shift)
            k.store(self.out, row + column + j, value.astype("int8"))


@dataclass(frozen=True)
class FloatBlocks:
    """A kernel form for float matrices: blocks with `rows` by four columns, or by a vector."""

    matrices: Matrices
    rows: int
    vectors: bool

    def build(self) -> RowKernel:
        return _FloatKernel(self).build()


class _FloatKernel:
    def __init__(self, form: FloatBlocks) -> None:
        self.p, self.form, self.lanes = form.matrices, form, _BLOCK if form.vectors else 1
        self.kind = f"{FLOAT}x{_BLOCK}" if form.vectors else FLOAT
        self.k = k = KernelBuilder([FLOAT, FLOAT], [], [FLOAT])
        self.x, self.y = (k.view(k.inputs[i][0], FLOAT, name) for i, name in enumerate(("xs", "ys")))
        self.out = k.view(k.outputs[0], FLOAT, "outs")

    def build(self) -> RowKernel:
        return self.k.kernel(self._emit, form=("matmul", self.form))

    def _emit(self) -> None:
        k, p, size = self.k, self.p, self.form.rows
        left = k.let(k.row_offset(0, 0, p.rows * p.depth), "left")
        right = k.let(k.row_offset(1, 0, p.right_rows * p.columns), "right")
        whole, rest = divmod(p.rows, size)
        for first, count, rows in ((0, whole, size), (whole * size, 1, rest)):
            if not rows:
                continue
            with k.loop(count, "m") as m:
                row = first + m * rows
                self._columns(k.let(left + row * p.depth, "start"), right, k.let(row * p.columns, "row"), rows)

    def _columns(self, start: Value, right: Value, row: Value, rows: int) -> None:
        whole, rest = divmod(self.p.columns, _BLOCK)
        if whole:
            with self.k.loop(whole, "block") as block:
                self._block(start, right, row, block * _BLOCK, rows, _BLOCK)
        if rest and self.form.vectors:  # what is left, with columns that are computed again
            self._block(start, right, row, self.p.columns - _BLOCK, rows, _BLOCK)
        elif rest:
            self._block(start, right, row, whole * _BLOCK, rows, rest)

    def _block(self, start: Value, right: Value, row: Value, column: Value, rows: int, size: int) -> None:
        k, p, lanes = self.k, self.p, self.lanes
        sums, first = k.local(rows * size, "sums", FLOAT), k.let(right + column, "first")
        for place in range(0, rows * size, lanes):
            self._put(sums, place, self._splat(tirx.const(0, FLOAT)))
        step = best_step(p.depth, _STEP)
        for i in k.unrolled(p.depth // step, step, "i"):
            at = k.let(first + i * p.columns, "at")
            values = [k.let(self._at(self.y, at + j), "right", self.kind) for j in range(0, size, lanes)]
            for r in range(rows):
                value = k.let(self.x[start + i + r * p.depth], "value", FLOAT)
                for j, other in enumerate(values):
                    place = r * size + j * lanes
                    self._put(sums, place, self._added(self._at(sums, place), value, other))
        for r in range(rows):
            for j in range(0, size, lanes):
                self._put(self.out, row + column + (r * p.columns + j), self._at(sums, r * size + j))

    def _added(self, total: Value, value: Value, other: Value) -> Value:
        """Add a product to a sum: scalars in one instruction that C compilers do not find."""
        return total + self._splat(value) * other if self.form.vectors else call("mlaf", value, other, total)

    def _splat(self, value: Value) -> Value:
        return tirx.Broadcast(value, self.lanes) if self.form.vectors else value

    def _at(self, buffer: Value, index: Value) -> Value:
        return vector(buffer, index, self.lanes) if self.form.vectors else buffer[i32(index)]

    def _put(self, buffer: Value, index: Value, value: Value) -> None:
        if self.form.vectors:
            put(self.k, buffer, index, value, self.lanes)
        else:
            self.k.store(buffer, index, value)


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the variant for two activations' product: floats where hardware computes them, int8 on cores without
    vectors; none for any other operator.
    """
    matrices = read_matrices(spec, FLOAT) if target.core.fpu else None
    if matrices is not None:
        vectors = target.vectors and matrices.columns >= _BLOCK
        rows = min(_ROWS_OF_VECTORS if vectors else _ROWS, matrices.rows)
        return [Variant("blocks", FloatBlocks(matrices, rows, vectors).build)]
    product = None if target.vectors else read_product(spec)
    return [] if product is None else [Variant("blocks", lambda: _Blocks(product).build())]
