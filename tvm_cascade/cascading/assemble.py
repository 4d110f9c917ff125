"""From an order, its cuts and its interleavings to a `Plan`: storages, blocks of the arena, offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from tvm_cascade.cascading.flow import Flow
from tvm_cascade.cascading.plan import Granularity, Plan, Segment, Storage
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.memory import AllocateOptions, Allocation, Buffer, Follow, Problem, allocate


@dataclass(frozen=True, slots=True)
class Figures:
    """What a plan carries along."""

    baseline_peak: int  # bytes
    bound: int  # bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """Segments `[cuts[k], cuts[k + 1])` of an order, each interleaved by rows (0) or by `chunks[k]` pixels.

    Steps by rows make `rows[k]` of them; one where that is not given.
    """

    cuts: tuple[int, ...]
    chunks: tuple[int, ...]
    rows: tuple[int, ...] = ()

    @property
    def pieces(self) -> tuple[tuple[int, int, int], ...]:
        return tuple((i, j, c) for (i, j), c in zip(pairwise(self.cuts), self.chunks, strict=True))

    def costs(self, of: SegmentCosts) -> list[SegmentCosts]:
        """For every segment the costs in steps of its height."""
        return [of.in_steps_of(n) for n in self.rows or (1,) * len(self.chunks)]


_laid_out = lru_cache(maxsize=512)(allocate)  # a frontier and the plan taken from it lay out the same arenas

BRIEF = AllocateOptions(nodes=6_000, first_limit=3_000)  # a third of the usual search: most of what it finds


def assemble(
    costs: SegmentCosts,
    layout: Layout,
    figures: Figures,
    optimise: bool = False,
    effort: AllocateOptions | None = None,
    capacity: int | None = None,
) -> Plan:
    """The plan of a layout, with its arena laid out; by heuristics alone unless `optimise`, then with that `effort`.

    With a `capacity` the first arena found within it; raises `InfeasibleError` where none was found.
    """
    graph = costs.flow.graph
    segments = tuple(_segment(own, *piece) for own, piece in zip(layout.costs(costs), layout.pieces, strict=True))
    storages = _storages(costs, layout)
    problem, same = _problem(costs, layout, segments, storages)
    allocation = _laid_out(replace(problem, capacity=capacity), optimise=optimise, options=effort)
    names = [b.name for b in problem.buffers]
    places = (*allocation.offsets, *(allocation.offsets[names.index(reader)] for reader in same.values()))
    return Plan(
        graph=graph,
        segments=segments,
        storages=storages,
        allocation=replace(allocation, offsets=places),
        buffers=(*names, *same),
        macs=graph.macs + sum(costs.extra_macs(*piece) for piece in layout.pieces),
        baseline_macs=graph.macs,
        baseline_peak=figures.baseline_peak,
        bound=figures.bound,
    )


def _segment(costs: SegmentCosts, i: int, j: int, chunk: int) -> Segment:
    members, over = costs.members(i, j), costs.over(i, j)
    return Segment(
        ops=tuple(sorted(costs.order[i:j])),
        trace=costs.trace(i, j, chunk),
        state_bytes=costs.state_bytes(i, j),
        scratch_bytes=costs.scratch_bytes(i, j, chunk),
        chunk=max(chunk, 0),
        rows=costs.flow.height,
        accumulating=costs.accumulating(i, j),
        over=() if over is None else (over,),
        streamed=tuple(-1 - o for o in members if o < 0),
        stripes=_stripes(costs, i, j, chunk),
    )


def _stripes(costs: SegmentCosts, i: int, j: int, chunk: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    stripes = costs.stripes(i, j, chunk)
    if stripes is None:
        return ()
    return tuple(tuple(ranges.get(o, (0, 0)) for o in sorted(costs.order[i:j])) for ranges in stripes.ranges)


def _storages(costs: SegmentCosts, layout: Layout) -> tuple[Storage, ...]:
    flow = costs.flow
    held = {
        t: (units, piece)
        for own, piece in zip(layout.costs(costs), layout.pieces, strict=True)
        for t, units in own.held(*piece).items()
    }
    segment_at = {p: s for s, (i, j, _) in enumerate(layout.pieces) for p in range(i, j)}
    owners: dict[int, Storage] = {}
    for t, root in enumerate(flow.roots):
        if root.tensor == t:
            lower = segment_at.get(costs.born[t], 0)
            upper = segment_at.get(costs.last[t], len(layout.pieces) - 1) + 1
            units, piece = held.get(t, (flow.units(t, 0), (0, 0, 0)))
            stripes = costs.stripes(*piece)
            if stripes is not None and t in stripes.widths:
                size = costs.bytes_held(*piece[:2], t, units, piece[2])
                width, kept = stripes.widths[t], stripes.kept.get(t, 0)
                owners[t] = Storage(t, units, size, lower, upper, columns=width, kept=kept)
            else:
                owners[t] = _owner(flow, t, units, max(piece[2], 0), lower, upper)
    return tuple(_view(flow, owners, t) for t in range(len(flow.graph.tensors)))


def _owner(flow: Flow, t: int, units: int, chunk: int, lower: int, upper: int) -> Storage:
    tensor, wide = flow.graph.tensors[t], flow.columns(t, chunk)
    if units >= flow.units(t, chunk):
        return Storage(t, tensor.rows, tensor.bytes, lower, upper)
    size = units * flow.unit_bytes(t, chunk)
    if units % wide == 0:
        return Storage(t, units // wide, size, lower, upper)
    return Storage(t, -(-units // wide), size, lower, upper, Granularity.PIXEL, units)


def _view(flow: Flow, owners: dict[int, Storage], tensor: int) -> Storage:
    root = flow.roots[tensor]
    owner = owners[root.tensor]
    if root.tensor == tensor:
        return owner
    seen = flow.graph.tensors[tensor]
    if tensor in flow.parts and not flow.stacked(tensor):
        pitch = flow.unit_bytes(root.tensor, 1)
        return replace(owner, tensor=tensor, root=root.tensor, byte_offset=root.byte_offset, pitch=pitch)
    ring = owner.is_ring(flow.graph.tensors[root.tensor].rows)
    height = owner.height if ring else seen.rows
    size = owner.size if ring else seen.bytes
    return Storage(
        tensor, height, size, owner.lower, owner.upper, owner.granularity, owner.pixels, root.tensor, root.byte_offset
    )


def _problem(
    costs: SegmentCosts, layout: Layout, segments: Sequence[Segment], storages: Sequence[Storage]
) -> tuple[Problem, dict[str, str]]:
    """The blocks to lay out, and by name those that lie in the very bytes of another, which stands for both."""
    blocks: list[Buffer] = []

    def add(name: str, size: int, lower: int, upper: int, item: int = 1) -> None:
        if size:
            alignment = max(costs.settings.alignment, item)
            blocks.append(Buffer(len(blocks), size, lower, upper, alignment, None, name))

    for storage in storages:
        if storage.root is None:
            t, (lower, upper) = storage.tensor, (storage.lower, storage.upper)
            item = ITEM_BYTES[costs.flow.graph.tensors[t].dtype]
            add(f"tensor {t}", storage.size, lower, upper, item)
            rows, pixel = costs.flow.rows[t], costs.flow.unit_bytes(t, 1)
            add(f"kept {t}", storage.kept * rows * pixel, lower, upper, item)
    for s, segment in enumerate(segments):
        add(f"state {s}", segment.state_bytes, s, s + 1)
        add(f"scratch {s}", segment.scratch_bytes, s, s + 1)
        for o in segment.accumulating:
            add(f"accumulator {o}", costs.flow.graph.ops[o].accumulator_bytes, s, s + 1)
    pairs = [p for own, piece in zip(layout.costs(costs), layout.pieces, strict=True) for p in own.pairs(*piece)]
    block_of, same = {b.name: b.id for b in blocks}, dict[str, str]()
    for pair in (p for p in pairs if p.exact):  # in the order of the segments: a reader may be a writer of before
        reader, writer = f"tensor {pair.reader}", f"tensor {pair.writer}"
        same[writer] = same.get(reader, reader)
        kept, gone = block_of[same[writer]], block_of[writer]
        blocks[kept] = replace(blocks[kept], upper=blocks[gone].upper)
        block_of[writer] = kept
    follows: list[Follow] = []
    for pair in pairs:
        reader, writer = (block_of.get(f"tensor {t}") for t in (pair.reader, pair.writer))
        if reader is not None and writer is not None and not pair.exact:
            follows.append(Follow(reader, writer, pair.distance))
    return Problem(tuple(b for b in blocks if b.name not in same), follows=tuple(follows)), same


def offsets_of(plan: Plan) -> dict[str, int]:
    """Byte offset of every block by its name."""
    allocation: Allocation = plan.allocation
    return dict(zip(plan.buffers, allocation.offsets, strict=True))
