"""Builds a `Plan` from an execution order, cuts and interleavings: storages, arena blocks, offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm_cascade.cascading.access_tables import AccessTables
from tvm_cascade.cascading.interleaving import BY_ROWS, Interleaving
from tvm_cascade.cascading.plan import Granularity, Plan, Segment, Storage
from tvm_cascade.cascading.segments import SegmentCosts
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import ITEM_BYTES, PIXEL, ROW, Tile
from tvm_cascade.memory import AllocateOptions, Allocation, Buffer, OffsetConstraint, Problem, allocate
from tvm_cascade.search_monitor import cached


@dataclass(frozen=True, slots=True)
class Figures:
    """Peaks to compare a plan with, which the plan carries."""

    baseline_peak: int  # bytes: layer by layer in file order
    bound: int  # bytes: lower bound of the search space


@dataclass(frozen=True, slots=True)
class Layout:
    """The cuts of an execution order into segments, `[cuts[k], cuts[k + 1])`, and each segment's interleaving."""

    cuts: tuple[int, ...]
    interleavings: tuple[Interleaving, ...]

    @classmethod
    def one_by_one(cls, operators: int) -> Layout:
        """Make the layout with every operator as a separate segment."""
        return cls(tuple(range(operators + 1)), (BY_ROWS,) * operators)

    @property
    def segments(self) -> tuple[tuple[int, int, Interleaving], ...]:
        """List every segment's (i, j, interleaving), which holds positions [i, j) of the order."""
        return tuple(zip(self.cuts[:-1], self.cuts[1:], self.interleavings, strict=True))


@cached(maxsize=512)
def _tried(problem: Problem, optimise: bool, options: AllocateOptions | None) -> Allocation | InfeasibleError:
    try:
        return allocate(problem, optimise=optimise, options=options)
    except InfeasibleError as error:
        return error


def _laid_out(problem: Problem, optimise: bool, options: AllocateOptions | None) -> Allocation:
    """Return `allocate`, which a frontier, the plan chosen from it and tiles of several rows ask for the same arenas."""
    found = _tried(problem, optimise, options)
    if isinstance(found, InfeasibleError):
        raise found.with_traceback(None)
    return found


# most of the benefit of the defaults
SHORT_SEARCH = AllocateOptions(6_000, first_limit=3_000, placements=300_000, integer_program=False)


def assemble(
    costs: SegmentCosts,
    layout: Layout,
    figures: Figures,
    optimise: bool = False,
    effort: AllocateOptions | None = None,
    capacity: int | None = None,
) -> Plan:
    """Build a layout's plan and allocate the arena.

    Parameters
    ----------
    optimise : bool
        Search for a smaller arena after the heuristics.
    effort : AllocateOptions, optional
        Limits of that search.
    capacity : int, optional
        Bytes. The first arena that fits is taken, instead of the smallest.

    Raises
    ------
    InfeasibleError
        The allocator found no arena within `capacity`.
    """
    graph = costs.tables.graph
    storages = storages_of(costs, layout)
    problem, same = _problem(costs, layout, storages)
    allocation = _laid_out(replace(problem, capacity=capacity), optimise=optimise, options=effort)
    names = [b.name for b in problem.buffers]
    places = (*allocation.offsets, *(allocation.offsets[names.index(reader)] for reader in same.values()))
    return Plan(
        graph=graph,
        segments=tuple(segment_of(costs, *segment) for segment in layout.segments),
        storages=storages,
        allocation=replace(allocation, offsets=places),
        buffers=(*names, *same),
        problem=problem,
        overwritten=tuple(same.items()),
        macs=graph.macs + sum(costs.extra_macs(*segment) for segment in layout.segments),
        baseline_macs=graph.macs,
        baseline_peak=figures.baseline_peak,
        bound=figures.bound,
    )


def simple_arena(costs: SegmentCosts, layout: Layout) -> Allocation:
    """Allocate a layout's arena by heuristics alone, without the rest of a plan."""
    problem, _ = _problem(costs, layout, storages_of(costs, layout))
    return _laid_out(problem, optimise=False, options=None)


def segment_of(costs: SegmentCosts, i: int, j: int, interleaving: Interleaving) -> Segment:
    """Make the plan's segment of positions [i, j): trace, counters, scratch and stripes."""
    members, in_place, stripes = costs.members(i, j), costs.in_place(i, j), costs.stripes(i, j, interleaving)
    ops = tuple(sorted(costs.order[i:j]))
    return Segment(
        ops=ops,
        trace=costs.trace(i, j, interleaving.tile),
        state_bytes=costs.state_bytes(i, j, interleaving.tile),
        scratch_bytes=costs.scratch_bytes(i, j, interleaving),
        tile=interleaving.tile,
        accumulating=costs.accumulating(i, j),
        in_place=() if in_place is None else (in_place,),
        streamed=tuple(-1 - o for o in members if o < 0),
        stripes=tuple(tuple(ranges.get(o, (0, 0)) for o in ops) for ranges in stripes.ranges) if stripes else (),
    )


def storages_of(costs: SegmentCosts, layout: Layout) -> tuple[Storage, ...]:
    """Return the storage of every tensor, by index: whole or a ring, with bytes and lifetime in segments."""
    tables = costs.tables
    segments = layout.segments
    held = {t: (units, segment) for segment in segments for t, units in costs.held(*segment).items()}
    segment_at = {p: s for s, (i, j, _) in enumerate(segments) for p in range(i, j)}
    owners: dict[int, Storage] = {}
    for t, root in enumerate(tables.roots):
        if root.tensor == t:
            lower = segment_at.get(costs.born[t], 0)
            upper = segment_at.get(costs.last[t], len(segments) - 1) + 1
            units, segment = held.get(t, (tables.units(t, ROW), (0, 0, BY_ROWS)))
            stripes = costs.stripes(*segment)
            if stripes is not None and t in stripes.widths:
                size = costs.bytes_held(*segment[:2], t, units, segment[2])
                width, halo = stripes.widths[t], stripes.halo_columns.get(t, 0)
                owners[t] = Storage(t, units, size, lower, upper, columns=width, halo_columns=halo)
            else:
                owners[t] = _owner(tables, t, units, segment[2].tile, lower, upper)
    return tuple(_view(tables, owners, t) for t in range(len(tables.graph.tensors)))


def _owner(tables: AccessTables, t: int, units: int, tile: Tile, lower: int, upper: int) -> Storage:
    """Return the storage for `units` of a root: the whole tensor, a row ring, or a pixel ring."""
    tensor, columns = tables.graph.tensors[t], tables.columns(t, tile)
    if units >= tables.units(t, tile):
        return Storage(t, tensor.rows, tensor.bytes, lower, upper)
    size = units * tables.unit_bytes(t, tile)
    if units % columns == 0:
        return Storage(t, units // columns, size, lower, upper)
    return Storage(t, -(-units // columns), size, lower, upper, Granularity.PIXEL, units)


def _view(tables: AccessTables, owners: dict[int, Storage], tensor: int) -> Storage:
    """Return any tensor's storage; a view or join part lies in the root's storage."""
    root = tables.roots[tensor]
    owner = owners[root.tensor]
    if root.tensor == tensor:
        return owner
    seen = tables.graph.tensors[tensor]
    if tensor in tables.parts and not tables.stacked(tensor):
        pitch = tables.unit_bytes(root.tensor, PIXEL)
        return replace(owner, tensor=tensor, root=root.tensor, byte_offset=root.byte_offset, pitch=pitch)
    ring = owner.is_ring(tables.graph.tensors[root.tensor].rows)
    height = owner.height if ring else seen.rows
    size = owner.size if ring else seen.bytes
    return Storage(
        tensor, height, size, owner.lower, owner.upper, owner.granularity, owner.pixels, root.tensor, root.byte_offset
    )


def _problem(costs: SegmentCosts, layout: Layout, storages: Sequence[Storage]) -> tuple[Problem, dict[str, str]]:
    """Make the allocation problem of an arena: blocks and the offset constraints between them.

    The second result maps each block an in-place operator writes to the block overwritten, by name; the latter
    represents both in the problem.
    """
    blocks: list[Buffer] = []

    def add(name: str, size: int, lower: int, upper: int, item: int = 1) -> None:
        if size:
            alignment = max(costs.settings.alignment, item)
            blocks.append(Buffer(len(blocks), size, lower, upper, alignment, None, name))

    for storage in storages:
        if storage.root is None:
            t, (lower, upper) = storage.tensor, (storage.lower, storage.upper)
            item = ITEM_BYTES[costs.tables.graph.tensors[t].dtype]
            add(f"tensor {t}", storage.size, lower, upper, item)
            rows, pixel = costs.tables.tensor_rows[t], costs.tables.unit_bytes(t, PIXEL)
            add(f"kept {t}", storage.halo_columns * rows * pixel, lower, upper, item)
    for s, segment in enumerate(layout.segments):
        i, j, interleaving = segment
        add(f"state {s}", costs.state_bytes(i, j, interleaving.tile), s, s + 1)
        add(f"scratch {s}", costs.scratch_bytes(*segment), s, s + 1)
        for o in costs.accumulating(i, j):
            add(f"accumulator {o}", costs.tables.graph.ops[o].kernels.accumulator_bytes, s, s + 1)
    pairs = [p for segment in layout.segments for p in costs.pairs(*segment)]
    block_of, same = {b.name: b.id for b in blocks}, dict[str, str]()
    for pair in (p for p in pairs if p.exact):  # in order of segments: a reader may itself have overwritten a block
        reader, writer = f"tensor {pair.reader}", f"tensor {pair.writer}"
        same[writer] = same.get(reader, reader)
        kept, gone = block_of[same[writer]], block_of[writer]
        blocks[kept] = replace(blocks[kept], upper=blocks[gone].upper)
        block_of[writer] = kept
    constraints: list[OffsetConstraint] = []
    for pair in pairs:
        reader, writer = (block_of.get(f"tensor {t}") for t in (pair.reader, pair.writer))
        if reader is not None and writer is not None and not pair.exact:
            constraints.append(OffsetConstraint(reader, writer, pair.distance))
    return Problem(tuple(b for b in blocks if b.name not in same), offset_constraints=tuple(constraints)), same


def offsets_of(plan: Plan) -> dict[str, int]:
    """Return every block's byte offset by name."""
    return dict(zip(plan.buffers, plan.allocation.offsets, strict=True))
