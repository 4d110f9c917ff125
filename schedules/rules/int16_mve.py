"""Row kernels of int16 max pools and means for the M-profile vector extension (Cortex-M55 and M85), through LLVM.

Lanes are channels: eight of a maximum, four sums of a mean. Where channels are no whole vectors, the last one overlaps the one
before, so that nothing is left to LLVM's vectoriser, whose choices an estimate of instructions could not know.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.emit import best_step
from tvm_cascade.schedules.rules.geometry import Columns, valid_row
from tvm_cascade.schedules.rules.lanes import LANES, put, requantize_lanes, splat, vector
from tvm_cascade.schedules.rules.pooling import Pool, Pooling, read_pool
from tvm_cascade.schedules.rules.variants import Variant
from tvm_cascade.schedules.tir import Value, i32, pointer_var, tirx

_REACH = 127  # largest distance in elements of what a load takes from a register
_INT16 = np.iinfo("int16")


class _Max(Pooling):
    """The largest of eight channels at a time."""

    lanes, most_blocks = 2 * LANES, 4

    def row_starts(self) -> Any:
        """The offsets, and the rows as buffers of their own: LLVM would mix an offset into the address of every tap."""
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


class _Mean(Pooling):
    """Four channels at a time, summed in words. How often the loop over taps runs is read from the table: LLVM would write out
    a loop that it knows, and compute the address of every tap that is too far from the first."""

    lanes = LANES

    def __init__(self, pool: Pool) -> None:
        columns, near = pool.window.kernel[1], max(_REACH // pool.window.channels, 1)
        self.step = best_step(columns, near)
        super().__init__(pool)

    def table(self) -> list[int]:
        return [*super().table(), self.pool.window.kernel[1] // self.step]

    def start(self) -> Value:
        acc = self.k.local(LANES, "acc")
        put(self.k, acc, 0, splat(0), LANES)
        return acc

    def row(self, acc: Value, group: Columns, at: Value) -> None:
        k, channels = self.k, self.g.channels
        with k.loop(self.numbers[-1], "i", passes=self.g.kernel[1] // self.step) as i:
            for u in range(self.step):
                self.tap(acc, at + (i * self.step + u) * channels)

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
    """The kernel of an int16 max pool, or of a mean that is rescaled; none for other operators and fewer than four channels."""
    pool = read_pool(spec, ("int16",)) if target.vectors else None
    if pool is None or pool.window.channels < LANES or pool.input_zero_point:
        return []
    if pool.kind == "max":
        form = _Max if pool.window.channels >= _Max.lanes else _MaxOfFew
        return [Variant("max", lambda: form(pool).build())]
    if pool.requantize is None or pool.requantize.zero_point:
        return []
    return [Variant("mean", lambda: _Mean(pool).build())]
