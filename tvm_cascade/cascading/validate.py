"""Plan validator: replays a plan on a simulated arena, using only the plan's data and the graph's windows.

The validator shares no code with the planner.

Every arena byte carries a tag that names the tensor and byte written there last. A step checks the tags of the rows or
pixels in the windows, then writes new tags, which must not overwrite data to be read. Graph inputs are written at the
start or by the source, graph outputs must be intact at the end. Counters, accumulators and scratch are tagged too, so
they cannot overlap with live data.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.cascading.plan import Granularity, Plan, Segment
from tvm_cascade.cascading.validate_memory import Area, Bytes, Memory, has_contiguous_pixels
from tvm_cascade.cascading.validate_row_tables import workspace_of_step
from tvm_cascade.cascading.validate_structure import check_structure
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import ROW, Op, Tensor, Tile, Window
from tvm_cascade.search_monitor import counted

_STATE, _SCRATCH, _SUM = 0, 1, 2  # kinds of working memory: counters, scratch and accumulators (operator o: _SUM + o)


@dataclass(frozen=True, slots=True)
class Replay:
    """A plan's peak and work, measured by the replay."""

    peak: int  # bytes: the highest byte written, plus one
    macs: int  # multiply-accumulates executed


def validate(plan: Plan, alignment: int = 4) -> Replay:
    """Raise `ValidationError` unless `plan` computes the graph within the arena; return the counts.

    Checked: the plan's parts (`validate_structure`); traces complete and in order; the rows of every window are in
    memory; no step overwrites data still in use; lifetimes; the peak; the multiply-accumulates.

    Parameters
    ----------
    alignment : int
        Alignment of all blocks, in bytes.

    Raises
    ------
    ValidationError
        A check failed; the message names the step, operator or tensor.
    """
    tensors = plan.graph.tensors
    check_structure(plan, alignment)
    memory = Memory(plan)
    for t in plan.graph.inputs:
        if t not in memory.streamed:
            memory.write(memory.area(Area(t, 0, tensors[t].rows)), "{}", tensors[t].name)
    macs = sum(_run(memory, s, segment) for s, segment in enumerate(counted("segments replayed", plan.segments)))
    for before, after in plan.graph.states:
        found, left = (memory.area(Area(t, 0, tensors[t].rows)).by_tag for t in (before, after))
        if not np.array_equal(found, left):
            raise ValidationError(f"the state {tensors[before].name} is not where the next call looks for it")
    for t in plan.graph.outputs:
        memory.check(memory.area(Area(t, 0, tensors[t].rows)), "output {}", tensors[t].name)
    if macs != plan.macs:
        raise ValidationError(f"{macs} multiply-accumulates are executed, the plan says {plan.macs}")
    if not plan.graph.is_order([o for segment in plan.segments for o in segment.ops]):
        raise ValidationError("the segments do not run every operator once in a topological order")
    if plan.bound > plan.peak:
        raise ValidationError(f"the bound of {plan.bound} bytes exceeds the peak of {plan.peak}")
    return Replay(memory.high, macs)


def _run(memory: Memory, s: int, segment: Segment) -> int:
    """Replay a segment; returns the multiply-accumulates executed."""
    plan = memory.plan
    counts = Counter(segment.trace)
    for o in segment.ops:
        op = plan.graph.ops[o]
        if counts.pop(o, 0) != (0 if op.view else _count(plan, segment, op)):
            raise ValidationError(f"operator {op.name} does not run as often as it has steps", [op.name])
        _check_lives(plan, s, op)
    for t in segment.streamed:
        if counts.pop(-1 - t, 0) != plan.graph.tensors[t].rows:
            raise ValidationError(f"the source of {plan.graph.tensors[t].name} does not run once a row")
    if counts:
        raise ValidationError(f"operators {sorted(counts)} run in segment {s} and are not part of it")
    state = memory.block(f"state {s}", segment.state_bytes, _STATE)
    memory.write(state, "state {}", s)
    for o in segment.accumulating:
        memory.write(_accumulator(memory, plan.graph.ops[o]), "accumulator")
    tasks = {o: _task(memory, s, segment, plan.graph.ops[o]) for o in set(segment.trace) if o >= 0}
    stripes = [dict(zip(segment.ops, ranges, strict=True)) for ranges in segment.stripes] or [None]
    for n, stripe in enumerate(stripes):
        memory.start = {
            t: _start(plan, segment, t, x0) for o, (x0, _) in (stripe or {}).items() for t in plan.graph.ops[o].outputs
        }
        done: Counter[int] = Counter()
        for o in segment.trace:
            memory.check(state, "state {}", s)
            if o < 0:
                area = Area(-1 - o, done[o], done[o] + 1)
                memory.write(memory.area(area), "{}", plan.graph.tensors[-1 - o].name)
            else:
                columns = None if stripe is None else stripe[o]
                _step(memory, _Step(tasks[o], done[o], columns, n == len(stripes) - 1))
            done[o] += 1
    memory.check(state, "state {}", s)
    return sum(executed_macs(plan, segment, o) for o in segment.ops)


def _start(plan: Plan, segment: Segment, t: int, x: int) -> int:
    """Return the first column in tensor t's ring while the producer computes columns from `x` on: x less halo columns."""
    maker = plan.graph.producer[t]
    assert maker is not None
    return max(x - plan.storages[t].halo_columns, min(segment.stripes[0][segment.ops.index(maker)][0], x))


def _copy_halo(memory: Memory, step: _Step, back: bool) -> None:
    """Copy the halo columns of a step's row from their block into the ring, or with `back` from the ring to the block."""
    if step.columns is None or step.task.accumulating:
        return
    for t in step.task.op.outputs:
        tensor, halo = memory.plan.graph.tensors[t], memory.plan.storages[t].halo_columns
        if not halo:
            continue
        x = step.columns[1 if back else 0]
        x0 = _start(memory.plan, step.task.segment, t, x)
        ring = memory.area(Area(t, step.k, step.k + 1, x0, x))
        size = halo * (tensor.row_bytes // tensor.columns)
        store = ring.at(memory.offset[f"kept {t}"] + step.k * size)
        source, target = (ring, store) if back else (store, ring)
        memory.check(source, "step {} of {}: part of what is kept of {}", step.k, step.task.op.name, tensor.name)
        memory.write(target, "what is kept of {}", tensor.name)


def executed_macs(plan: Plan, segment: Segment, o: int) -> int:
    """Compute an operator's multiply-accumulates; in stripes in proportion to the taps outside padding, stripe by
    stripe.
    """
    op = plan.graph.ops[o]
    if not segment.stripes or not op.macs or o in segment.accumulating:
        return op.macs
    window, size = op.columns[0], plan.graph.tensors[op.inputs[0]].columns
    if window is None:
        return op.macs * len(segment.stripes)
    made = [range(*ranges[segment.ops.index(o)]) for ranges in segment.stripes]
    done = sum(_taps(window, columns, size) for columns in made)
    tiling = op.kernels.channel_tiling
    if tiling is not None:
        covered = sum(len(set().union(*(window.rows(x, size) for x in columns))) for columns in made)
        columns = sum(map(len, made))
        return tiling.macs_per_covered_column * covered + tiling.macs_per_tap * done + tiling.macs_per_column * columns
    whole = range(plan.graph.tensors[op.outputs[0]].columns)
    return op.macs * done // _taps(window, whole, size)


def _taps(window: Window, columns: range, size: int) -> int:
    """Count the taps of output columns inside an input with `size` columns; computed independently of the planner."""
    return sum(0 <= window.first(x) + k * window.dilation < size for x in columns for k in range(window.extent))


@dataclass(frozen=True, slots=True)
class _Task:
    """An operator in a segment: the facts shared by all steps."""

    s: int  # segment
    segment: Segment
    op: Op
    over: Tensor  # `_grid`
    tile: Tile
    steps: int  # in a stripe, if there are any
    by_rows: bool  # the output is written row by row, not in a single step
    in_place: bool
    accumulating: bool
    mixed: bool  # goes by rows and touches a ring of pixels, which is an error
    names: tuple[str, ...]  # of its inputs


class _Step(NamedTuple):
    """One entry of a trace."""

    task: _Task
    k: int
    columns: tuple[int, int] | None  # of the running stripe
    last_stripe: bool


def _task(memory: Memory, s: int, segment: Segment, op: Op) -> _Task:
    plan = memory.plan
    over, tile = _grid(plan, segment, op)
    held = {plan.storages[t].granularity for t in (*op.inputs, *op.outputs)}
    around = [t for t, w in zip(op.inputs, op.windows, strict=False) if w is not None and w.stride == 0]
    accumulating, in_place = op.index in segment.accumulating, op.index in segment.in_place
    mixed = any(plan.storages[t].granularity is Granularity.PIXEL for t in around) and not accumulating
    mixed = mixed or (Granularity.PIXEL in held and not tile.by_pixels)
    by_rows, steps = _by_rows(plan, op) and not in_place, _count(plan, segment, op)
    names = tuple(plan.graph.tensors[t].name for t in op.inputs)
    return _Task(s, segment, op, over, tile, steps, by_rows, in_place, accumulating, mixed, names)


def _check_lives(plan: Plan, s: int, op: Op) -> None:
    """Check that every tensor an operator of segment s uses is live there; raises `ValidationError`."""
    for t in (*op.inputs, *op.outputs):
        storage = plan.storages[t]
        if not op.view and not storage.lower <= s < storage.upper:
            raise ValidationError(f"tensor {plan.graph.tensors[t].name} is used in segment {s}, where it is not live")


def _by_rows(plan: Plan, op: Op) -> bool:
    """Test whether an operator writes the output row by row, and not in a single step."""
    rows = {plan.graph.tensors[t].rows for t in op.outputs}
    return op.opaque is None and len(rows) == 1 and any(w is not None for w in op.windows)


def _grid(plan: Plan, segment: Segment, op: Op) -> tuple[Tensor, Tile]:
    """Return the tensor an operator's steps cut into tiles (the output, or the input if accumulating), and the tile."""
    if op.index in segment.accumulating:
        seen = plan.storages[op.inputs[0]]
        over = plan.graph.tensors[seen.tensor if seen.root is None else seen.root]
        return over, segment.tile if segment.tile.by_pixels and has_contiguous_pixels(over) else ROW
    over = plan.graph.tensors[op.outputs[0]]
    outputs = [plan.graph.tensors[t] for t in op.outputs]
    fine = all(has_contiguous_pixels(t) for t in outputs) and len({t.columns for t in outputs}) == 1
    fine = fine and op.kernels.channel_tiling is None and any(c is not None for c in op.columns)
    return over, segment.tile if fine or not segment.tile.by_pixels else ROW


def _count(plan: Plan, segment: Segment, op: Op) -> int:
    """Count the steps of an operator."""
    if op.index in segment.in_place or (op.index not in segment.accumulating and not _by_rows(plan, op)):
        return 1
    over, tile = _grid(plan, segment, op)
    return -(-over.rows // tile.rows) * (-(-over.columns // tile.columns) if tile.by_pixels else 1)


def _tile(task: _Task, k: int) -> Area:
    """Return the area step k writes, or adds to the accumulator."""
    over, tile = task.over, task.tile
    if not tile.by_pixels:
        return Area(over.index, k * tile.rows, min((k + 1) * tile.rows, over.rows))
    across = -(-over.columns // tile.columns)
    x0 = k % across * tile.columns
    return Area(over.index, k // across, k // across + 1, x0, min(x0 + tile.columns, over.columns))


def _step(memory: Memory, step: _Step) -> None:
    """Replay a step: check the inputs' tags, write the output's tags."""
    plan, task, op, k = memory.plan, step.task, step.task.op, step.k
    wanted, outputs = _areas(memory, step)
    scratch = _scratch(plan, step, wanted)
    if scratch > task.segment.scratch_bytes:
        raise ValidationError(f"operator {op.name} needs {scratch} bytes of scratch", [op.name])
    if task.mixed:
        raise ValidationError(f"{op.name} makes rows, but one of its tensors is a ring of pixels", [op.name])
    reads = [(i, memory.area(area)) for i, area in wanted]
    for i, read in reads:
        memory.check(read, "step {} of {}: part of its input {}", k, op.name, task.names[i])
    own = []
    if scratch:
        own.append(memory.block(f"scratch {task.s}", scratch, _SCRATCH))
        memory.write(own[0], "scratch of {}", op.name)
        for i, read in reads:
            if read.may_meet(own[0]):
                memory.check(read, "step {} of {}: under its scratch, {}", k, op.name, task.names[i])
    if task.accumulating:
        own.append(_accumulator(memory, op))
    _copy_halo(memory, step, back=False)
    written = [memory.area(area) for area in outputs]
    for made, area in zip(written, outputs, strict=True):
        memory.write(made, "{}", plan.graph.tensors[area.tensor].name)
    for block in own:
        memory.check(block, "step {} of {}: its scratch or accumulator", k, op.name)
    if task.in_place:
        _check_in_place(op, reads, written)
        return
    _check_clobbering(op, k, reads, written, memory.marks)
    _copy_halo(memory, step, back=True)


def _accumulator(memory: Memory, op: Op) -> Bytes:
    return memory.block(f"accumulator {op.index}", op.kernels.accumulator_bytes, _SUM + op.index)


def _scratch(plan: Plan, step: _Step, wanted: list[tuple[int, Area]]) -> int:
    """Return the bytes of an operator's scratch in a step that reads `wanted`, with the workspace of a pixel tile."""
    task, kernels = step.task, step.task.op.kernels
    if task.in_place:
        return kernels.in_place_workspace_bytes
    if kernels.channel_tiling is not None and step.columns is not None:
        return kernels.channel_tiling.scratch_bytes(step.columns[1] - step.columns[0])
    if step.columns is not None or not task.tile.by_pixels:
        return task.op.scratch_bytes
    return workspace_of_step(plan, task.s, task.op, wanted) + task.op.scratch_bytes


def _check_in_place(op: Op, reads: list[tuple[int, Bytes]], written: list[Bytes]) -> None:
    """Raise `ValidationError` unless an in-place operator has an in-place kernel and overwrites exactly the bytes read."""
    place = op.target or 0
    alone = op.target is not None or (op.kernels.in_place_workspace_bytes and len(reads) == 1)
    read = next((there.addresses for i, there in reads if i == place), None)
    same = read is not None and len(written) == 1 and np.array_equal(np.sort(read), np.sort(written[0].addresses))
    if not alone or not same:
        raise ValidationError(f"{op.name} does not write the very bytes that it reads, as its kernel does", [op.name])


def _check_clobbering(
    op: Op, k: int, reads: list[tuple[int, Bytes]], written: list[Bytes], marks: NDArray[np.bool_]
) -> None:
    """Raise `ValidationError` if outputs overlap one another, or an input without element-wise overwriting.

    `marks` has an element for every byte of the arena, False before and after.
    """
    near = [(i, read) for i, read in reads if any(read.may_meet(made) for made in written)]
    if not near and len(written) < 2:
        return
    for made in written:
        if marks[made.where].any():
            raise ValidationError(f"outputs of {op.name} overlap", [op.name])
        marks[made.where] = True
    hit = [(i, read.addresses) for i, read in near if marks[read.where].any()]
    for made in written:
        marks[made.where] = False
    for i, read in hit:
        able = i in op.in_place and not any(np.isin(read, other.addresses).any() for other in written[1:])
        if not able or len(read) != len(written[0].addresses) or _overtakes(written[0].addresses, read):
            raise ValidationError(f"step {k} of {op.name} writes over what it reads", [op.name])


def _overtakes(written: NDArray[np.int64], read: NDArray[np.int64]) -> bool:
    """Test whether an element, written in this order, lands on an element read later in the same order."""
    _, ours, theirs = np.intersect1d(written, read, return_indices=True)
    return bool(np.any(ours < theirs))


def _areas(memory: Memory, step: _Step) -> tuple[list[tuple[int, Area]], list[Area]]:
    """Return the areas a step reads, as (position in the inputs, area), one per tap along the rows, and the areas
    written.
    """
    task, op, tensors = step.task, step.task.op, memory.plan.graph.tensors
    tile = _tile(task, step.k) if step.columns is None else Area(task.over.index, step.k, step.k + 1, *step.columns)
    if task.accumulating or not task.by_rows:
        everything = [Area(t, 0, tensors[t].rows) for t in op.outputs]
        if not task.accumulating:
            return [(i, Area(t, 0, tensors[t].rows)) for i, t in enumerate(op.inputs)], everything
        return [(0, tile)], everything if step.last_stripe and step.k == task.steps - 1 else []
    wanted: list[tuple[int, Area]] = []
    for i, t in enumerate(op.inputs):
        tensor, window = tensors[t], op.windows[i]
        if window is None:
            wanted.append((i, Area(t, 0, tensor.rows)))
            continue
        across = op.columns[i] if tile.x1 is not None else None
        columns = _columns(across if memory.layouts[t].contiguous else None, tile, tensor.columns)
        if window.extent == window.stride == window.denominator == 1 and not window.padding:  # element for element
            wanted.append((i, Area(t, tile.y0, min(tile.y1, tensor.rows), *columns)))
            continue
        taps = [window.first(y) + n * window.dilation for y in range(tile.y0, tile.y1) for n in range(window.extent)]
        wanted.extend((i, Area(t, r, r + 1, *columns)) for r in taps if 0 <= r < tensor.rows)
    return wanted, [Area(t, tile.y0, tile.y1, tile.x0, tile.x1) for t in op.outputs]


def _columns(window: Window | None, tile: Area, size: int) -> tuple[int, int | None]:
    """Return the columns [x0, x1) read by `tile` in an input with `size` columns, with gaps of dilated windows."""
    if tile.x0 == tile.x1:
        return 0, 0
    if window is None or tile.x1 is None:
        return 0, None
    left, right = window.first(tile.x0), window.first(tile.x1 - 1) + window.span
    return min(max(left, 0), size), max(min(right, size), 0)
