"""Arena occupancy over time: for every block the addresses in use, step by step.

A whole tensor's range reaches from the first byte still to be read to the end of the written bytes, so an output is
seen growing into the dying input's space. Rows with separate addresses are drawn one by one. Rings, counters,
accumulators and scratch count in full while their segment runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.geometry import end_bytes, front_bytes
from tvm_cascade.cascading.plan import ROWS, Plan, Segment
from tvm_cascade.report.text import block_rows, covered
from tvm_cascade.schema.plan import Block

_SAMPLES = 60  # steps of a segment at which occupancy is sampled


@dataclass(frozen=True, slots=True)
class Band:
    """A block over time: at `times[k]` it holds addresses `[low[k], high[k])`."""

    name: str
    block: int  # its index in `block_rows`
    kind: str  # "tensor", "ring", "rows", "kept", "state", "scratch", "accumulator"
    times: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """All blocks, the steps at which segments start (and the end), and bytes in use at the sampled steps."""

    bands: tuple[Band, ...]
    cuts: tuple[int, ...]
    times: tuple[int, ...]
    used: tuple[int, ...]


class _Progress:
    """Replay of a segment: each operator's number of runs, and from that whole tensors' bytes in use."""

    def __init__(self, plan: Plan, tables: AccessTables, segment: int) -> None:
        self.plan, self.tables, self.segment = plan, tables, plan.segments[segment]
        self.index = segment
        self.done = dict.fromkeys(self.segment.trace, 0)

    def span(self, tensor: int) -> tuple[int, int]:
        """Return the bytes `[low, high)` of a whole tensor in use: the first still to be read, and the end of the
        written bytes.

        `low` is 0 for tensors read after this segment; in striped segments the whole tensor is in use.
        """
        tables, segment = self.tables, self.segment
        node, storage = tables.graph.tensors[tensor], self.plan.storages[tensor]
        columns = tables.columns(tensor, segment.tile)
        makers = [m for m in tables.writers(tensor) if m in self.done and not segment.stripes]
        ends: list[int] = []
        for m in makers:
            written = tables.steps(m, segment.tile, m in segment.accumulating).made[tables.written(m).index(tensor)]
            done = -1 if self.done[m] and m in segment.in_place else self.done[m]
            ends.append(int(end_bytes(node, written[done], columns)))
        high = max(ends, default=node.bytes)
        low = 0
        if storage.upper == self.index + 1 and tensor not in tables.leaves and not segment.stripes:
            low = min(
                (self._oldest_byte(o, tensor, columns) for o in tables.readers[tensor] if o in self.done), default=high
            )
        return min(low, high), high

    def _oldest_byte(self, op: int, tensor: int, columns: int) -> int:
        steps = self.tables.steps(op, self.segment.tile, op in self.segment.accumulating)
        done = -1 if self.done[op] and op in self.segment.in_place else self.done[op]
        keeps = [int(r.keep[done]) for r in steps.reads if r.tensor == tensor]
        node = self.tables.graph.tensors[tensor]
        return min((int(front_bytes(node, np.array(k), columns)) for k in keeps), default=0)


def timeline(plan: Plan) -> Timeline:
    """Record the occupancy of a plan's arena, `_SAMPLES` times in each segment (at the ends if it has stripes)."""
    streamed = {t for s in plan.segments for t in s.streamed}
    sums = any(s.accumulating for s in plan.segments)
    tables = AccessTables(plan.graph, streamed, sums)
    blocks, rows = block_rows(plan), _rows(plan)
    by_row = {ROWS, *(f"tensor {t}" for t, _, _ in rows)}
    spans: list[list[tuple[int, int, int]]] = [[] for _ in blocks]
    cuts, times, used = [0], [], []
    for k, segment in enumerate(plan.segments):
        progress = _Progress(plan, tables, k)
        length = len(segment.trace) * max(len(segment.stripes), 1)
        if not length:  # views alone
            cuts.append(cuts[-1])
            continue
        live = [n for n, b in enumerate(blocks) if b["lower"] <= k < b["upper"] and plan.buffers[n] not in by_row]
        for at, trace in _samples(segment, length):
            for o in trace:
                progress.done[o] += 1
            extents = [(n, *_addresses(plan, blocks[n], plan.buffers[n], progress)) for n in live]
            for n, low, high in extents:
                spans[n].append((cuts[-1] + at, low, high))
            times.append(cuts[-1] + at)
            now = cuts[-1] + at - (at == length)  # what the last step holds is there at its end
            there = [band for _, _, band in rows if band.times[0] <= now < band.times[1]]
            used.append(covered((*((a, b) for _, a, b in extents), *((b.low[0], b.high[0]) for b in there))))
        cuts.append(cuts[-1] + length)
    bands = [
        Band(
            b["name"],
            n,
            "ring" if b["ring"] and b["kind"] != "rows" else b["kind"],
            *(tuple(v) for v in zip(*s, strict=True)),
        )
        for n, (b, s) in enumerate(zip(blocks, spans, strict=True))
        if s
    ]
    bands += [band for _, _, band in rows]
    return Timeline(tuple(bands), tuple(cuts), tuple(times), tuple(used))


def _rows(plan: Plan) -> list[tuple[int, int, Band]]:
    """Collect rows with separate addresses, and rows of adjacent inputs and outputs, as (tensor, row, band).

    Data written over a row, element for element, is part of the row's band.
    """
    if ROWS not in plan.buffers:
        return []
    block = plan.buffers.index(ROWS)
    found: list[tuple[int, int, Band]] = []
    for b in plan.problem.buffers:
        name, _, row = b.name.partition(" row ")
        if row:
            t, at = int(name.partition(" ")[2]), _row_address(plan, int(name.partition(" ")[2]), int(row))
            told = f"row {row} of {plan.graph.tensors[t].name}"
            found.append(
                (t, int(row), Band(told, block, "rows", (b.lower, b.upper), (at, at), (at + b.size, at + b.size)))
            )
    return found


def _row_address(plan: Plan, tensor: int, row: int) -> int:
    """Return the address of a tensor's row, for a tensor with row addresses or a whole tensor."""
    addresses = plan.storages[tensor].row_addresses
    if addresses:
        return addresses[row]
    return plan.allocation.offsets[plan.buffers.index(f"tensor {tensor}")] + row * plan.graph.tensors[tensor].row_bytes


def _samples(segment: Segment, length: int) -> list[tuple[int, Sequence[int]]]:
    """Times within a segment, each with the steps done since the one before."""
    if segment.stripes or not segment.trace:
        return [(0, ()), (length, ())]
    marks = sorted({round(length * n / _SAMPLES) for n in range(_SAMPLES + 1)})
    return [(0, ()), *((b, segment.trace[a:b]) for a, b in pairwise(marks))]


def _addresses(plan: Plan, block: Block, name: str, progress: _Progress) -> tuple[int, int]:
    offset, size = plan.allocation.offsets[plan.buffers.index(name)], block["bytes"]
    if block["kind"] != "tensor" or block["ring"]:
        return offset, offset + size
    low, high = progress.span(int(name.partition(" ")[2]))
    return offset + low, offset + high
