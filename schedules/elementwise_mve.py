"""Row kernels of element-wise operators on vectors: sixteen table look-ups, or four sums, at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx import PrimFunc

from tvm_cascade.schedules.elementwise import HALF, Binary, product_requantize, read_binary, read_table, sum_requantize
from tvm_cascade.schedules.emit import KernelBuilder, i32
from tvm_cascade.schedules.lanes import LANES, put, requantize_lanes, rescale_lanes, splat, vector
from tvm_cascade.schedules.quantized import parameters, shape_of
from tvm_cascade.schedules.requantize import Requantize
from tvm_cascade.schedules.row_kernel import RowKernel

Value = Any


def table_kernel(func: PrimFunc, table: np.ndarray) -> RowKernel | None:
    """Sixteen outputs gathered by their inputs' bytes; None where rows are not a multiple of sixteen."""
    _, _, width, channels = shape_of(parameters(func)[0])
    count = width * channels
    if count % 16:
        return None
    k = KernelBuilder(["int8"], (table,), ["int8"])
    x, out = k.view(k.inputs[0][0], "int8", "xs"), k.view(k.outputs[0], "int8", "outs")
    looked = k.view(k.constants[0], "int8", "table")
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
    return k.kernel()


def binary_kernel(op: Binary) -> RowKernel | None:
    """add, sub or mul, four lanes at a time; None where the proofs fail or rows are not a multiple of four."""
    q = product_requantize(op) if op.kind == "mul" else sum_requantize(op)
    if not q.short or op.row_elements % LANES or any(s > 0 for _, s in op.ratios[:2]):
        return None
    k = KernelBuilder(["int8", "int8"], (), ["int8"])
    xs = [k.view(k.inputs[i][0], "int8", "xs") for i in range(2)]
    rows = [k.let(k.row_offset(i, 0, op.row_elements), "row") for i in range(2)]
    out = k.view(k.outputs[0], "int8", "outs")
    with k.loop(op.row_elements // LANES, "i") as i:
        values = [
            k.let(vector(x, row + i * LANES, LANES).astype("int32x4"), "x", "int32x4")
            for x, row in zip(xs, rows, strict=True)
        ]
        acc = _product(op, values) if op.kind == "mul" else _sum(k, op, values)
        put(k, out, i * LANES, _requantized(k, q, acc).astype("int8x4"), LANES)
    return k.kernel()


def _product(op: Binary, values: list[Value]) -> Value:
    return (values[0] - splat(op.zero_points[0])) * (values[1] - splat(op.zero_points[1]))


def _sum(k: KernelBuilder, op: Binary, values: list[Value]) -> Value:
    """The scaled sum; the zero point of an operand of ratio 1/2 joins the other constants."""
    constant, parts = 0, []
    for index, (value, zero, ratio) in enumerate(zip(values, op.zero_points, op.ratios[:2], strict=True)):
        sign = -1 if op.kind == "sub" and index == 1 else 1
        if ratio == HALF:
            parts.append(tirx.shift_left(value, splat(op.head_room - 1)) * (splat(sign) if sign < 0 else splat(1)))
            constant -= sign * (zero << (op.head_room - 1))
            continue
        high = rescale_lanes(k, tirx.shift_left(value - splat(zero), splat(op.head_room)), ratio)
        parts.append(high if sign > 0 else splat(0) - high)
    return parts[0] + parts[1] + splat(constant)


def _requantized(k: KernelBuilder, q: Requantize, acc: Value) -> Value:
    m, _, e = (int(v) for v in q.table[0])
    return requantize_lanes(k, q, k.let(acc, "acc", "int32x4"), splat(m), splat(-e))


def vector_elementwise(func: PrimFunc, constants: tuple[np.ndarray, ...]) -> RowKernel | None:
    """A kernel for an element-wise `func` on vectors, None where none here applies."""
    table = read_table(func, constants)
    if table is not None:
        return table_kernel(func, table)
    op = read_binary(func)
    return None if op is None else binary_kernel(op)
