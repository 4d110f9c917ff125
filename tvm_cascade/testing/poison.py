"""Staged programs whose dead memory holds NaN: what reads a byte too early or too late shows in the results."""

from __future__ import annotations

from typing import Any

from tvm import te

from tvm_cascade.staging.program.emit import Emitter


class Poison:
    """For `LowerOptions.before_step`: overwrites with NaN every byte of the arena that holds nothing across a step's start."""

    def __init__(self) -> None:
        self._fills: dict[tuple[Emitter, int], Any] = {}

    def __call__(self, emitter: Emitter, time: int) -> None:
        plan = emitter.plan
        blocks = sorted(
            (offset, offset + b.size)
            for offset, b in zip(plan.allocation.offsets, plan.problem.buffers, strict=True)
            if b.lower < time < b.upper
        )
        first = 0
        for low, high in [*blocks, (plan.allocation.peak, plan.allocation.peak)]:
            start = -(-first // 4) * 4
            if low - start >= 4:
                self._fill(emitter, start, (low - start) // 4)
            first = max(first, high)

    def _fill(self, emitter: Emitter, offset: int, count: int) -> None:
        if (emitter, count) not in self._fills:
            out: Any = te.compute((count,), lambda i: te.const(float("nan"), "float32"), name="poison")
            self._fills[emitter, count] = emitter.add(te.create_prim_func([out]), f"poison_{count}")
        dead = emitter.view(emitter.arena, offset, (count,), "float32", "dead")
        emitter.call(self._fills[emitter, count], [dead])
