"""Scalar row kernels of add, sub, mul, relu and requantize: a single element at a time, with look-up tables.

An operator that reads a single activation (with a scalar constant as second operand, or none) is a table of 256
outputs. For add and sub, TFLite gives the operand with the larger scale the ratio 1/2 exactly, which is a shift; the
second operand is rescaled by a table of 256 int32, unless its ratio is 1/2 too. Then the sum needs a single
requantization.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import ONCE, Attributes, OperatorSpec
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.quantized import RANGES
from tvm_cascade.schedules.rules.requantize import Requantize, clamp_value, emit_requantize, plan_requantize, reference
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx

HALF = (1 << 30, 0)  # multiplier and shift of the ratio 1/2
RANGE_OF = {**RANGES, "int16": (-(1 << 15), (1 << 15) - 1)}
STORED = {"int8": (np.arange(256) + 128) % 256 - 128, "uint8": np.arange(256)}  # [256]: the value of each byte


@dataclass(frozen=True, eq=False)
class Binary:
    """An add, sub or mul on two activations with equal shape and type."""

    kind: str
    row_elements: int
    zero_points: tuple[int, int]
    ratios: tuple[tuple[int, int], ...]  # multiplier and shift: of both operands (add, sub), then of the output
    zero_out: int
    clamp: tuple[int, int]
    head_room: int = 20
    dtype: str = "int8"
    even: bool = False  # the output is rounded once, half to even

    def reach(self, operand: int) -> int:
        """Return the largest distance of a stored value from the zero point."""
        low, high = RANGE_OF[self.dtype]
        return max(high - self.zero_points[operand], self.zero_points[operand] - low)


def _plain(spec: OperatorSpec, dtypes: Collection[str] = tuple(STORED)) -> str | None:
    """Return the element type of an operator on NHWC tensors of equal shape and type, batch 1; None for any other
    operator, or a type not in `dtypes`.
    """
    shape, dtype = spec.output.shape, spec.output.dtype
    alike = all(t == spec.output for t in spec.inputs)
    return dtype if alike and len(shape) == 4 and shape[0] == 1 and dtype in dtypes else None


def rescale(values: np.ndarray, ratio: tuple[int, int], even: bool = False) -> np.ndarray:
    """Compute `MultiplyByQuantizedMultiplier` of int64 values by a ratio (multiplier, shift); with `even` rounded once."""
    m, s = (np.full(values.shape, r, np.int64) for r in ratio)
    return reference(values, m, s, 0, (-(1 << 62), 1 << 62), even)


def _ratios(given: Attributes) -> tuple[tuple[int, int], ...]:
    """Return pairs of multiplier and shift: for both operands and the output (add, sub), or for the output alone."""
    if given.multiplier is not None and given.shift is not None:
        return ((given.multiplier, given.shift),)
    return tuple(zip(given.multipliers or (), given.shifts or (), strict=True))


def read_binary(spec: OperatorSpec, dtypes: Collection[str] = tuple(STORED)) -> Binary | None:
    """Read an add, sub or mul of two activations with a type in `dtypes`; None for anything else."""
    dtype = _plain(spec, dtypes) if spec.kind in ("add", "sub", "mul") and len(spec.inputs) == 2 else None
    return None if dtype is None else _binary(spec, dtype)


def _binary(spec: OperatorSpec, dtype: str) -> Binary:
    """Return the record of an add, sub or mul with a map of four axes as its output."""
    given, (_, _, width, channels) = spec.attributes, spec.output.shape
    zeros, clamp = given.input_zero_points or (0, 0), given.clamp or RANGE_OF[dtype]
    return Binary(
        spec.kind,
        width * channels,
        (zeros[0], zeros[1]),
        _ratios(given),
        given.output_zero_point or 0,
        (clamp[0], clamp[1]),
        _head_room(given),
        dtype,
        given.rounding == ONCE,
    )


def _head_room(given: Attributes) -> int:
    return 20 if given.head_room is None else given.head_room


def read_table(spec: OperatorSpec) -> np.ndarray | None:
    """Compute the look-up table [256] from input byte to output for an operator on a single activation; None for any
    other operator.
    """
    dtype, given, constants = _plain(spec), spec.attributes, spec.constants
    if dtype is None or len(spec.inputs) != 1:
        return None
    clamp = given.clamp or RANGES[dtype]
    if spec.kind in ("relu", "requantize") and not constants:
        result = rescale(STORED[dtype] - (given.input_zero_point or 0), _ratios(given)[0], given.rounding == ONCE)
    elif spec.kind in ("add", "sub", "mul") and len(constants) == 1 and prod(constants[0].shape) == 1:
        result = _with_constant(spec.kind, given, int(constants[0].ravel()[0]), STORED[dtype])
    else:
        return None
    return np.clip(result + (given.output_zero_point or 0), clamp[0], clamp[1]).astype(dtype)


def _with_constant(kind: str, given: Attributes, constant: int, stored: np.ndarray) -> np.ndarray:
    zeros, ratios, even = given.input_zero_points or (0, 0), _ratios(given), given.rounding == ONCE
    fixed = np.full(256, constant, np.int64)
    a, b = (fixed, stored) if given.constant_first else (stored, fixed)
    if kind == "mul":
        return rescale((a - zeros[0]) * (b - zeros[1]), ratios[0], even)
    ra, rb, ro = ratios
    high = _head_room(given)
    left, right = rescale((a - zeros[0]) << high, ra), rescale((b - zeros[1]) << high, rb)
    return rescale(left + right if kind == "add" else left - right, ro, even)


class _Elements:
    """Builder of an element-wise row kernel that loops over four elements at a time."""

    def __init__(
        self, count: int, inputs: int, constants: tuple[np.ndarray, ...], dtype: str = "int8", view: str | None = None
    ) -> None:
        self.count, self.dtype = count, dtype
        self.k = k = KernelBuilder([dtype] * inputs, constants, [dtype])
        self.xs = [k.view(k.inputs[i][0], view or dtype, "xs") for i in range(inputs)]
        self.rows = [k.let(k.row_offset(i, 0, count), "row") for i in range(inputs)]
        self.tables = [k.view(p, str(c.dtype), "table") for p, c in zip(k.constants, constants, strict=True)]
        self.out = k.view(k.outputs[0], dtype, "outs")

    def number(self, table: int, index: int) -> Value:
        """Load a number once from a table, not as a literal, so operators of equal shape share a kernel."""
        return self.k.let(self.tables[table][i32(index)], "number")

    def run(self, element: Any, *form: Hashable) -> RowKernel:
        """Build the kernel; `element(values)` is the output for a value per input, as int32, determined by `form`."""
        return self.k.kernel(lambda: self._emit(element), form=("elements", self.count, self.dtype, *form))

    def _emit(self, element: Any) -> None:
        for i in self.k.unrolled(max(self.count // 4, 1), min(4, self.count)):
            self._one(element, i)
        for rest in range(max(self.count // 4, 1) * 4, self.count):
            self._one(element, i32(rest))

    def _one(self, element: Any, index: Value) -> None:
        k = self.k
        values = [k.let(x[row + index].astype("int32"), "x") for x, row in zip(self.xs, self.rows, strict=True)]
        k.store(self.out, index, element(*values).astype(self.dtype))


def table_kernel(spec: OperatorSpec, table: np.ndarray) -> RowKernel:
    """Build the kernel that looks up every output in `table` [256] by the input's byte."""
    _, _, width, channels = spec.output.shape
    row = _Elements(width * channels, 1, (table,), str(table.dtype), "uint8")
    return row.run(lambda x: row.tables[0][x].astype("int32"), "table")


def mul_kernel(op: Binary, q: Requantize) -> RowKernel:
    """Build the kernel for the product of two activations, with the short or the narrow requantization."""
    numbers = np.array([*q.table[0], *op.zero_points], np.int32)
    row = _Elements(op.row_elements, 2, (numbers,), op.dtype)
    m, addend, shift, zero, other = (row.number(0, i) for i in range(5))

    def element(x: Value, y: Value) -> Value:
        product = row.k.let((x - zero) * (y - other), "p")
        return emit_requantize(row.k, q, product, m, addend, shift)

    return row.run(element, "mul", q.sign, q.even, q.narrow, q.lo, q.hi)


def requantize_of(op: Binary, doubled: int = 0) -> Requantize:
    """Plan the requantization of a mul's products, or of an add's or sub's sums; of sums times `2^doubled`."""
    if op.kind == "mul":
        reach, ratio = op.reach(0) * op.reach(1), op.ratios[0]
    else:
        (m, s), reach = op.ratios[2], (op.reach(0) + op.reach(1)) << op.head_room + doubled
        ratio = m, s - doubled
    m, s, low, high = (np.array([v]) for v in (*ratio, -reach, reach))
    return plan_requantize(m, s, low, high, op.zero_out, op.clamp, op.even)


def sum_kernel(op: Binary, q: Requantize, small: bool = False) -> RowKernel:
    """Build the kernel for the sum or difference of two activations, one with ratio 1/2, with the short or the narrow form
    of requantization.

    The sum is computed doubled, which saves the doubling before `smmlar`; the narrow form is planned for doubled sums. With
    `small` the other operand is rescaled in registers if that is exact, and not by a table.
    """
    shifted = 0 if op.ratios[0] == HALF else 1  # the operand that a shift rescales
    signs = (1, -1 if op.kind == "sub" else 1)
    other = 1 - shifted
    offset = -signs[shifted] * op.zero_points[shifted] * (1 << op.head_room)
    table = rescale((STORED[op.dtype] - op.zero_points[other]) << op.head_room, op.ratios[other])
    table = (2 * signs[other] * table + offset).astype(np.int32)
    plain = op.ratios[other] == HALF
    base = offset - signs[other] * op.zero_points[other] * (1 << op.head_room)
    rescaled = _in_registers(op, other) if small and not plain else None
    further = (base,) if plain else () if rescaled is None else (offset, *rescaled)
    numbers = np.array([*q.table[0], *further], np.int32)
    tables = (numbers,) if plain or rescaled else (numbers, table)
    row = _Elements(op.row_elements, 2, tables, op.dtype)
    m, addend, shift = (row.number(0, i) for i in range(3))
    known = [row.number(0, 3 + i) for i in range(len(further))]

    def element(x: Value, y: Value) -> Value:
        own, looked = (x, y) if shifted == 0 else (y, x)
        left = own * (signs[shifted] << op.head_room)
        if plain:
            doubled = left + looked * (signs[other] << op.head_room) + known[0]
        elif rescaled:
            _, centre, factor, half, right = known
            high = row.k.let(call("smmlar", looked * (2 << op.head_room) - centre, factor, i32(0)), "h")
            away = high + tirx.shift_right(high, i32(31)) + half  # halves away from zero
            doubled = left + tirx.shift_right(away, right) * (2 * signs[other]) + known[0]
        else:
            doubled = left + row.tables[1][tirx.bitwise_and(looked, i32(255))]
        return _doubled(row.k, q, row.k.let(doubled, "acc"), m, addend, shift)

    factors = shifted, signs[shifted], signs[other] if plain or rescaled else None, op.head_room, bool(rescaled)
    return row.run(element, "sum", *factors, q.sign, q.even, q.narrow, q.lo, q.hi)


def _in_registers(op: Binary, side: int) -> tuple[int, int, int, int] | None:
    """Return what rescales an operand of a sum without a table: the zero point, shifted, a factor, half of what is shifted
    out, and a shift to the right; None if a product of some byte is rounded otherwise, or bits do not suffice.
    """
    (m, s), bits = op.ratios[side], op.head_room + 1
    if s > 0 or op.reach(side) << bits >= 1 << 31:
        return None
    centre, half = op.zero_points[side] << bits, (1 << -s) >> 1
    high = ((STORED[op.dtype] << bits) - centre) * m + (1 << 31) >> 32
    wanted = rescale((STORED[op.dtype] - op.zero_points[side]) << op.head_room, op.ratios[side])
    return (centre, m, half, -s) if bool(((high + (high >> 31) + half >> -s) == wanted).all()) else None


def _doubled(k: KernelBuilder, q: Requantize, acc: Value, m: Value, addend: Value, shift: Value) -> Value:
    """Emit the requantization of a doubled sum, which saves the doubling before `smmlar`."""
    if q.narrow:
        return emit_requantize(k, q, acc, m, addend, shift)
    high = k.let(call("smmla" if q.even else "smmlar", acc, m, addend), "h")
    if q.sign:
        high = k.let(high + tirx.shift_right(acc, i32(31)), "h")
    return clamp_value(k, q, tirx.shift_right(high, shift))


@dataclass(frozen=True, eq=False)
class Broadcast:
    """An add, sub or mul of a map with an operand that has an element for every channel, or for every pixel."""

    op: Binary
    width: int
    channels: int
    ways: tuple[str, str]  # of the left and the right operand: by element, by channel, by pixel
    constant: np.ndarray | None = None  # an operand of an element for every channel
    first: bool = False  # the constant is the left operand


def read_broadcast(spec: OperatorSpec) -> Broadcast | None:
    """Read an add, sub or mul of a map with an operand of another shape; None for anything else."""
    shape, dtype, given = spec.output.shape, spec.output.dtype, spec.attributes
    if spec.kind not in ("add", "sub", "mul") or dtype not in STORED or len(shape) != 4 or shape[0] != 1:
        return None
    if any(t.dtype != dtype for t in spec.inputs) or len(spec.inputs) + len(spec.constants) != 2:
        return None
    ways, constant = [_way(t.shape, shape) for t in spec.inputs], spec.constants[0] if spec.constants else None
    if constant is not None:
        by_channel = constant.dtype == dtype and constant.shape[-1:] == shape[-1:] and constant.size == shape[-1]
        ways.insert(0 if given.constant_first else 1, _BY_CHANNEL if by_channel else "")
    if set(ways) not in ({_BY_ELEMENT, _BY_CHANNEL}, {_BY_ELEMENT, _BY_PIXEL}):
        return None
    values, sides = None if constant is None else constant.ravel(), (ways[0], ways[1])
    return Broadcast(_binary(spec, dtype), shape[2], shape[3], sides, values, bool(given.constant_first))


_BY_ELEMENT, _BY_CHANNEL, _BY_PIXEL = "element", "channel", "pixel"


def _way(size: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """Return how an operand of a size meets the elements of a shape; empty for any other."""
    if size == shape:
        return _BY_ELEMENT
    if size[-1:] == shape[-1:] and prod(size) == shape[-1]:
        return _BY_CHANNEL
    return _BY_PIXEL if size == (*shape[:3], 1) else ""


class _Pixels:
    """Builder for a row kernel for a broadcast operator: pixel by pixel, four channels at a time."""

    def __init__(self, given: Broadcast, q: Requantize) -> None:
        self.given, self.q, self.op = given, q, given.op
        self.parts = [self._part(side) for side in (0, 1)] if self.op.kind != "mul" else []
        base = sum(part[1] for part in self.parts)
        arrays = [np.array([*q.table[0], *(self.op.zero_points if self.op.kind == "mul" else (base, 0))], np.int32)]
        if given.constant is not None:
            arrays.append(self._constant(0 if given.first else 1))
        arrays += [part[0] for part in self.parts if part[0] is not None]
        ways = [w for side, w in enumerate(given.ways) if not self._is_constant(side)]
        sizes = {_BY_ELEMENT: self.op.row_elements, _BY_CHANNEL: given.channels, _BY_PIXEL: given.width}
        dtype = self.op.dtype
        self.k = k = KernelBuilder([dtype] * len(ways), arrays, [dtype])
        self.xs = [k.view(k.inputs[i][0], dtype, "xs") for i in range(len(ways))]
        self.rows = [k.let(k.row_offset(i, 0, sizes[way]), "row") for i, way in enumerate(ways)]
        self.tables = [k.view(p, "int32", "table") for p in k.constants]
        self.out = k.view(k.outputs[0], dtype, "outs")

    def build(self) -> RowKernel:
        given, q, op = self.given, self.q, self.op
        shapes = tuple((table is None, factor) for table, _, factor in self.parts)
        form = (
            op.kind,
            given.width,
            given.channels,
            given.ways,
            given.constant is None,
            given.first,
            shapes,
            op.head_room,
        )
        return self.k.kernel(self._emit, form=("broadcast", op.dtype, *form, q.sign, q.even, q.narrow, q.lo, q.hi))

    def _is_constant(self, side: int) -> bool:
        return self.given.constant is not None and self.given.first == (side == 0)

    def _sign(self, side: int) -> int:
        return -1 if self.op.kind == "sub" and side else 1

    def _part(self, side: int) -> tuple[np.ndarray | None, int, int]:
        """Return what doubles and rescales a sum's operand: a table by byte, an addend, a factor."""
        op, sign = self.op, self._sign(side)
        if self._is_constant(side):
            return None, 0, 0
        if op.ratios[side] == HALF:
            return None, -sign * op.zero_points[side] * (1 << op.head_room), sign << op.head_room
        table = rescale((STORED[op.dtype] - op.zero_points[side]) << op.head_room, op.ratios[side], op.even)
        return (2 * sign * table).astype(np.int32), 0, 0

    def _constant(self, side: int) -> np.ndarray:
        """Return the constant's numbers by channel: centred, or of a sum doubled and rescaled."""
        assert self.given.constant is not None
        centred = self.given.constant.astype(np.int64) - self.op.zero_points[side]
        if self.op.kind == "mul":
            return centred.astype(np.int32)
        rescaled = rescale(centred << self.op.head_room, self.op.ratios[side], self.op.even)
        return (2 * self._sign(side) * rescaled).astype(np.int32)

    def _emit(self) -> None:
        k, given = self.k, self.given
        self.numbers = [k.let(self.tables[0][i32(i)], "number") for i in range(5)]
        step = 4 if given.channels % 4 == 0 else 1
        with k.loop(given.width, "p") as pixel:
            start = k.let(pixel * given.channels, "start")
            by_pixel = {side: self._loaded(side, pixel) for side, way in enumerate(given.ways) if way == _BY_PIXEL}
            for c in k.unrolled(given.channels // step, step, "c"):
                sides = []
                for side, way in enumerate(given.ways):
                    at = c if way == _BY_CHANNEL else start + c
                    sides.append(by_pixel[side] if side in by_pixel else self._loaded(side, at))
                k.store(self.out, start + c, self._element(*sides).astype(self.op.dtype))

    def _loaded(self, side: int, at: Value) -> Value:
        """Return an operand's element: centred, or of a sum doubled and rescaled."""
        k = self.k
        if self._is_constant(side):
            return k.let(self.tables[1][at], "x")
        place = 0 if self.given.constant is not None else side
        value = k.let(self.xs[place][self.rows[place] + at].astype("int32"), "x")
        if self.op.kind == "mul":
            return k.let(value - self.numbers[3 + side], "x")
        table, _, factor = self.parts[side]
        if table is None:
            return k.let(value * factor, "x")
        ahead = sum(part[0] is not None for part in self.parts[:side]) + (self.given.constant is not None)
        return k.let(self.tables[1 + ahead][tirx.bitwise_and(value, i32(255))], "x")

    def _element(self, left: Value, right: Value) -> Value:
        m, addend, shift, base, _ = self.numbers
        if self.op.kind == "mul":
            return emit_requantize(self.k, self.q, self.k.let(left * right, "p"), m, addend, shift)
        return _doubled(self.k, self.q, self.k.let(left + right + base, "acc"), m, addend, shift)


def scalar_elementwise(spec: OperatorSpec, small: bool = False) -> list[Variant]:
    """Return the scalar variant of an element-wise operator, with `small` of few tables; none if no kernel in this module
    applies.
    """
    table, op = read_table(spec), read_binary(spec)
    if table is not None:
        return [Variant("elements", partial(table_kernel, spec, table))]
    wide = read_broadcast(spec) if op is None else None
    op = op if wide is None else wide.op
    if op is None or (wide is None and op.kind != "mul" and HALF not in op.ratios[:2]):
        return []
    q = requantize_of(op)
    if q.narrow and op.kind != "mul":
        q = requantize_of(op, doubled=1)
    if not q.in_lanes:
        return []
    if wide is not None:
        return [Variant("broadcast", lambda: _Pixels(wide, q).build())]
    return [Variant("elements", partial(mul_kernel, op, q) if op.kind == "mul" else partial(sum_kernel, op, q, small))]
