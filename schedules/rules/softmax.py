"""Row kernels for softmax along the last axis, in TFLite's fixed-point arithmetic with a table of exponentials.

A row of classes takes three passes: its maximum, the sum of `exps[max - x]` in Q12.19, and `exps[max - x]` times the
sum's reciprocal. The lowered operator has the 256 exponentials (Q0.31) as its constant; the reciprocal takes three
Newton steps in 32 bits, once per row. With an exponential a, the reciprocal h and e bits to drop, two roundings to
nearest equal a single shift, since all values are positive:

    (SRDHM(a, h) + 2^(e-1)) >> e = (a h + 2^30 + 2^(30+e)) >> (31 + e)

So a 32 by 32 bit product is added to a constant, and its high word used. On MVE `vqrdmulh` is SRDHM and `vrshl` the
second rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.lanes import LANES, high_lanes, put, rounded_lanes, splat, vector
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, tirx

_STEP = 4  # classes per loop iteration
_SUM_BITS = 12  # integer bits of the sum, Q12.19
_FORTYEIGHT_OVER_17 = 1515870810  # Q2.29
_MINUS_32_OVER_17 = -1010580540


@dataclass(frozen=True, slots=True)
class Softmax:
    """Softmax over `classes` 8-bit values, `rows` times in a row of the tensor."""

    rows: int
    classes: int
    dtype: str
    out_dtype: str


def read_softmax(spec: OperatorSpec) -> Softmax | None:
    """Read a softmax operator as a `Softmax`; None for any other operator, element type or form."""
    if spec.kind != "softmax" or len(spec.constants) != 1 or spec.constants[0].shape != (256,):
        return None
    *lead, classes = spec.inputs[0].shape
    dtype = spec.inputs[0].dtype
    if not {dtype, spec.output.dtype} <= {"int8", "uint8"} or spec.constants[0].dtype != np.int32:
        return None
    if spec.attributes.multiplier is not None:  # stored at a scale other than a 256th
        return None
    if len(lead) > 1:  # tensors with a row axis must have batch 1
        if lead[0] != 1:
            return None
        lead = lead[2:]
    return Softmax(prod(lead), classes, dtype, spec.output.dtype)


class _Scalar:
    """Builder of the scalar kernel: a single class at a time."""

    def __init__(self, op: Softmax, exps: np.ndarray) -> None:
        self.op = op
        self.k = k = KernelBuilder([op.dtype], (exps,), [op.out_dtype])
        self.x = k.view(k.inputs[0][0], op.dtype, "xs")
        self.exps = k.view(k.constants[0], "int32", "exps")
        self.out = k.view(k.outputs[0], op.out_dtype, "outs")
        self.first = k.let(k.row_offset(0, 0, op.rows * op.classes), "first")

    def build(self) -> RowKernel:
        return self.k.kernel(self._emit)

    def _emit(self) -> None:
        k, op = self.k, self.op
        with k.loop(op.rows, "r") as r:
            to = k.let(r * op.classes, "to") if op.rows > 1 else i32(0)
            at = k.let(self.first + to, "at")
            top = self.top(at)
            total = k.let(self.total(at, top), "total")
            zeros = k.let(call("clz", total), "zeros")
            scale = k.let(reciprocal(k, total, zeros), "scale")
            # a value of at most 2^31, shifted right by 32 or more, is rounded to zero
            shift = k.let(tirx.min(i32(_SUM_BITS + 31 - 8) - zeros, i32(32)), "e")
            self.finish(at, to, top, scale, shift)

    def top(self, at: Value) -> Value:
        """Compute the largest value in the row of classes beginning at element `at`."""
        k = self.k
        acc = k.local(1, "top")
        k.store(acc, 0, i32(int(np.iinfo(self.op.dtype).min)))

        for place in self.each():
            value, old = k.let(self.x[at + place].astype("int32"), "x"), k.let(acc[i32(0)], "old")
            k.store(acc, 0, tirx.max(old, value))
        return k.let(acc[i32(0)], "top")

    def total(self, at: Value, top: Value) -> Value:
        """Sum the row's exponentials, Q12.19."""
        k = self.k
        acc = k.local(1, "sum")
        k.store(acc, 0, i32(0))

        for place in self.each():
            e = k.let(self.looked(at, place, top), "e")
            k.store(acc, 0, acc[i32(0)] + halves_up(e))
        return acc[i32(0)]

    def looked(self, at: Value, place: Value, top: Value) -> Value:
        return self.exps[self.k.let(top - self.x[at + place].astype("int32"), "d")]

    def finish(self, at: Value, to: Value, top: Value, scale: Value, shift: Value) -> None:
        k = self.k
        half, drop = k.let(tirx.shift_left(i32(1), shift - 2), "half"), k.let(shift - 1, "drop")

        low = int(np.iinfo(self.op.out_dtype).min)
        for place in self.each():
            e = k.let(self.looked(at, place, top), "e")
            value = k.let(call("smlalh", e, scale, i32(1 << 30), half), "wide")
            value = call("ssat8" if low else "usat8", tirx.shift_right(value, drop) + low)
            k.store(self.out, to + place, value.astype(self.op.out_dtype))

    def each(self) -> Iterator[Value]:
        """Yield the index of every class, in a partly unrolled loop."""
        count = self.op.classes
        yield from self.k.unrolled(count // _STEP, _STEP if count >= _STEP else 0)
        for rest in range(count // _STEP * _STEP, count):
            yield i32(rest)


class _Vectors(_Scalar):
    """Builder of the MVE kernel: up to 16 classes at a time for the maximum, else four.

    Except in the sum, a row's last vector may overlap the previous vector.
    """

    def top(self, at: Value) -> Value:
        k, op = self.k, self.op
        lanes = next(n for n in (16, 8, LANES) if n <= op.classes)
        bits, kind = 128 // lanes, "uint" if op.dtype == "uint8" and lanes == 16 else "int"
        dtype = f"{kind}{bits}"
        acc = k.local(lanes, "tops", dtype)
        least = tirx.const(int(np.iinfo(op.dtype).min), dtype)
        put(k, acc, 0, splat(least, lanes), lanes)

        for place in self.overlapped(lanes):
            x = vector(self.x, at + place, lanes).astype(f"{dtype}x{lanes}")
            put(k, acc, 0, tirx.max(vector(acc, 0, lanes), x), lanes)
        unsigned = int(kind == "uint")
        start = i32(int(np.iinfo(op.dtype).min))
        return k.let(
            tirx.call_llvm_pure_intrin("int32", "llvm.arm.mve.maxv", start, vector(acc, 0, lanes), unsigned), "top"
        )

    def total(self, at: Value, top: Value) -> Value:
        k, op = self.k, self.op
        acc = k.local(LANES, "sums")
        put(k, acc, 0, splat(0), LANES)
        whole = op.classes // LANES
        with k.loop(whole, "i") as i:
            e = rounded_lanes(self.gathered(at, i * LANES, top), splat(-_SUM_BITS))
            put(k, acc, 0, vector(acc, 0, LANES) + e, LANES)
        four = vector(acc, 0, LANES)
        total = tirx.call_llvm_pure_intrin("int32", "llvm.arm.mve.addv", four, 0)
        for rest in range(whole * LANES, op.classes):
            total = k.let(total, "part") + halves_up(k.let(self.looked(at, i32(rest), top), "e"))
        return total

    def gathered(self, at: Value, place: Value, top: Value) -> Value:
        """Load the exponentials of four classes from `place` on."""
        d = splat(top) - vector(self.x, at + place, LANES).astype("int32x4")
        return self.k.let(
            tirx.call_llvm_pure_intrin(
                "int32x4",
                "llvm.arm.mve.vldr.gather.offset",
                tirx.address_of(self.exps[i32(0)]),
                self.k.let(d, "d", "int32x4"),
                32,  # bits of an element in memory
                2,  # shift of the offsets
                1,  # unsigned
            ),
            "e",
            "int32x4",
        )

    def finish(self, at: Value, to: Value, top: Value, scale: Value, shift: Value) -> None:
        k, down = self.k, self.k.let(0 - shift, "down")
        left = self.op.classes % LANES
        last = i32(self.op.classes - LANES)
        ahead = self.gathered(at, last, top) if left else None  # the output may lie where the input is
        with k.loop(self.op.classes // LANES, "i") as i:
            self.put_quotients(to + i * LANES, self.gathered(at, i * LANES, top), scale, down)
        if ahead is not None:
            self.put_quotients(to + last, ahead, scale, down)

    def put_quotients(self, place: Value, e: Value, scale: Value, down: Value) -> None:
        """Store the quotients of four exponentials from `place` on."""
        k, info = self.k, np.iinfo(self.op.out_dtype)
        high = high_lanes(k, e, splat(scale))
        moved = k.let(rounded_lanes(high, splat(down)), "q", "int32x4") + splat(int(info.min))
        value: Value = tirx.min(moved, splat(int(info.max)))
        put(k, self.out, place, value.astype(f"{self.op.out_dtype}x4"), LANES)

    def overlapped(self, lanes: int) -> Iterator[Value]:
        """Yield start indices of vectors with `lanes` lanes that cover the row; the last may overlap the previous
        vector.
        """
        k, count = self.k, self.op.classes
        with k.loop(count // lanes, "i") as i:
            yield i * lanes
        if count % lanes:
            yield i32(count - lanes)


def halves_up(e: Value) -> Value:
    """Round a positive Q0.31 number to Q12.19, half up; intermediate values may take 32 bits."""
    half = tirx.const(1 << (_SUM_BITS - 1), "uint32")
    return tirx.shift_right(e.astype("uint32") + half, tirx.const(_SUM_BITS, "uint32")).astype("int32")


def reciprocal(k: KernelBuilder, total: Value, zeros: Value) -> Value:
    """Compute `1 / (2 f)` in Q0.31, at most 2^31 - 1, for f in [1/2, 1), the sum shifted left by its `zeros` leading
    zeros.

    Source: gemmlowp's `one_over_one_plus_x_for_x_in_0_1`. No step saturates: estimates lie in [0.94, 2] and the errors,
    the first at most 1/17, only shrink.
    """
    turned = tirx.shift_left(total.astype("uint32"), zeros.astype("uint32"))
    half = k.let(tirx.shift_right(turned, tirx.const(1, "uint32")).astype("int32"), "half")
    guess, rest = k.local(1, "guess"), k.local(1, "rest")  # not bindings: TVM would substitute them into every use
    k.store(guess, 0, srdhm(half, i32(_MINUS_32_OVER_17)) + _FORTYEIGHT_OVER_17)
    for _ in range(3):
        k.store(rest, 0, i32(1 << 29) - srdhm(half, guess[i32(0)]))
        k.store(guess, 0, guess[i32(0)] + srdhm(guess[i32(0)], rest[i32(0)]) * 4)
    final = k.let(guess[i32(0)], "final")
    return tirx.Select(final >= 1 << 30, i32((1 << 31) - 1), final * 2)


def srdhm(a: Value, b: Value) -> Value:
    """Compute `(a b + 2^30) >> 31` for int32, if the result fits."""
    wide = a.astype("int64") * b.astype("int64") + tirx.const(1 << 30, "int64")
    return tirx.shift_right(wide, tirx.const(31, "int64")).astype("int32")


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the variants of softmax, the core's widest first."""
    op = read_softmax(spec)
    if op is None:
        return []
    vectors = target.vectors and op.classes >= LANES
    forms: list[tuple[str, type[_Scalar]]] = [("vectors", _Vectors)] if vectors else []
    forms.append(("classes", _Scalar))
    return [Variant(name, lambda form=form, op=op: form(op, spec.constants[0]).build()) for name, form in forms]
