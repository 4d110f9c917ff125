"""Row kernels of int16 max pools and means for the M-profile vector extension (Cortex-M55 and M85), through LLVM.

Convolutions are in `int16_conv`.

Lanes are channels: eight for a maximum, four sums for a mean. If channels are no whole vectors, the last vector
overlaps the previous vector, so nothing is left to LLVM's vectoriser, whose choices no estimate could predict.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.operators.table import CONVOLUTIONS
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.geometry import Columns, valid_row
from tvm_cascade.schedules.rules.int16_conv import convolutions
from tvm_cascade.schedules.rules.lanes import LANES, put, requantize_lanes, splat, vector
from tvm_cascade.schedules.rules.pooling import OpaqueTaps, Pooling, read_pool
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, pointer_var, tirx

_INT16 = np.iinfo("int16")


class _Max(Pooling):
    """The largest of eight channels at a time."""

    lanes, most_blocks = 2 * LANES, 4

    def row_starts(self) -> Any:
        """Return the row offsets, with each row as a separate buffer: LLVM would mix an offset into every tap's
        address.
        """
        k, rows = self.k, super().row_starts()
        self.buffers: list[Value] = []
        for row in rows if self.written_out else ():
            pointer = pointer_var(k.name("first"), "int16")
            k.add(tirx.Bind(pointer, tirx.address_of(self.x[row])))
            self.buffers.append(k.view(pointer, "int16", "row_xs"))
        return rows

    def window(self, acc: Value, group: Columns, column: Value) -> None:
        if not self.buffers:
            super().window(acc, group, column)
        for r, buffer in enumerate(self.buffers):
            with valid_row(self.k, self.g, r, self.r0, self.r1):
                self.x = buffer
                self.row(acc, group, column)

    def start(self) -> Value:
        acc = self.k.local(self.lanes, "acc", "int16")
        put(self.k, acc, 0, self._splat(int(_INT16.min)), self.lanes)
        return acc

    def tap(self, acc: Value, place: Value) -> None:
        put(self.k, acc, 0, tirx.max(vector(acc, 0, self.lanes), vector(self.x, place, self.lanes)), self.lanes)

    def finish(self, acc: Value, place: Value) -> None:
        value, (lo, hi) = vector(acc, 0, self.lanes), self.pool.clamp
        if (lo, hi) != (_INT16.min, _INT16.max):
            value = tirx.max(tirx.min(value, self._splat(hi)), self._splat(lo))
        put(self.k, self.out, place, value, self.lanes)

    def _splat(self, value: int) -> Value:
        return splat(tirx.const(value, "int16"), self.lanes)


class _MaxOfFew(_Max):
    """The largest of four channels at a time."""

    lanes = LANES


class _Mean(OpaqueTaps):
    """Four channels at a time, summed in words."""

    lanes = LANES

    def start(self) -> Value:
        acc = self.k.local(LANES, "acc")
        put(self.k, acc, 0, splat(0), LANES)
        return acc

    def tap(self, acc: Value, place: Value) -> None:
        put(self.k, acc, 0, vector(acc, 0, LANES) + vector(self.x, place, LANES).astype("int32x4"), LANES)

    def finish(self, acc: Value, place: Value) -> None:
        k, q, total = self.k, self.pool.requantize, vector(acc, 0, LANES)
        assert q is not None
        if self.pool.head_room:
            total = total * splat(i32(1 << self.pool.head_room))
        total = k.let(total, "total", "int32x4")
        m, _, e, *_ = self.numbers
        mean = requantize_lanes(k, q, total, splat(m), splat(0 - e), None)
        put(k, self.out, place, mean.astype("int16x4"), LANES)


def variants(spec: OperatorSpec, target: KernelTarget) -> list[Variant]:
    """List the kernels for an int16 convolution, max pool, or rescaled mean; none for any other operator, nor for pools
    with fewer than four channels.
    """
    if not target.vectors:
        return []
    if spec.kind in CONVOLUTIONS:
        return convolutions(spec)
    pool = read_pool(spec, ("int16",))
    if pool is None or pool.window.channels < LANES or pool.input_zero_point:
        return []
    if pool.kind == "max":
        form = _Max if pool.window.channels >= _Max.lanes else _MaxOfFew
        return [Variant("max", lambda: form(pool).build())]
    if pool.requantize is None or pool.requantize.zero_point or not pool.requantize.in_lanes:
        return []
    return [Variant("mean", lambda: _Mean(pool).build())]
