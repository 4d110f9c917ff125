"""A plan's states at one end of the memory, so a bundle of networks shares the rest.

A state is live from the first step to the last, so every other block lies wholly below or wholly above. Taking the
states out, closing the gaps and adding the states at one end changes no other overlap. A driver takes a pointer for
every `Area`: one for a memory's states, and one for all other blocks. If several networks share an arena, each has a
separate array for states, and only the other areas are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tvm_cascade.cascading.memories import joined
from tvm_cascade.cascading.plan import ROWS, MemoryUse, Plan
from tvm_cascade.cascading.segments import aligned
from tvm_cascade.graph import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class Area:
    """Addresses `[start, start + bytes)` of a plan, reached by a driver from one pointer."""

    label: str  # name of the driver's pointer
    start: int
    bytes: int
    kept: bool  # holds states, which no other network may overwrite between two runs

    @property
    def end(self) -> int:
        """Return the first address after the area."""
        return self.start + self.bytes


def areas(plan: Plan) -> tuple[Area, ...]:
    """Return the areas of a plan by ascending address: each memory, cut in two if the states lie at one end.

    A memory with states among other blocks is a single area, kept as a whole.
    """
    return tuple(area for use in plan.memories for area in _areas_of(plan, use))


def area_at(found: Sequence[Area], address: int) -> Area:
    """Return the area with an address; the gap behind an area belongs to that area."""
    return next((area for area in reversed(found) if area.start <= address), found[0])


def _areas_of(plan: Plan, use: MemoryUse) -> Iterator[Area]:
    label, spans = use.ram.label, _state_spans(plan, use)
    if not spans:
        yield Area(label, use.start, use.bytes, False)
        return
    others = [a for a in _begins(plan, use) if not any(low <= a < high for low, high in spans)]
    low, high = spans[0][0], spans[-1][1]
    bound = {f"tensor {t}" for pair in plan.graph.states for t in pair}
    bound_to_others = any(bound & set(pair) for pair in joined(plan))
    if others and min(others) >= high and not bound_to_others:
        yield Area(f"{label}_kept", use.start, min(others) - use.start, True)
        yield Area(label, min(others), use.end - min(others), False)
    elif others and max(others) < low and not bound_to_others:
        yield Area(label, use.start, low - use.start, False)
        yield Area(f"{label}_kept", low, use.end - low, True)
    else:
        yield Area(f"{label}_kept", use.start, use.bytes, True)


def states_at_one_end(plan: Plan, alignment: int) -> Plan:
    """Return `plan` with each memory's states at the end, or at the start if that takes fewer bytes."""
    unit = max((alignment, *(ITEM_BYTES[t.dtype] for t in plan.graph.tensors)))
    for use in plan.memories:
        plan = _moved(plan, use, unit)
    return plan


def _moved(plan: Plan, use: MemoryUse, unit: int) -> Plan:
    spans = _state_spans(plan, use)
    begins = sorted({*_begins(plan, use), *(low for low, _ in spans)})
    if not spans or len(_areas_of_kinds(plan, use)) == 2:
        return plan
    top, gaps = use.end, list[tuple[int, int]]()  # of the blocks that are no states; where a gap begins, and its bytes
    for low, high in reversed(spans):
        above = next((a for a in begins if a >= high), None)
        top = low if top <= aligned(high, unit) else top
        gaps.append((low, 0 if above is None else (above - low) // unit * unit))

    def closed(address: int) -> int:
        return address - sum(size for low, size in gaps if low < address)

    packed = sum(aligned(high - low, unit) for low, high in spans)
    padding = max(aligned(high - low, unit) - (high - low) for low, high in spans)
    work = closed(top) - use.start
    last, first = aligned(work, unit) + packed - padding, packed + work
    if min(last, first) > use.bytes:
        return plan
    shift, at = (packed, use.start) if first < last else (0, use.start + aligned(work, unit))
    places = dict[tuple[int, int], int]()
    for low, high in sorted(spans, key=lambda span: aligned(span[1] - span[0], unit) - (span[1] - span[0])):
        places[low, high] = at
        at += aligned(high - low, unit)

    def moved(address: int) -> int:
        if not use.start <= address < use.end:
            return address
        inside = next((span for span in spans if span[0] <= address < span[1]), None)
        return places[inside] + address - inside[0] if inside else closed(address) + shift

    return _with_addresses(plan, replace(use, bytes=min(last, first)), moved)


def _areas_of_kinds(plan: Plan, use: MemoryUse) -> set[bool]:
    return {area.kept for area in _areas_of(plan, use)}


def _with_addresses(plan: Plan, use: MemoryUse, moved: Callable[[int], int]) -> Plan:
    """Return `plan` with each address mapped by `moved`, and with the bytes in `use` for the memory at each start."""
    storages = tuple(replace(s, row_addresses=tuple(map(moved, s.row_addresses))) for s in plan.storages)
    placed = tuple(use if own.start == use.start else own for own in plan.placed)
    peak = placed[-1].end if placed else use.end
    first = min((a for s in storages for a in s.row_addresses), default=0)
    blocks = zip(plan.buffers, plan.allocation.offsets, strict=True)
    offsets = tuple(first if name == ROWS else moved(at) for name, at in blocks)
    allocation = replace(plan.allocation, offsets=offsets, peak=peak)
    return replace(plan, allocation=allocation, storages=storages, placed=placed)


def _state_spans(plan: Plan, use: MemoryUse) -> list[tuple[int, int]]:
    """Return the addresses `[low, high)` of all states in a memory, ascending."""
    at = dict(zip(plan.buffers, plan.allocation.offsets, strict=True))
    spans = {(at[f"tensor {t}"], at[f"tensor {t}"] + plan.graph.tensors[t].bytes) for t, _ in plan.graph.states}
    return sorted(span for span in spans if plan.memory_at(span[0]) == use)


def _begins(plan: Plan, use: MemoryUse) -> list[int]:
    """Return the first addresses of all blocks and rows in a memory."""
    blocks = (a for name, a in zip(plan.buffers, plan.allocation.offsets, strict=True) if name != ROWS)
    rows = (a for s in plan.storages for a in s.row_addresses)
    return [a for a in (*blocks, *rows) if plan.memory_at(a) == use]
