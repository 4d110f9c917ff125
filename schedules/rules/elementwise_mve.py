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
from tvm_cascade.schedules.rules.lanes import LANES, each_vector, put, requantize_lanes, rescale_lanes, splat, vector
from tvm_cascade.schedules.rules.requantize import Requantize, reference
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx


def table_kernel(table: np.ndarray, count: int) -> RowKernel:
    """Build the kernel that looks up sixteen outputs at a time by a gather load; `count`, a multiple of 16, is a row's
    outputs.
    """
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


INT32 = (-(1 << 31), (1 << 31) - 1)


class _Binary:
    """Builder of the kernel for an int8 or int16 add, sub or mul, on four lanes.

    Scales and zero points are in a table, so operators of equal shape share a kernel; int16 zero points are 0.
    """

    def __init__(self, op: Binary, q: Requantize) -> None:
        self.op, self.q, self.centred = op, q, op.dtype == "int16"
        self.parameters: list[int] = []
        self.k = KernelBuilder([op.dtype] * 2, (np.zeros(16, np.int32),), [op.dtype])
        self.table = self.k.view(self.k.constants[0], "int32", "table")

    def parameter(self, value: int) -> Value:
        """Append a number to the table; return the expression for loading this number."""
        self.parameters.append(value)
        return self.table[i32(len(self.parameters) - 1)]

    def build(self) -> RowKernel:
        self._emit()  # now, because it finds the parameters
        return replace(self.k.kernel(lambda: None), constants=(np.array(self.parameters, np.int32),))

    def _emit(self) -> None:
        op, k = self.op, self.k
        m, _, e = (int(v) for v in self.q.table[0])
        multiplier, shift = (k.let(self.parameter(v), "p") for v in (m, -e))
        zero = self._zero(self.q.zero_point)
        combine = self._product() if op.kind == "mul" else self._sum()
        xs = [k.view(k.inputs[i][0], op.dtype, "xs") for i in range(2)]
        rows = [k.let(k.row_offset(i, 0, op.row_elements), "row") for i in range(2)]

        def value(i: Value) -> Value:
            values = [
                k.let(vector(x, row + i, LANES).astype("int32x4"), "x", "int32x4")
                for x, row in zip(xs, rows, strict=True)
            ]
            acc = k.let(combine(values), "acc", "int32x4")
            made = requantize_lanes(k, self.q, acc, splat(multiplier), splat(shift), zero)
            return made.astype(f"{op.dtype}x4")

        each_vector(k, k.view(k.outputs[0], op.dtype, "outs"), op.row_elements, op.dtype, value)

    def _zero(self, value: int) -> Value | None:
        """Load a zero point from the table; None if always 0."""
        return None if self.centred else self.k.let(self.parameter(value), "z")

    def _product(self) -> Callable[[list[Value]], Value]:
        zeros = [self._zero(z) for z in self.op.zero_points]
        return lambda values: _less(values[0], zeros[0]) * _less(values[1], zeros[1])

    def _sum(self) -> Callable[[list[Value]], Value]:
        """Return the function that sums the rescaled operands; zero points of operands with ratio 1/2 are a single
        constant.
        """
        k, op = self.k, self.op
        signs = (1, -1 if op.kind == "sub" else 1)
        halves = [ratio == HALF for ratio in op.ratios[:2]]
        joined = -sum(
            s * (z << (op.head_room - 1)) for s, z, half in zip(signs, op.zero_points, halves, strict=True) if half
        )
        constant = None if self.centred else k.let(self.parameter(joined), "c")
        own: list[tuple[Value, Value, Value | None]] = []  # by operand that is rescaled: zero point, multiplier, shift
        for (m, s), zero, half in zip(op.ratios[:2], op.zero_points, halves, strict=True):
            if half:
                own.append((0, 0, None))
                continue
            shift = k.let(self.parameter(s), "s") if s < 0 else None
            own.append((self._zero(zero), k.let(self.parameter(m), "m"), shift))

        def combine(values: list[Value]) -> Value:
            parts = []
            for value, half, (zero, m, shift) in zip(values, halves, own, strict=True):
                if half:
                    parts.append(tirx.shift_left(value, splat(op.head_room - 1)))
                else:
                    raised = tirx.shift_left(_less(value, zero), splat(op.head_room))
                    parts.append(rescale_lanes(k, raised, m, shift))
            if all(halves):
                both = values[0] + values[1] if signs[1] > 0 else values[0] - values[1]
                total = tirx.shift_left(both, splat(op.head_room - 1))
            else:
                total = parts[0] + parts[1] if signs[1] > 0 else parts[0] - parts[1]
            return total if constant is None else total + splat(constant)

        return combine


def _less(value: Value, zero: Value | None) -> Value:
    return value if zero is None else value - splat(zero)


def vector_elementwise(spec: OperatorSpec) -> list[Variant]:
    """Return the MVE variant of an element-wise operator.

    There is none for uint8, for tables with rows that are no multiple of 16 elements, and for sums and products with
    fewer than four elements per row or with multipliers that shift left.
    """
    table, op = elementwise.read_table(spec), elementwise.read_binary(spec, ("int8", "int16"))
    if table is not None:
        count = prod(spec.output.shape[2:])
        served = count % 16 == 0 and table.dtype == np.int8
        return [Variant("elements", partial(table_kernel, table, count))] if served else []
    q = None if op is None else lane_requantize(op)
    if op is None or q is None or op.row_elements < LANES or any(s > 0 for _, s in op.ratios[:2]):
        return []
    return [Variant("elements", lambda: _Binary(op, q).build())]


def lane_requantize(op: Binary) -> Requantize | None:
    """Plan the requantization of a sum or product by lanes, with two roundings that are exact for each int32.

    Return None if the multiplier does not shift right, or a number needs more bits. Limits that no output exceeds are
    int32's.
    """
    (m, s), (low, high), ends = op.ratios[0 if op.kind == "mul" else 2], op.clamp, _accumulators(op)
    if not -30 <= s < 0 or m < 0 or max(abs(v) for v in ends) > INT32[1]:
        return None
    planned = elementwise.requantize_of(op)
    if op.even and not planned.short:
        return planned if planned.narrow else None
    least, most = reference(np.array(ends), np.array(m), np.array(s), op.zero_out, INT32, op.even)  # it is monotone
    low, high = low if least < low else INT32[0], high if most > high else INT32[1]
    sign = op.zero_out > op.clamp[0] and not op.even
    return Requantize(np.array([[m, 0, -s]], np.int32), True, sign, op.zero_out, low, high, even=op.even)


def _accumulators(op: Binary) -> tuple[int, int]:
    """Return the least and the largest accumulator."""
    a, b = (np.array(elementwise.RANGE_OF[op.dtype], np.int64) - zero for zero in op.zero_points)
    if op.kind == "mul":
        made = np.multiply.outer(a, b)
    else:
        a, b = (elementwise.rescale(v << op.head_room, r) for v, r in zip((a, b), op.ratios[:2], strict=True))
        made = np.add.outer(a, b if op.kind == "add" else -b)
    return int(made.min()), int(made.max())
