"""Loops over kernel rows with an iteration count hidden from LLVM.

LLVM would write out loops with known counts, move all iterations' loads to the front and spill registers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from tvm_cascade.schedules.rules.conv_row import ConvRow
from tvm_cascade.schedules.rules.emit import best_step
from tvm_cascade.schedules.rules.geometry import Columns
from tvm_cascade.schedules.tir import Value, i32


class OpaqueLoops(ConvRow):
    """A convolution with loop counts from the first numbers in the int32 table."""

    passes: list[int]  # what `pass_counts` returned, which the table begins with

    def pass_counts(self) -> list[int]:
        """Return the counts of the loops over a kernel row, ascending."""
        rows = [t.split(taps) for t in self.part_kernels for taps in t.run_lengths()]
        return sorted({n for n, _ in rows if n > 1})

    def split(self, taps: int) -> tuple[int, int]:
        """Return iterations, and steps of `group` taps per iteration, for the loop over `taps` taps in a kernel row."""
        count = taps // self.group
        step = best_step(count, self.blocking.step, self.blocking.unroll)
        return (count // step, step) if count else (0, 0)

    def loop(self, passes: int) -> AbstractContextManager[Value]:
        """Open a loop of `passes` iterations; for one, the body without a loop."""
        if passes == 1:
            return self.k.loop(1, "i")
        loaded = self.k.let(self.table[i32(self.passes.index(passes))], "passes")
        return self.k.loop(loaded, "i", passes=passes)


class OuterProducts(OpaqueLoops):
    """A convolution that adds one input value times the weights for a block of output channels at a time (`_tap`)."""

    group = 1

    def row(self, acc: Value, at: Value, weights: Value, group: Columns, pixels: int, size: int) -> None:
        lo, hi = group.k0 * self.depth, group.k1 * self.depth
        passes, step = self.split(hi - lo)
        with self.loop(passes) as i:
            for u in range(step):
                self._tap(acc, at + i * step + u, weights, i * step + u + lo, pixels, size)

    def _tap(self, acc: Value, at: Value, weights: Value, tap: Value, pixels: int, size: int) -> None:
        raise NotImplementedError
