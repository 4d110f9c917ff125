"""Row kernels for int8 products of two activations, as attention has them, one output row in blocks of four columns.

A block's sums stay in registers while the depth is walked: an element of the left operand, centred, serves four
neighbouring elements of the right operand's row. The right operand's zero point is taken off once, times the sum of the
left row. Requantization is the convolutions'.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import ONCE, OperatorSpec
from tvm_cascade.schedules.rules.emit import KernelBuilder, best_step
from tvm_cascade.schedules.rules.requantize import Requantize, emit_requantize, plan_requantize
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32

_BLOCK = 4  # columns of the output
_STEP = 4  # elements of the depth in one loop iteration


@dataclass(frozen=True, eq=False)
class Product:
    """A product of `[rows, depth]` and `[depth, columns]` in every row of the tensors."""

    rows: int
    depth: int
    columns: int
    right_rows: int  # of the depth in a row of the right operand's tensor
    zero_points: tuple[int, int]
    bias: np.ndarray
    requantize: Requantize


def read_product(spec: OperatorSpec) -> Product | None:
    """Read an int8 product of two activations of rank 3 or 4, batch 1; None for any other operator."""
    if spec.kind != "batch_matmul" or len(spec.inputs) != 2 or len(spec.constants) != 3:
        return None
    (x, y), out, given = (t.shape for t in spec.inputs), spec.output.shape, spec.attributes
    if {t.dtype for t in (*spec.inputs, spec.output)} != {"int8"} or not len(x) == len(y) == len(out) in (3, 4):
        return None
    if out[0] != 1 or x[:-1] != out[:-1] or y[0] != 1 or (len(out) == 4 and y[1] not in (1, out[1])):
        return None
    bias, m, s = (np.broadcast_to(c.ravel(), out[-1]) for c in spec.constants)
    zeros, depth = given.input_zero_points or (0, 0), x[-1]
    reach = depth * (128 + abs(zeros[0])) * (128 + abs(zeros[1]))
    low, high, clamp = bias.astype(np.int64) - reach, bias.astype(np.int64) + reach, given.clamp or (-128, 127)
    q = plan_requantize(m, s, low, high, given.output_zero_point or 0, (clamp[0], clamp[1]), given.rounding == ONCE)
    rows = out[2] if len(out) == 4 else 1
    return Product(rows, depth, out[-1], depth if len(out) == 4 else 1, (zeros[0], zeros[1]), bias, q)


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
        """List runs of blocks: the first column, the number of blocks, the columns of each."""
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


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the variant of a product of two activations on cores without vectors; none for any other operator."""
    product = None if target.vectors else read_product(spec)
    return [] if product is None else [Variant("blocks", lambda: _Blocks(product).build())]
