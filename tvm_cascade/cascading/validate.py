"""Replays a plan on simulated memory, from the plan's data and the graph's windows alone.

It shares no code with the planner.

Every byte of the arena carries a tag that says which byte of which tensor was written there last. A step reads the rows
or pixels of its windows and must find their tags, then writes its own, and must not have clobbered what it was reading.
Inputs are there at the start or come from their source, outputs must be there at the end. Counters, accumulators and
scratch are written too, so that they cannot overlap with anything that is still wanted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.cascading.plan import Granularity, Plan, Segment
from tvm_cascade.cascading.structure import check_structure
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import ITEM_BYTES, ROW, Op, Tensor, Tile, Window

Indices = NDArray[np.int64]

_STATE, _SCRATCH, _SUM = -2, -3, -4  # tags of what is not a tensor


@dataclass(frozen=True, slots=True)
class Replay:
    """What the replay counted."""

    peak: int  # bytes: the highest byte written, plus one
    macs: int  # multiply-accumulates executed


@dataclass(frozen=True, slots=True)
class _Area:
    """Rows `[y0, y1)` of a tensor, of them columns `[x0, x1)` (all of them where `x1` is None)."""

    tensor: int
    y0: int
    y1: int
    x0: int = 0
    x1: int | None = None


@dataclass
class _Memory:
    plan: Plan
    tags: Indices = field(init=False)
    offset: dict[str, int] = field(init=False)
    streamed: frozenset[int] = field(init=False)  # come row by row, and lie so
    high: int = 0
    start: dict[int, int] = field(default_factory=dict)  # first column in the rings of the running stripe

    def __post_init__(self) -> None:
        self.tags = np.full(self.plan.allocation.peak, -1, np.int64)
        self.streamed = frozenset(t for segment in self.plan.segments for t in segment.streamed)
        self.offset = dict(zip(self.plan.buffers, self.plan.allocation.offsets, strict=True))
        sizes = [t.bytes for t in self.plan.graph.tensors]
        self.base = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def write(self, addresses: Indices, tags: Indices | int, what: str) -> None:
        if not addresses.size:
            return
        if addresses.min() < 0 or addresses.max() >= len(self.tags):
            raise ValidationError(f"{what} is written outside of the arena of {len(self.tags)} bytes")
        self.high = max(self.high, int(addresses.max()) + 1)
        self.tags[addresses] = tags

    def check(self, addresses: Indices, tags: Indices | int, what: str) -> None:
        if addresses.size and (addresses.max() >= len(self.tags) or np.any(self.tags[addresses] != tags)):
            raise ValidationError(f"{what} is not in memory any more, or not yet")

    def block(self, name: str, size: int) -> Indices:
        return np.arange(size, dtype=np.int64) + (self.offset[name] if size else 0)

    def area(self, area: _Area) -> tuple[Indices, Indices]:
        """Addresses of an area and the tags that belong there, element by element in one order."""
        tensor, storage = self.plan.graph.tensors[area.tensor], self.plan.storages[area.tensor]
        root = area.tensor if storage.root is None else storage.root
        place = self.offset.get(f"tensor {root}", 0) + storage.byte_offset
        own = self.base[root] + storage.byte_offset
        rows = np.arange(area.y0, area.y1, dtype=np.int64)
        within, inner = _row(tensor)
        if _pixels(tensor):
            unit = tensor.row_bytes // max(tensor.columns, 1)
            columns = np.arange(area.x0, tensor.columns if area.x1 is None else area.x1, dtype=np.int64)
            pixel = (rows[:, None] * tensor.columns + columns).reshape(-1)
            if storage.columns:
                return self._striped(area, rows, columns, pixel, unit)
            slots = storage.pixels if storage.granularity is Granularity.PIXEL else storage.height * tensor.columns
            spread, pitch = np.arange(unit, dtype=np.int64), storage.pitch or unit
            elements = (pixel[:, None] * pitch + spread).reshape(-1)
            return place + ((pixel % slots)[:, None] * pitch + spread).reshape(-1), own + elements
        elements = (rows[:, None] * inner + within).reshape(-1)
        if storage.height >= tensor.rows and area.tensor not in self.streamed:
            return place + elements, own + elements
        slot = (rows % storage.height) * tensor.row_bytes
        return place + (slot[:, None] + np.arange(tensor.row_bytes, dtype=np.int64)).reshape(-1), own + elements

    def _striped(
        self, area: _Area, rows: Indices, columns: Indices, pixel: Indices, unit: int
    ) -> tuple[Indices, Indices]:
        """The same in a ring whose rows hold the columns of one stripe."""
        storage = self.plan.storages[area.tensor]
        across = columns - self.start.get(area.tensor, 0)
        if across.size and (across.min() < 0 or across.max() >= storage.columns):
            raise ValidationError(f"columns of {self.plan.graph.tensors[area.tensor].name} lie outside of their stripe")
        slot = ((rows % storage.height)[:, None] * storage.columns + across).reshape(-1)
        spread = np.arange(unit, dtype=np.int64)
        place = self.offset.get(f"tensor {area.tensor}", 0) + (slot[:, None] * unit + spread).reshape(-1)
        return place, self.base[area.tensor] + (pixel[:, None] * unit + spread).reshape(-1)


def _row(tensor: Tensor) -> tuple[Indices, int]:
    """Byte indices of row 0, and the bytes from a row to the next."""
    if tensor.row_axis is None:
        return np.arange(tensor.bytes, dtype=np.int64), 0
    inner = prod(tensor.shape[tensor.row_axis + 1 :]) * ITEM_BYTES[tensor.dtype]
    planes = np.arange(prod(tensor.shape[: tensor.row_axis]), dtype=np.int64)
    return (planes[:, None] * inner * tensor.rows + np.arange(inner, dtype=np.int64)).reshape(-1), inner


def _pixels(tensor: Tensor) -> bool:
    """Whether pixels and rows are contiguous, so that they may be addressed one by one."""
    rows, columns = tensor.row_axis, tensor.col_axis
    return rows is not None and columns == rows + 1 and prod(tensor.shape[:rows]) == 1 and tensor.bytes > 0


def validate(plan: Plan, alignment: int = 4) -> Replay:
    """Raise `ValidationError` unless `plan` computes its graph within its arena; return what was counted.

    Checked: `structure`, order and completeness of the traces, that every window finds its rows, that nothing a step uses is
    written over, lifetimes, the peak and the multiply-accumulates. `alignment` is that of all blocks, in bytes.
    """
    tensors = plan.graph.tensors
    check_structure(plan, alignment)
    memory = _Memory(plan)
    for t in plan.graph.inputs:
        if t not in memory.streamed:
            memory.write(*memory.area(_Area(t, 0, tensors[t].rows)), tensors[t].name)
    macs = sum(_run(memory, s, segment) for s, segment in enumerate(plan.segments))
    for t in plan.graph.outputs:
        memory.check(*memory.area(_Area(t, 0, tensors[t].rows)), f"output {tensors[t].name}")
    if macs != plan.macs:
        raise ValidationError(f"{macs} multiply-accumulates are executed, the plan says {plan.macs}")
    if not plan.graph.is_order([o for segment in plan.segments for o in segment.ops]):
        raise ValidationError("the segments do not run every operator once in a topological order")
    if plan.bound > plan.peak:
        raise ValidationError(f"the bound of {plan.bound} bytes exceeds the peak of {plan.peak}")
    return Replay(memory.high, macs)


def _run(memory: _Memory, s: int, segment: Segment) -> int:
    plan = memory.plan
    counts = Counter(segment.trace)
    for o in segment.ops:
        op = plan.graph.ops[o]
        if counts.pop(o, 0) != (0 if op.view else _count(plan, segment, op)):
            raise ValidationError(f"operator {op.name} does not run as often as it has steps")
        _check_lives(plan, s, op)
    for t in segment.streamed:
        if counts.pop(-1 - t, 0) != plan.graph.tensors[t].rows:
            raise ValidationError(f"the source of {plan.graph.tensors[t].name} does not run once a row")
    if counts:
        raise ValidationError(f"operators {sorted(counts)} run in segment {s} and are not part of it")
    state = memory.block(f"state {s}", segment.state_bytes)
    memory.write(state, _STATE, f"state {s}")
    for o in segment.accumulating:
        memory.write(
            memory.block(f"accumulator {o}", plan.graph.ops[o].kernels.accumulator_bytes), _SUM - o, "accumulator"
        )
    stripes = [dict(zip(segment.ops, ranges, strict=True)) for ranges in segment.stripes] or [None]
    for n, stripe in enumerate(stripes):
        memory.start = {
            t: _start(plan, segment, t, x0) for o, (x0, _) in (stripe or {}).items() for t in plan.graph.ops[o].outputs
        }
        done: Counter[int] = Counter()
        for o in segment.trace:
            memory.check(state, _STATE, f"state {s}")
            if o < 0:
                area = _Area(-1 - o, done[o], done[o] + 1)
                memory.write(*memory.area(area), plan.graph.tensors[-1 - o].name)
            else:
                columns = None if stripe is None else stripe[o]
                _step(memory, _Step(s, segment, plan.graph.ops[o], done[o], columns, n == len(stripes) - 1))
            done[o] += 1
    memory.check(state, _STATE, f"state {s}")
    return sum(_macs(plan, segment, o) for o in segment.ops)


def _start(plan: Plan, segment: Segment, t: int, x: int) -> int:
    """The first column of a tensor that a stripe has whose own begin at `x`: what was kept lies before them."""
    maker = plan.graph.producer[t]
    assert maker is not None
    return max(x - plan.storages[t].halo_columns, min(segment.stripes[0][segment.ops.index(maker)][0], x))


def _copy_halo(memory: _Memory, step: _Step, back: bool) -> None:
    """Columns that two stripes share of the row that a step makes: out of their store, or with `back` into it."""
    if step.columns is None or step.op.index in step.segment.accumulating:
        return
    for t in step.op.outputs:
        tensor, halo = memory.plan.graph.tensors[t], memory.plan.storages[t].halo_columns
        if not halo:
            continue
        x = step.columns[1 if back else 0]
        x0 = _start(memory.plan, step.segment, t, x)
        ring, tags = memory.area(_Area(t, step.k, step.k + 1, x0, x))
        size = halo * (tensor.row_bytes // tensor.columns)
        store = memory.block(f"kept {t}", size * tensor.rows)[step.k * size :][: len(ring)]
        source, target = (ring, store) if back else (store, ring)
        memory.check(source, tags, f"step {step.k} of {step.op.name}: part of what is kept of {tensor.name}")
        memory.write(target, tags, f"what is kept of {tensor.name}")


def _macs(plan: Plan, segment: Segment, o: int) -> int:
    """Multiply-accumulates of an operator: in stripes its share of taps that are not padding, stripe by stripe."""
    op = plan.graph.ops[o]
    if not segment.stripes or not op.macs or o in segment.accumulating:
        return op.macs
    window, size = op.columns[0], plan.graph.tensors[op.inputs[0]].columns
    if window is None:
        return op.macs * len(segment.stripes)

    def taps(columns: range) -> int:
        return sum(
            1 for x in columns for k in range(window.extent) if 0 <= window.first(x) + k * window.dilation < size
        )

    made = [range(*ranges[segment.ops.index(o)]) for ranges in segment.stripes]
    done = sum(map(taps, made))
    tiling = op.kernels.channel_tiling
    if tiling is not None:
        covered = sum(len(set().union(*(window.rows(x, size) for x in columns))) for columns in made)
        columns = sum(map(len, made))
        return tiling.macs_per_covered_column * covered + tiling.macs_per_tap * done + tiling.macs_per_column * columns
    return op.macs * done // taps(range(plan.graph.tensors[op.outputs[0]].columns))


@dataclass(frozen=True, slots=True)
class _Step:
    """One entry of a trace."""

    s: int  # segment
    segment: Segment
    op: Op
    k: int
    columns: tuple[int, int] | None  # of the running stripe
    last_stripe: bool


def _check_lives(plan: Plan, s: int, op: Op) -> None:
    for t in (*op.inputs, *op.outputs):
        storage = plan.storages[t]
        if not op.view and not storage.lower <= s < storage.upper:
            raise ValidationError(f"tensor {plan.graph.tensors[t].name} is used in segment {s}, where it is not live")


def _by_rows(plan: Plan, op: Op) -> bool:
    """Whether an operator makes its output row by row, not all at once."""
    rows = {plan.graph.tensors[t].rows for t in op.outputs}
    return op.opaque is None and len(rows) == 1 and any(w is not None for w in op.windows)


def _grid(plan: Plan, segment: Segment, op: Op) -> tuple[Tensor, Tile]:
    """The tensor over which an operator steps, and the tile of it that a step makes or adds up."""
    if op.index in segment.accumulating:
        seen = plan.storages[op.inputs[0]]
        over = plan.graph.tensors[seen.tensor if seen.root is None else seen.root]
        return over, segment.tile if segment.tile.by_pixels and _pixels(over) else ROW
    over = plan.graph.tensors[op.outputs[0]]
    outputs = [plan.graph.tensors[t] for t in op.outputs]
    fine = all(_pixels(t) for t in outputs) and len({t.columns for t in outputs}) == 1
    fine = fine and op.kernels.channel_tiling is None and any(c is not None for c in op.columns)
    return over, segment.tile if fine or not segment.tile.by_pixels else ROW


def _count(plan: Plan, segment: Segment, op: Op) -> int:
    if op.index in segment.in_place or (op.index not in segment.accumulating and not _by_rows(plan, op)):
        return 1
    over, tile = _grid(plan, segment, op)
    return -(-over.rows // tile.rows) * (-(-over.columns // tile.columns) if tile.by_pixels else 1)


def _tile(plan: Plan, segment: Segment, op: Op, k: int) -> _Area:
    over, tile = _grid(plan, segment, op)
    if not tile.by_pixels:
        return _Area(over.index, k * tile.rows, min((k + 1) * tile.rows, over.rows))
    across = -(-over.columns // tile.columns)
    x0 = k % across * tile.columns
    return _Area(over.index, k // across, k // across + 1, x0, min(x0 + tile.columns, over.columns))


def _step(memory: _Memory, step: _Step) -> None:
    plan, op, k = memory.plan, step.op, step.k
    scratch = _scratch(plan, step)
    if scratch > step.segment.scratch_bytes:
        raise ValidationError(f"operator {op.name} needs {scratch} bytes of scratch")
    held = {plan.storages[t].granularity for t in (*op.inputs, *op.outputs)}
    around = [t for t, w in zip(op.inputs, op.windows, strict=False) if w is not None and w.stride == 0]
    by_rows = (
        any(plan.storages[t].granularity is Granularity.PIXEL for t in around)
        and op.index not in step.segment.accumulating
    )
    if by_rows or (Granularity.PIXEL in held and not _grid(plan, step.segment, op)[1].by_pixels):
        raise ValidationError(f"{op.name} goes by rows and reads or writes what is held by pixels")
    wanted, outputs = _areas(plan, step)
    reads = [(i, *memory.area(area)) for i, area in wanted]
    for i, addresses, tags in reads:
        name = plan.graph.tensors[op.inputs[i]].name
        memory.check(addresses, tags, f"step {k} of {op.name}: part of its input {name}")
    own = [(memory.block(f"scratch {step.s}", scratch), _SCRATCH)]
    memory.write(*own[0], f"scratch of {op.name}")
    for i, addresses, tags in reads if scratch else ():
        memory.check(
            addresses, tags, f"step {k} of {op.name}: under its scratch, {plan.graph.tensors[op.inputs[i]].name}"
        )
    if op.index in step.segment.accumulating:
        own.append((memory.block(f"accumulator {op.index}", op.kernels.accumulator_bytes), _SUM - op.index))
    _copy_halo(memory, step, back=False)
    written = [memory.area(area) for area in outputs]
    for (addresses, tags), area in zip(written, outputs, strict=True):
        memory.write(addresses, tags, plan.graph.tensors[area.tensor].name)
    for block, tag in own:
        memory.check(block, tag, f"step {k} of {op.name}: its scratch or accumulator")
    places = [addresses for addresses, _ in written]
    if op.index in step.segment.in_place:
        _check_in_place(op, reads, places)
        return
    _check_clobbering(op, k, reads, places, len(memory.tags))
    _copy_halo(memory, step, back=True)


def _scratch(plan: Plan, step: _Step) -> int:
    """Bytes of the operator's own while a step runs; by pixels it locates the step's window besides."""
    op = step.op
    if op.index in step.segment.in_place:
        return op.kernels.in_place_workspace_bytes
    if op.kernels.channel_tiling is not None and step.columns is not None:
        return op.kernels.channel_tiling.scratch_bytes(step.columns[1] - step.columns[0])
    over, tile = _grid(plan, step.segment, op)
    if step.columns is not None or not tile.by_pixels:
        return op.scratch_bytes
    return op.kernels.tile_workspace_bytes(min(tile.columns, over.columns)) + op.scratch_bytes


def _check_in_place(op: Op, reads: list[tuple[int, Indices, Indices]], written: list[Indices]) -> None:
    """An operator that can do so writes exactly the bytes that it reads: its kernel knows one place."""
    alone = op.kernels.in_place_workspace_bytes and len(reads) == 1 and len(written) == 1
    if not alone or not np.array_equal(np.sort(reads[0][1]), np.sort(written[0])):
        raise ValidationError(f"{op.name} does not write the very bytes that it reads, as its kernel does")


def _check_clobbering(
    op: Op, k: int, reads: list[tuple[int, Indices, Indices]], written: list[Indices], size: int
) -> None:
    """Outputs are disjoint from one another and from what the step reads, or trail it element for element."""
    hit = np.zeros(size, np.int64)
    for addresses in written:
        hit[addresses] += 1
    if hit.max(initial=0) > 1:
        raise ValidationError(f"outputs of {op.name} overlap")
    for i, addresses, _ in reads:
        if not hit[addresses].any():
            continue
        if i not in op.in_place or len(addresses) != len(written[0]) or _overtakes(written[0], addresses):
            raise ValidationError(f"step {k} of {op.name} writes over what it reads")


def _overtakes(written: Indices, read: Indices) -> bool:
    """Whether an element, written in this order, lands on one that is read later in the same order."""
    _, ours, theirs = np.intersect1d(written, read, return_indices=True)
    return bool(np.any(ours < theirs))


def _areas(plan: Plan, step: _Step) -> tuple[list[tuple[int, _Area]], list[_Area]]:
    """What a step reads, each with its place in the inputs, tap by tap along the rows, and what it writes."""
    op, segment, tensors = step.op, step.segment, plan.graph.tensors
    everything = [_Area(t, 0, tensors[t].rows) for t in op.outputs]
    tile = _tile(plan, segment, op, step.k)
    if step.columns is not None:
        tile = _Area(tile.tensor, step.k, step.k + 1, *step.columns)
    if op.index in segment.accumulating:
        last = step.last_stripe and step.k == _count(plan, segment, op) - 1
        return [(0, tile)], everything if last else []
    if not _by_rows(plan, op) or op.index in segment.in_place:
        return [(i, _Area(t, 0, tensors[t].rows)) for i, t in enumerate(op.inputs)], everything
    wanted: list[tuple[int, _Area]] = []
    for i, t in enumerate(op.inputs):
        tensor, window = tensors[t], op.windows[i]
        if window is None:
            wanted.append((i, _Area(t, 0, tensor.rows)))
            continue
        across = op.columns[i] if tile.x1 is not None else None
        if window.extent == window.stride == window.denominator == 1 and not window.padding:  # element for element
            wanted.append((i, _Area(t, tile.y0, min(tile.y1, tensor.rows), *_columns(across, tile, tensor))))
            continue
        taps = [window.first(y) + n * window.dilation for y in range(tile.y0, tile.y1) for n in range(window.extent)]
        wanted.extend((i, _Area(t, r, r + 1, *_columns(across, tile, tensor))) for r in taps if 0 <= r < tensor.rows)
    return wanted, [_Area(t, tile.y0, tile.y1, tile.x0, tile.x1) for t in op.outputs]


def _columns(window: Window | None, tile: _Area, tensor: Tensor) -> tuple[int, int | None]:
    """The columns that a run of output columns reads; holes of a dilated window are taken as read."""
    if tile.x0 == tile.x1:
        return 0, 0
    if window is None or tile.x1 is None or not _pixels(tensor):
        return 0, None
    left, right = window.first(tile.x0), window.first(tile.x1 - 1) + window.span
    return min(max(left, 0), tensor.columns), max(min(right, tensor.columns), 0)
