"""Accumulating kernels of global average pools for DSP and MVE cores (`schedules.kernels.accumulate`).

Each call adds some pixels of the map to an int32 sum per channel: DSP cores sum four channels at a time in two halfword
pairs before they widen them, MVE cores sixteen. The last call also computes the averages (`schedules.rules.pooling`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from math import prod

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.kernels.accumulate import Accumulating
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.lanes import LANES, put, splat, vector
from tvm_cascade.schedules.rules.pooling import PAIR_TAPS, Pool, Scalar, halfword_sums, read_pool
from tvm_cascade.schedules.rules.running_sums import RunningSums
from tvm_cascade.schedules.tir import Value, address_of, i32, tirx


def pool_sum(spec: OperatorSpec, generic: Accumulating, target: KernelTarget) -> Accumulating:
    """Build a core's accumulating kernel for a global average pool; return `generic` if no kernel in this module
    applies.
    """
    pool = read_pool(spec) if target.tunable else None
    if pool is None or pool.kind != "average" or pool.cuts or prod(spec.output.shape) != pool.window.channels:
        return generic
    taps, channels = pool.taps, pool.window.channels
    if (generic.accumulator_bytes, generic.granule, generic.elements) != (4 * channels, channels, taps * channels):
        return generic
    if pool.requantize is not None and not pool.requantize.in_lanes:
        return generic
    if target.vectors and channels % 16 == 0:
        return replace(generic, kernel=_Vectors(pool).kernel())
    if target.dsp and channels % 4 == 0 and taps <= PAIR_TAPS:
        return replace(generic, kernel=_Words(pool).kernel())
    return generic


class _Sum(Scalar):
    """Builder of the kernel: `add` a call's pixels, and in the last call compute all channels' averages."""

    lanes = 1

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.running = RunningSums(self.k)
        self.sums, self.begin, self.end = self.running.buffer, self.running.begin, self.running.end

    def kernel(self) -> RowKernel:
        k, channels = self.k, self.g.channels
        with k.when(tirx.EQ(self.begin, i32(0))):
            self.clear()
        pixels = k.let(tirx.truncdiv(self.end - self.begin, i32(channels)), "pixels")
        with k.loop(channels // self.lanes, "cb") as cb:
            self.add(k, cb * self.lanes, pixels)
        with k.when(self.end >= self.pool.taps * channels), k.loop(channels, "c") as c:
            total = k.let(self.sums[c], "sum")
            k.store(self.out, c, self.averaged(total).astype(self.pool.dtype))
        return self.running.finished("pool_sum")

    def clear(self) -> None:
        with self.k.loop(self.g.channels, "z") as z:
            self.k.store(self.sums, z, i32(0))

    @abstractmethod
    def add(self, k: KernelBuilder, channel: Value, pixels: Value) -> None:
        """Emit the addition of `pixels` pixels to the sums for `lanes` channels from `channel` on."""


class _Words(_Sum):
    lanes = 4

    def add(self, k: KernelBuilder, channel: Value, pixels: Value) -> None:
        pairs = k.local(2, "pairs")
        for i in range(2):
            k.store(pairs, i, i32(0))
        with k.loop(pixels, "p") as p:
            word = k.let(call("ldr", address_of(self.x[p * self.g.channels + channel])), "xw")
            k.store(pairs, 0, call("sxtab16", pairs[i32(0)], word))
            k.store(pairs, 1, call("sxtab16_ror8", pairs[i32(1)], word))
        for i, part in enumerate(halfword_sums(k, pairs)):
            k.store(self.sums, channel + i, k.let(self.sums[channel + i], "old") + part)


class _Vectors(_Sum):
    lanes = 16

    def clear(self) -> None:
        with self.k.loop(self.g.channels // LANES, "z") as z:
            put(self.k, self.sums, z * LANES, splat(0), LANES)

    def add(self, k: KernelBuilder, channel: Value, pixels: Value) -> None:
        total = k.local(16, "total")
        for i in range(0, 16, LANES):
            put(k, total, i, vector(self.sums, channel + i, LANES), LANES)
        with k.loop(pixels, "p") as p:
            for i in range(0, 16, LANES):
                four = vector(self.x, p * self.g.channels + channel + i, LANES).astype("int32x4")
                put(k, total, i, vector(total, i, LANES) + four, LANES)
        for i in range(0, 16, LANES):
            put(k, self.sums, channel + i, vector(total, i, LANES), LANES)
