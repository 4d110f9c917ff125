"""Plans that are wrong in one place, to test what checks plans: addresses, steps, rings, counters, columns, flags.

A mutant may be as good as the plan it was made from: a block that moves into free space, two steps that may run either
way. So a check of plans is held to this: what it accepts computes what it should.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from tvm_cascade.cascading import Granularity, Plan
from tvm_cascade.cascading.plan import Segment, Storage

Mutation = Callable[[Plan, Random], Plan | None]


def mutant(plan: Plan, random: Random) -> tuple[str, Plan]:
    """A random change of `plan`, and its name; what a change does not fit is drawn again."""
    while True:
        change = random.choice(MUTATIONS)
        changed = change(plan, random)
        if changed is not None and changed != plan:
            return change.__name__.strip("_"), changed


def _segment(plan: Plan, s: int, **changes: Any) -> Plan:
    changed = replace(plan.segments[s], **changes)
    return replace(plan, segments=(*plan.segments[:s], changed, *plan.segments[s + 1 :]))


def _storage(plan: Plan, t: int, **changes: Any) -> Plan:
    changed = replace(plan.storages[t], **changes)
    return replace(plan, storages=(*plan.storages[:t], changed, *plan.storages[t + 1 :]))


def _offsets(plan: Plan, offsets: list[int], grow: bool = False) -> Plan:
    lift = max((new - old for new, old in zip(offsets, plan.allocation.offsets, strict=True)), default=0)
    peak = plan.peak + (lift if grow else 0)
    return replace(plan, allocation=replace(plan.allocation, offsets=tuple(offsets), peak=peak))


def _any_segment(plan: Plan, random: Random, fits: Callable[[Segment], object]) -> int | None:
    fitting = [s for s, segment in enumerate(plan.segments) if fits(segment)]
    return random.choice(fitting) if fitting else None


def _any_storage(plan: Plan, random: Random, fits: Callable[[Storage], object]) -> Storage | None:
    fitting = [s for s in plan.storages if fits(s)]
    return random.choice(fitting) if fitting else None


def _moved_block(plan: Plan, random: Random) -> Plan:
    offsets = list(plan.allocation.offsets)
    offsets[random.randrange(len(offsets))] += random.choice((-64, -16, -4, -1, 1, 4, 16, 64))
    return _offsets(plan, offsets, grow=random.random() < 0.5)


def _moved_row(plan: Plan, random: Random) -> Plan | None:
    storage = _any_storage(plan, random, lambda s: s.row_addresses)
    if storage is None:
        return None
    at = list(storage.row_addresses)
    at[random.randrange(len(at))] = random.choice((at[0], at[-1], random.randrange(0, plan.peak, 4)))
    return _storage(plan, storage.tensor, row_addresses=tuple(at))


def _exchanged_blocks(plan: Plan, random: Random) -> Plan:
    offsets = list(plan.allocation.offsets)
    a, b = random.randrange(len(offsets)), random.randrange(len(offsets))
    offsets[a], offsets[b] = offsets[b], offsets[a]
    return _offsets(plan, offsets)


def _equal_names(plan: Plan, random: Random) -> Plan:
    names = list(plan.buffers)
    names[random.randrange(len(names))] = random.choice(names)
    return replace(plan, buffers=tuple(names))


def _smaller_peak(plan: Plan, random: Random) -> Plan:
    return replace(plan, allocation=replace(plan.allocation, peak=plan.peak - random.choice((1, 4, 64))))


def _exchanged_steps(plan: Plan, random: Random) -> Plan | None:
    s = _any_segment(plan, random, lambda g: len(set(g.trace)) > 1)
    if s is None:
        return None
    trace = list(plan.segments[s].trace)
    a = random.randrange(len(trace) - 1)
    b = a + 1 if random.random() < 0.6 else random.randrange(len(trace))
    trace[a], trace[b] = trace[b], trace[a]
    return _segment(plan, s, trace=tuple(trace))


def _one_step_less_or_more(plan: Plan, random: Random) -> Plan | None:
    s = _any_segment(plan, random, lambda g: g.trace)
    if s is None:
        return None
    trace = list(plan.segments[s].trace)
    at = random.randrange(len(trace))
    if random.random() < 0.5:
        del trace[at]
    else:
        trace.insert(at, random.choice(trace))
    return _segment(plan, s, trace=tuple(trace))


def _exchanged_segments(plan: Plan, random: Random) -> Plan | None:
    if len(plan.segments) < 2:
        return None
    segments = list(plan.segments)
    a = random.randrange(len(segments) - 1)
    segments[a], segments[a + 1] = segments[a + 1], segments[a]
    return replace(plan, segments=tuple(segments))


def _less_state_or_scratch(plan: Plan, random: Random) -> Plan | None:
    name = random.choice(("state_bytes", "scratch_bytes"))
    s = _any_segment(plan, random, lambda g: getattr(g, name))
    return None if s is None else _segment(plan, s, **{name: max(getattr(plan.segments[s], name) - 4, 0)})


def _other_flag(plan: Plan, random: Random) -> Plan | None:
    """An operator more or fewer among those that sum up, or that run over their input; an input delivered twice or never."""
    name = random.choice(("accumulating", "in_place", "streamed"))
    s = random.randrange(len(plan.segments))
    had = getattr(plan.segments[s], name)
    if had and random.random() < 0.6:
        return _segment(plan, s, **{name: had[1:]})
    more = random.choice(plan.graph.inputs if name == "streamed" else plan.segments[s].ops)
    return _segment(plan, s, **{name: (*had, more)})


def _other_rows(plan: Plan, random: Random) -> Plan:
    """Another height of a segment's steps, and where it is one operator as many of them as it takes."""
    s, rows = random.randrange(len(plan.segments)), random.choice((1, 2, 3, 4))
    segment = plan.segments[s]
    tile = replace(segment.tile, rows=rows)
    if len(set(segment.trace)) != 1 or random.random() < 0.5:
        return _segment(plan, s, tile=tile)
    steps = -(-len(segment.trace) * segment.tile.rows // rows)
    return _segment(plan, s, tile=tile, trace=segment.trace[:1] * steps)


def _other_pixels(plan: Plan, random: Random) -> Plan:
    s = random.randrange(len(plan.segments))
    return _segment(plan, s, tile=replace(plan.segments[s].tile, columns=random.choice((0, 1, 2, 4, 8, 16))))


def _other_columns(plan: Plan, random: Random) -> Plan | None:
    s = _any_segment(plan, random, lambda g: g.stripes)
    if s is None:
        return None
    stripes = [list(ranges) for ranges in plan.segments[s].stripes]
    n = random.randrange(len(stripes))
    if random.random() < 0.15:
        del stripes[n]
        return _segment(plan, s, stripes=tuple(map(tuple, stripes)))
    at = random.randrange(len(stripes[n]))
    x0, x1 = stripes[n][at]
    stripes[n][at] = random.choice(((x0 - 1, x1), (x0 + 1, x1), (x0, x1 - 1), (x0, x1 + 1), (x0 + 1, x1 + 1)))
    return _segment(plan, s, stripes=tuple(map(tuple, stripes)))


def _other_ring(plan: Plan, random: Random) -> Plan | None:
    """A row, pixel or column less or more of one tensor, or rows where pixels were counted; sizes follow, or do not."""
    storage = _any_storage(plan, random, lambda s: plan.graph.tensors[s.tensor].bytes)
    if storage is None:
        return None
    tensor = plan.graph.tensors[storage.tensor]
    height, pixels, columns, granularity = storage.height, storage.pixels, storage.columns, storage.granularity
    kind, by = random.randrange(4), random.choice((-1, -1, 1))
    if kind == 0:
        height += by
    elif kind == 1 and granularity is Granularity.PIXEL:
        pixels += by
    elif kind == 2 and columns:
        columns += by
    elif kind == 3:
        granularity = Granularity.ROW if granularity is Granularity.PIXEL else Granularity.PIXEL
        pixels = height * tensor.columns if granularity is Granularity.PIXEL else 0
    size = min(height, tensor.rows) * tensor.row_bytes
    size = size // tensor.columns * columns if columns else size
    size = pixels * (tensor.row_bytes // tensor.columns) if granularity is Granularity.PIXEL else size
    if random.random() < 0.1:
        size = storage.size
    changed = {"height": height, "pixels": pixels, "columns": columns, "granularity": granularity, "size": size}
    mutated = _storage(plan, storage.tensor, **changed)
    for view in plan.storages if random.random() < 0.8 else ():
        if view.root == storage.tensor and (view.pitch or storage.is_ring(tensor.rows)):
            mutated = _storage(mutated, view.tensor, **changed)
    return mutated


def _other_halo(plan: Plan, random: Random) -> Plan | None:
    storage = _any_storage(plan, random, lambda s: s.halo_columns) or _any_storage(plan, random, lambda s: s.columns)
    halo = 0 if storage is None else max(storage.halo_columns + random.choice((-1, 1)), 0)
    return None if storage is None else _storage(plan, storage.tensor, halo_columns=halo)


def _other_view(plan: Plan, random: Random) -> Plan | None:
    """A view or part elsewhere in its owner, in another owner, or in another's place."""
    views = [s for s in plan.storages if s.root is not None]
    if not views:
        return None
    one, other = random.choice(views), random.choice(plan.storages)
    kind = random.randrange(4)
    if kind == 0:
        return _storage(plan, one.tensor, byte_offset=one.byte_offset + random.choice((-4, -1, 1, 4)))
    if kind == 1:
        mutated = _storage(plan, one.tensor, byte_offset=other.byte_offset)
        return _storage(mutated, other.tensor, byte_offset=one.byte_offset) if other.root is not None else mutated
    if kind == 2:
        return _storage(plan, one.tensor, root=other.tensor if other.root is None else other.root)
    return _storage(plan, one.tensor, pitch=random.choice((0, one.pitch + 4)))


def _fewer_in_place(plan: Plan, random: Random) -> Plan | None:
    able = [op for op in plan.graph.ops if op.in_place]
    if not able:
        return None
    ops = list(plan.graph.ops)
    op = random.choice(able)
    ops[op.index] = replace(op, in_place=op.in_place[1:])
    return replace(plan, graph=replace(plan.graph, ops=tuple(ops)))


def _other_macs(plan: Plan, random: Random) -> Plan:
    return replace(plan, macs=plan.macs + random.choice((-1, 1)))


MUTATIONS: tuple[Mutation, ...] = (
    _moved_block, _moved_block, _moved_row, _moved_row, _exchanged_blocks, _equal_names, _smaller_peak,
    _exchanged_steps, _exchanged_steps,
    _one_step_less_or_more, _exchanged_segments, _less_state_or_scratch, _other_flag, _other_pixels, _other_rows, _other_columns,
    _other_columns, _other_ring, _other_ring, _other_halo, _other_view, _fewer_in_place, _other_macs,
)  # fmt: skip
