"""Plans in several memories: the place of each block, given by memory and offset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm_cascade.cascading.plan import ROWS, MemoryUse, Plan
from tvm_cascade.cascading.row_tables import longest_run, ring_slots
from tvm_cascade.machine import Ram
from tvm_cascade.memory import Buffer, Problem

_ALIGN = 64  # bytes, of the address that a memory begins at; what follows it stays free for so many at least


def blocks(plan: Plan) -> Problem:
    """Return the blocks a memory can hold; all as a single block if rows have separate addresses."""
    return Problem((Buffer(0, plan.peak, 0, 1, name=ROWS),)) if ROWS in plan.buffers else plan.problem


def in_memories(plan: Plan, memories: Sequence[Ram], chosen: Sequence[int], offsets: Sequence[int]) -> Plan:
    """Copy the plan with blocks in other places.

    Parameters
    ----------
    memories : Ram
        In the order of their addresses in the plan.
    chosen, offsets : int
        For each buffer of `blocks`: the position of its memory among `memories`, and the bytes from its start.
    """
    buffers = blocks(plan).buffers
    uses: list[MemoryUse] = []
    for m, ram in enumerate(memories):
        ends = [o + b.size for b, c, o in zip(buffers, chosen, offsets, strict=True) if c == m]
        start = -(-(uses[-1].end + _ALIGN) // _ALIGN) * _ALIGN if uses else 0
        uses.append(MemoryUse(ram, start, max(ends, default=0)))
    at, storages = {b.name: uses[c].start + o for b, c, o in zip(buffers, chosen, offsets, strict=True)}, plan.storages
    at |= {writer: at[block] for writer, block in plan.overwritten}
    if ROWS in plan.buffers:
        start = at[ROWS]
        at = {name: start + o for name, o in zip(plan.buffers, plan.allocation.offsets, strict=True)}
        storages = tuple(replace(s, row_addresses=tuple(start + a for a in s.row_addresses)) for s in storages)
    allocation = replace(plan.allocation, offsets=tuple(at[name] for name in plan.buffers), peak=uses[-1].end)
    return replace(plan, allocation=allocation, storages=storages, placed=tuple(uses))


def apart(plan: Plan) -> Plan:
    """Copy the plan with every block in a separate memory named after the block."""
    names = [b.name for b in blocks(plan).buffers]
    return in_memories(plan, [Ram(name) for name in names], range(len(names)), [0] * len(names))


def joined(plan: Plan) -> tuple[tuple[str, str], ...]:
    """List the pairs of blocks that must lie in the same memory.

    A row table (`cascading.row_tables`) is in scratch and leads to elements of a ring, or to a copy behind the table if
    a run of pixels wraps around the ring's end: kernels reach both from one pointer.
    """
    if ROWS in plan.buffers:
        return ()
    overwritten, found = dict(plan.overwritten), dict[tuple[str, str], None]()
    for s, segment in enumerate(plan.segments):
        for o in segment.ops if segment.tile.by_pixels and segment.scratch_bytes else ():
            op = plan.graph.ops[o]
            for k, table in enumerate(op.kernels.row_tables):
                t, storage = op.inputs[k], plan.storages[op.inputs[k]]
                if table is not None and longest_run(plan.graph, op, k, segment.tile.columns, ring_slots(storage)):
                    block = f"tensor {t if storage.root is None else storage.root}"
                    found[f"scratch {s}", overwritten.get(block, block)] = None
    return tuple(found)
