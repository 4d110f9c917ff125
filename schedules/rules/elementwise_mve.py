"""MVE row kernels of element-wise operators: sixteen table look-ups, or four sums or products, at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules import elementwise
from tvm_cascade.schedules.rules.elementwise import HALF, Binary
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.rules.lanes import LANES, put, requantize_lanes, rescale_lanes, splat, vector
from tvm_cascade.schedules.rules.requantize import Requantize
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx


def table_kernel(table: np.ndarray, count: int) -> RowKernel:
    """Kernel that looks up sixteen outputs at a time by a gather load; `count`, a multiple of 16, is those of a row."""
    k = KernelBuilder(["int8"], (table,), ["int8"])
    x, out = k.view(k.inputs[0][0], "int8", "xs"), k.view(k.outputs[0], "int8", "outs")
    looked = k.view(k.constants[0], "int8", "table")

    def emit() -> None:
        row = k.let(k.row_offset(0, 0, count), "row")
        with k.loop(count // 16, "i") as i:
            gathered = tirx.call_llvm_pure_intrin(
                "int8x16",
                "llvm.arm.mve.vldr.gather.offset",
                tirx.address_of(looked[i32(0)]),
                vector(x, row + i * 16, 16),
                8,  # bits of an element in memory
                0,  # shift of the offsets
                1,  # unsigned
            )
            put(k, out, i * 16, gathered, 16)

    return k.kernel(emit)


class _Binary:
    """Builder of the kernel of an int8 add, sub or mul, on four lanes.

    Scales and zero points are in a table, so that operators of one shape share a kernel.
    """

    def __init__(self, op: Binary, q: Requantize) -> None:
        self.op, self.q = op, q
        self.parameters: list[int] = []
        self.k = KernelBuilder(["int8", "int8"], (np.zeros(16, np.int32),), ["int8"])
        self.table = self.k.view(self.k.constants[0], "int32", "table")

    def parameter(self, value: int) -> Value:
        """Appends a number to the table; the expression that loads it."""
        self.parameters.append(value)
        return self.table[i32(len(self.parameters) - 1)]

    def build(self) -> RowKernel:
        self._emit()  # now, because it finds the parameters
        return replace(self.k.kernel(lambda: None), constants=(np.array(self.parameters, np.int32),))

    def _emit(self) -> None:
        op, k = self.op, self.k
        m, _, e = (int(v) for v in self.q.table[0])
        multiplier, shift, zero = (k.let(self.parameter(v), "p") for v in (m, -e, self.q.zero_point))
        combine = self._product() if op.kind == "mul" else self._sum()
        xs = [k.view(k.inputs[i][0], "int8", "xs") for i in range(2)]
        rows = [k.let(k.row_offset(i, 0, op.row_elements), "row") for i in range(2)]
        out = k.view(k.outputs[0], "int8", "outs")
        with k.loop(op.row_elements // LANES, "i") as i:
            values = [
                k.let(vector(x, row + i * LANES, LANES).astype("int32x4"), "x", "int32x4")
                for x, row in zip(xs, rows, strict=True)
            ]
            acc = k.let(combine(values), "acc", "int32x4")
            made = requantize_lanes(k, self.q, acc, splat(multiplier), splat(shift), zero)
            put(k, out, i * LANES, made.astype("int8x4"), LANES)

    def _product(self) -> Callable[[list[Value]], Value]:
        zeros = [self.k.let(self.parameter(z), "z") for z in self.op.zero_points]
        return lambda values: (values[0] - splat(zeros[0])) * (values[1] - splat(zeros[1]))

    def _sum(self) -> Callable[[list[Value]], Value]:
        """The function that sums the rescaled operands; zero points of operands of ratio 1/2 are one constant."""
        k, op = self.k, self.op
        signs = (1, -1 if op.kind == "sub" else 1)
        halves = [ratio == HALF for ratio in op.ratios[:2]]
        joined = -sum(
            s * (z << (op.head_room - 1)) for s, z, half in zip(signs, op.zero_points, halves, strict=True) if half
        )
        constant = k.let(self.parameter(joined), "c")
        own: list[tuple[Value, Value, Value | None]] = []  # by operand that is rescaled: zero point, multiplier, shift
        for (m, s), zero, half in zip(op.ratios[:2], op.zero_points, halves, strict=True):
            if half:
                own.append((0, 0, None))
                continue
            shift = k.let(self.parameter(s), "s") if s < 0 else None
            own.append((k.let(self.parameter(zero), "z"), k.let(self.parameter(m), "m"), shift))

        def combine(values: list[Value]) -> Value:
            total = splat(constant)
            for value, sign, half, (zero, m, shift) in zip(values, signs, halves, own, strict=True):
                if half:
                    part = tirx.shift_left(value, splat(op.head_room - 1))
                else:
                    part = rescale_lanes(k, tirx.shift_left(value - splat(zero), splat(op.head_room)), m, shift)
                total = total + part if sign > 0 else total - part
            return total

        return combine


def vector_elementwise(spec: OperatorSpec) -> list[Variant]:
    """The MVE variant of an element-wise operator.

    There is none for uint8, for tables where rows are no multiple of 16 elements, and for sums and products where they are
    no multiple of 4 or without the short form of requantization.
    """
    table, op = elementwise.read_table(spec), elementwise.read_binary(spec)
    if table is not None:
        count = prod(spec.output.shape[2:])
        served = count % 16 == 0 and table.dtype == np.int8
        return [Variant("elements", partial(table_kernel, table, count))] if served else []
    q = None if op is None else elementwise.requantize_of(op)
    if op is None or q is None or not q.short or op.dtype != "int8":
        return []
    served = op.row_elements % LANES == 0 and all(s <= 0 for _, s in op.ratios[:2])
    return [Variant("elements", lambda: _Binary(op, q).build())] if served else []
