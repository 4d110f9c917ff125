"""Row kernel of a hybrid product (float activations stored as int8, int8 weights) for the M-profile vector extension.

Lanes are products of one unit: `sum W (q - z) = sum W q - z sum W`, so the weights' sums are a constant and the zero point
is taken off once a unit. The last vector of a row overlaps the one before, by weights of zero. How often the loop runs is
read from a table: LLVM would decide by the number of units whether it makes vectors of a loop that it knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.lanes import vector
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx

_LANES = (16, 8, 4)  # products of an instruction: of bytes, or of bytes that are widened as they are loaded
_UNITS = 4  # units at a time
_FLOAT = "float32"


@dataclass(frozen=True, slots=True, eq=False)
class HybridDense:
    """A product of rows by int8 weights [units, depth], with one scale or one a unit, and a bias. A call computes all rows."""

    rows: int
    weights: np.ndarray
    scales: np.ndarray
    bias: np.ndarray

    @property
    def lanes(self) -> int:
        return next(n for n in _LANES if n <= self.weights.shape[1])

    @property
    def passes(self) -> int:
        return -(-self.weights.shape[1] // self.lanes)

    def packed(self) -> np.ndarray:
        """The weights, unit by unit and pass by pass, of which the last ends with the row."""
        units, depth = self.weights.shape
        again = self.passes * self.lanes - depth
        whole, last = np.split(self.weights, [depth - self.lanes + again], axis=1)
        return np.concatenate([whole, np.zeros((units, again), np.int8), last], axis=1).ravel()

    def table(self) -> np.ndarray:
        """How often the loop runs, then the sums of weights, less than zero where these are more."""
        return np.concatenate([[self.passes - 1], -self.weights.astype(np.int32).sum(1)]).astype(np.int32)


def read_hybrid_dense(spec: OperatorSpec) -> HybridDense | None:
    """A hybrid product of four or more; None for other operators."""
    if spec.kind != "hybrid_dense" or len(spec.constants) != 3 or spec.constants[0].shape[1] < _LANES[-1]:
        return None
    return HybridDense(spec.output.shape[0], *spec.constants)


class _Dot:
    def __init__(self, op: HybridDense) -> None:
        self.op, (self.units, self.depth) = op, op.weights.shape
        constants = (op.packed(), op.scales, op.bias, op.table())
        self.k = k = KernelBuilder(["int8", _FLOAT], constants, [_FLOAT])
        self.x, self.factors = (k.view(given[0], t, "xs") for given, t in zip(k.inputs, ("int8", _FLOAT), strict=True))
        types = ("int8", _FLOAT, _FLOAT, "int32")
        self.w, self.scales, self.bias, self.sums = (
            k.view(c, t, "ws") for c, t in zip(k.constants, types, strict=True)
        )
        self.out = k.view(k.outputs[0], _FLOAT, "outs")

    def build(self) -> RowKernel:
        return self.k.kernel(self._emit)

    def _emit(self) -> None:
        k, rows = self.k, self.op.rows
        first, parts = (k.let(k.row_offset(i, 0, rows * size), "first") for i, size in enumerate((self.depth, 3)))
        with k.loop(rows, "n") as n:
            self.at, part = k.let(first + n * self.depth, "at"), k.let(parts + n * 3, "part")
            scale = self.factors[part]
            self.scale = k.let(scale if self.op.scales.size > 1 else scale * self.scales[i32(0)], "scale", _FLOAT)
            self.zero = k.let(self.factors[part + 2].astype("int32"), "zero")
            to = k.let(n * self.units, "to") if rows > 1 else 0
            if self.units >= _UNITS:
                with k.loop(self.units // _UNITS, "ub") as ub:
                    self._block(ub * _UNITS, _UNITS, to)
            if rest := self.units % _UNITS:
                self._block(i32(self.units - rest), rest, to)

    def _block(self, unit: Value, count: int, to: Value) -> None:
        k, op = self.k, self.op
        acc = k.local(count, "acc")
        for j in range(count):
            k.store(acc, j, i32(0))
        if op.passes > 1:
            with k.loop(k.let(self.sums[i32(0)], "passes"), "i", passes=op.passes - 1) as i:
                self._products(acc, unit, self.at + i * op.lanes, i * op.lanes, count)
        last = (op.passes - 1) * op.lanes
        self._products(acc, unit, self.at + (self.depth - op.lanes), i32(last), count)
        for j in range(count):
            factor = self.scale
            if op.scales.size > 1:
                factor = k.let(factor * self.scales[unit + j], "factor", _FLOAT)
            total = k.let(call("mla", self.zero, self.sums[unit + (j + 1)], acc[i32(j)]), "total")
            real = call("mlaf", total.astype(_FLOAT), factor, self.bias[unit + j])
            k.store(self.out, to + unit + j, real)

    def _products(self, acc: Value, unit: Value, at: Value, tap: Value, count: int) -> None:
        k, lanes, row = self.k, self.op.lanes, self.op.passes * self.op.lanes
        kind = f"int{128 // lanes}x{lanes}"
        x = k.let(vector(self.x, at, lanes).astype(kind), "xv", kind)
        for j in range(count):
            w = vector(self.w, (unit + j) * row + tap, lanes).astype(kind)
            dot = "llvm.arm.mve.vmldava"
            k.store(acc, j, tirx.call_llvm_pure_intrin("int32", dot, 0, 0, 0, acc[i32(j)], x, w))


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """The kernel of a hybrid product; none for other operators."""
    op = read_hybrid_dense(spec) if target.vectors else None
    return [] if op is None else [Variant("dot", _Dot(op).build)]
