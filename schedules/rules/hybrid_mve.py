"""Row kernels of hybrid products (float activations stored as int8, int8 weights) for the M-profile vector extension.

Activations are stored four at a time; `vcvta` rounds half away from zero. A product's lanes belong to a single unit:
`sum W (q - z) = sum W q - z sum W`, so the weights' sums are a constant and the zero point is subtracted once per unit.
A row's last vector overlaps the previous vector, with zero weights there. The loop count is read from a table: if LLVM
knew the count, it would decide by it whether to vectorize the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.lanes import LANES, each_vector, splat, vector
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx

_LANES = (16, 8, 4)  # products of an instruction: of bytes, or of bytes that are widened as they are loaded
_UNITS = 4  # units at a time
_FLOAT = "float32"
_FOUR = f"{_FLOAT}x{LANES}"
_ROWS = {2: 1, 4: 2}  # by rank, the first axis within a row of what is stored


@dataclass(frozen=True, slots=True, eq=False)
class HybridDense:
    """A product of rows by int8 weights [units, depth], with a single scale or one per unit, and a bias. A call
    computes all rows.
    """

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
        """Return the weights, unit by unit and pass by pass; the last pass ends with the row."""
        units, depth = self.weights.shape
        again = self.passes * self.lanes - depth
        whole, last = np.split(self.weights, [depth - self.lanes + again], axis=1)
        return np.concatenate([whole, np.zeros((units, again), np.int8), last], axis=1).ravel()

    def table(self) -> np.ndarray:
        """Return the loop count, then the negated sums of weights."""
        return np.concatenate([[self.passes - 1], -self.weights.astype(np.int32).sum(1)]).astype(np.int32)


def read_hybrid_dense(spec: OperatorSpec) -> HybridDense | None:
    """Read a hybrid product with a depth of four or more; None for any other operator."""
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


def quantize(spec: OperatorSpec) -> RowKernel:
    """Build the kernel that stores a row of floats as int8, or all rows of a matrix in one call."""
    k, shape = KernelBuilder([_FLOAT, _FLOAT], (), ["int8"]), spec.output.shape
    low, high = spec.attributes.clamp or (-128, 127)
    rows, count = shape[0], prod(shape[_ROWS[len(shape)] :])
    x, factors = (k.view(given[0], _FLOAT, "xs") for given in k.inputs)
    out = k.view(k.outputs[0], "int8", "outs")

    def emit() -> None:
        first, parts = (k.let(k.row_offset(i, 0, rows * size), "first") for i, size in enumerate((count, 3)))
        with k.loop(rows, "n") as n:
            inverse, zero = (k.let(factors[parts + n * 3 + j], "factor", _FLOAT) for j in (1, 2))

            def value(i: Value) -> Value:
                real = k.let(vector(x, first + n * count + i, LANES) * splat(inverse) + splat(zero), "real", _FOUR)
                near = tirx.call_llvm_pure_intrin("int32x4", "llvm.arm.mve.vcvta", 0, real)
                return tirx.max(tirx.min(near, splat(high)), splat(low)).astype("int8x4")

            each_vector(k, out, count, "int8", value, start=n * count)

    return k.kernel(emit)


def _stores(spec: OperatorSpec) -> bool:
    """Return True if an operator stores rows of four floats or more."""
    shape = spec.output.shape
    plain = len(shape) == 2 or (len(shape) == 4 and shape[0] == 1)
    return spec.kind == "hybrid_quantize" and plain and prod(shape[_ROWS[len(shape)] :]) >= LANES


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the kernel for a hybrid product, or for its stored activations; none for any other operator."""
    if target.vectors and _stores(spec):
        return [Variant("quantize", partial(quantize, spec))]
    op = read_hybrid_dense(spec) if target.vectors else None
    return [] if op is None else [Variant("dot", _Dot(op).build)]
