"""From an order and its cuts to a `Plan`: storages, blocks of the arena, offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tvm_cascade.cascading.flow import Flow
from tvm_cascade.cascading.plan import Plan, Segment, Storage
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.cascading.simulate import demand_trace
from tvm_cascade.memory import Buffer, Problem, allocate
from tvm_cascade.memory.problem import Allocation


@dataclass(frozen=True, slots=True)
class Bounds:
    """Figures that a plan carries along."""

    baseline_peak: int  # bytes
    bound: int  # bytes


def assemble(costs: SegmentCosts, cuts: Sequence[int], bounds: Bounds) -> Plan:
    """The plan of the segments `[cuts[k], cuts[k + 1])`."""
    graph = costs.flow.graph
    pieces = list(pairwise(cuts))
    segments = tuple(_segment(costs, i, j) for i, j in pieces)
    storages = _storages(costs, pieces)
    blocks = _blocks(costs, segments, storages)
    allocation = allocate(Problem(tuple(blocks)))
    return Plan(
        graph=graph,
        segments=segments,
        storages=storages,
        allocation=allocation,
        buffers=tuple(b.name for b in blocks),
        macs=graph.macs,
        baseline_macs=graph.macs,
        baseline_peak=bounds.baseline_peak,
        bound=bounds.bound,
    )


def _segment(costs: SegmentCosts, i: int, j: int) -> Segment:
    ops = costs.order[i:j]
    return Segment(ops, demand_trace(costs.flow, ops), costs.state_bytes(i, j), costs.scratch_bytes(i, j))


def _storages(costs: SegmentCosts, pieces: Sequence[tuple[int, int]]) -> tuple[Storage, ...]:
    flow = costs.flow
    graph = flow.graph
    held = {t: h for i, j in pieces for t, h in costs.heights(i, j).items()}
    segment_at = {p: s for s, (i, j) in enumerate(pieces) for p in range(i, j)}
    owners: dict[int, Storage] = {}
    for t, root in enumerate(flow.roots):
        if root.tensor == t:
            tensor = graph.tensors[t]
            height = held.get(t, tensor.rows)
            size = tensor.bytes if height >= tensor.rows else height * tensor.row_bytes
            lower = segment_at.get(costs.born[t], 0)
            upper = segment_at.get(costs.last[t], len(pieces) - 1) + 1
            owners[t] = Storage(t, height, size, lower, upper)
    return tuple(_view(flow, owners, t) for t in range(len(graph.tensors)))


def _view(flow: Flow, owners: dict[int, Storage], tensor: int) -> Storage:
    root = flow.roots[tensor]
    owner = owners[root.tensor]
    if root.tensor == tensor:
        return owner
    seen = flow.graph.tensors[tensor]
    ring = owner.is_ring(flow.graph.tensors[root.tensor].rows)
    height = owner.height if ring else seen.rows
    size = owner.size if ring else seen.bytes
    return Storage(
        tensor, height, size, owner.lower, owner.upper, owner.granularity, owner.pixels, root.tensor, root.byte_offset
    )


def _blocks(costs: SegmentCosts, segments: Sequence[Segment], storages: Sequence[Storage]) -> list[Buffer]:
    blocks: list[Buffer] = []

    def add(name: str, size: int, lower: int, upper: int) -> None:
        if size:
            blocks.append(Buffer(len(blocks), size, lower, upper, costs.alignment, None, name))

    for storage in storages:
        if storage.root is None:
            add(f"tensor {storage.tensor}", storage.size, storage.lower, storage.upper)
    for s, segment in enumerate(segments):
        add(f"state {s}", segment.state_bytes, s, s + 1)
        add(f"scratch {s}", segment.scratch_bytes, s, s + 1)
    return blocks


def offsets_of(plan: Plan) -> dict[str, int]:
    """Byte offset of every block by its name."""
    allocation: Allocation = plan.allocation
    return dict(zip(plan.buffers, allocation.offsets, strict=True))
