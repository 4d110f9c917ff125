"""The plan's weights copied to RAM, and the savings: the placement's part for weights (`memory.weights`).

Constants passed to kernels by pointer may be copied; reads per byte are counted in the emitted code
(`TrafficCounter.count_flash`). A prefetched weight costs every inference the copy, at memcpy's speed, besides the
accesses to flash and RAM: nothing is assumed to run at the same time, as with a DMA controller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tvm_cascade.cascading import Plan
from tvm_cascade.cores.cortex_m4 import STEPS as CORTEX_M4
from tvm_cascade.machine import Ram
from tvm_cascade.memory.weights import Weight, WeightCopies, WeightProblem
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.driver.places import FlashItem
from tvm_cascade.schedules.tuning.traffic import TrafficCounter

_MEMCPY = 34 / 64  # instructions a byte of newlib's memcpy: two for each four bytes, and two for a loop of 64


@dataclass(frozen=True)
class WeightReads:
    """A plan's copyable constants, with the number of reads."""

    items: tuple[FlashItem, ...]
    reads: np.ndarray  # bytes of an inference, [operator, constant]
    problem: WeightProblem
    wait: float = 0.0  # cycles of all reads from flash, those of the driver's tables too, where nothing is copied

    def chosen(self, copies: WeightCopies, memories: Sequence[Ram], plan: Plan) -> CopiedWeights:
        """Return the copies in a placement."""
        if not copies:
            return CopiedWeights()
        ram, problem = memories[copies.memory], self.problem
        waits, wait = np.zeros(len(plan.graph.ops)), problem.flash or 0.0
        ahead: dict[int, tuple[FlashItem, ...]] = {}
        for k in (*copies.hot, *copies.prefetched):
            waits += self.reads[:, k] * (ram.cycles_per_byte - wait)
        for k in copies.prefetched:
            weight = problem.weights[k]
            assert weight.segment is not None
            first = int(np.argmax(self.reads[:, k] > 0))
            waits[first] += weight.size * (wait + ram.cycles_per_byte + problem.copying)
            ahead[weight.segment] = (*ahead.get(weight.segment, ()), self.items[k])
        hot = tuple(self.items[k] for k in copies.hot)
        in_order = {s: ahead[s] for s in sorted(ahead)}
        return CopiedWeights(ram.name, hot, in_order, problem.bytes(copies), tuple(float(n) for n in waits))


@dataclass(frozen=True, slots=True)
class CopiedWeights:
    """Constants that are copied to RAM."""

    memory: str = ""  # "" for bss, where no memory is named
    hot: tuple[FlashItem, ...] = ()
    prefetched: Mapping[int, tuple[FlashItem, ...]] = field(default_factory=dict)  # by segment of the plan, in order
    bytes: int = 0  # of RAM
    waits: tuple[float, ...] = ()  # by operator, the cycles that they add; negative where they save some


def weight_reads(
    plan: Plan, prepared: PreparedGraph, request: PlanRequest, traffic: TrafficCounter
) -> WeightReads | None:
    """Collect a plan's copyable weights; None if nothing was asked for and flash reads cost nothing."""
    if not (request.ram_weights or request.prefetch or request.flash_wait):
        return None
    reads, items = traffic.count_flash(plan, prepared.kernels_of(plan))
    wait, reads = float(reads.sum()) * (request.flash_wait or 0.0), reads[:, : len(items)]
    segment_of = {o: s for s, segment in enumerate(plan.segments) for o in segment.ops}
    weights = []
    for k, item in enumerate(items):
        readers = {segment_of[int(o)] for o in np.flatnonzero(reads[:, k])}
        weights.append(Weight(item.size, float(reads[:, k].sum()), readers.pop() if len(readers) == 1 else None))
    cycle = (prepared.core.core.steps or CORTEX_M4).cycle
    limits = int(request.ram_weights), int(request.prefetch)
    problem = WeightProblem(tuple(weights), *limits, request.flash_wait or None, _MEMCPY * cycle)
    return WeightReads(items, reads, problem, wait)
