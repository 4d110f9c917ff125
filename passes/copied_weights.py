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

_ALIGN = 8  # bytes, of ranges of a file of weights, and of their places in a buffer
_GAP = 32  # bytes between two constants that are read along, not by two calls
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


def stream_ranges(items: Sequence[FlashItem]) -> tuple[FlashItem, ...]:
    """Merge constants into ranges of the flash image, each read by one call; ranges begin at multiples of 8 bytes."""
    ranges: list[tuple[int, int]] = []
    for item in sorted(set(items), key=lambda item: item.offset):
        first, end = item.offset // _ALIGN * _ALIGN, item.offset + item.size
        if ranges and first - ranges[-1][1] <= _GAP:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], end))
        else:
            ranges.append((first, end))
    return tuple(FlashItem("", "int8", (end - first,), first, end - first) for first, end in ranges)


def stream_halves(needed: Sequence[Sequence[FlashItem]]) -> tuple[int, int]:
    """Return the bytes in two buffers that segment ranges are read into in turn."""
    sizes = [sum(-(-item.size // _ALIGN) * _ALIGN for item in ranges) for ranges in needed]
    return max(sizes[0::2], default=0), max(sizes[1::2], default=0)


def streamed_bytes(plan: Plan, prepared: PreparedGraph) -> int:
    """Return the bytes of two buffers for all constants of a plan, read segment by segment (`--weights stream`)."""
    reads, items = TrafficCounter(prepared.core).count_flash(plan, prepared.kernels_of(plan))
    needed = [
        stream_ranges([item for k, item in enumerate(items) if any(reads[o, k] for o in segment.ops)])
        for segment in plan.segments
    ]
    return sum(stream_halves([ranges for ranges in needed if ranges]))


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
