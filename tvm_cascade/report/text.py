"""Plans as text: the summary and the memory map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tvm_cascade.cascading import Bounds, Plan, Storage, bound_of
from tvm_cascade.cascading.plan import ROWS
from tvm_cascade.schema.plan import Block, Memory, Placed
from tvm_cascade.search_monitor import above_text
from tvm_cascade.sizes import bytes_and_unit

Traffic = Sequence[tuple[int, int]]  # bytes read and written, by memory of a plan


def _name(plan: Plan, block: str) -> str:
    kind, _, number = block.partition(" ")
    if block == ROWS:
        return f"rows of {sum(bool(s.row_addresses) for s in plan.storages)} tensors, each at an address of its own"
    if kind == "accumulator":
        return f"sums of {plan.graph.ops[int(number)].name}"
    if kind == "kept":
        return f"columns kept of {plan.graph.tensors[int(number)].name}"
    if kind != "tensor":
        return f"{'row counters' if kind == 'state' else kind} of segment {number}"
    tensor = plan.graph.tensors[int(number)]
    storage = plan.storages[tensor.index]
    before = tensor.index in {t for t, _ in plan.graph.states}
    what = ", as a call finds it" if before else _ring(storage, tensor.rows)
    return f"{tensor.name} {tensor.dtype}{list(tensor.shape)}{what}"


def _ring(storage: Storage, rows: int) -> str:
    if not storage.is_ring(rows):
        return ""
    if storage.pixels:
        return f", ring of {storage.pixels} pixels"
    return f", ring of {storage.height} of {rows} rows"


def block_rows(plan: Plan) -> list[Block]:
    """List a record per block in the arena: name, kind, offset and size in bytes, lifetime in segments."""
    rows: list[Block] = []
    segment_of = {o: k for k, s in enumerate(plan.segments) for o in s.ops}
    for block, offset in zip(plan.buffers, plan.allocation.offsets, strict=True):
        kind, _, number = block.partition(" ")
        k = int(number)
        if block == ROWS:
            scattered = [s for s in plan.storages if s.row_addresses]
            size, ring = plan.rows_end - offset, True
            lower, upper = min(s.lower for s in scattered), max(s.upper for s in scattered)
        elif kind in ("tensor", "kept"):
            storage, tensor = plan.storages[k], plan.graph.tensors[k]
            size = storage.size if kind == "tensor" else storage.halo_columns * tensor.bytes // tensor.columns
            lower, upper, ring = storage.lower, storage.upper, kind == "tensor" and storage.is_ring(tensor.rows)
        else:
            if kind == "accumulator":
                size, lower = plan.graph.ops[k].kernels.accumulator_bytes, segment_of[k]
            else:
                size, lower = getattr(plan.segments[k], f"{kind}_bytes"), k  # state or scratch
            upper, ring = lower + 1, False
        name = _name(plan, block)
        use = plan.memory_at(offset)
        at = offset - use.start
        row: Block = {
            "name": name,
            "kind": kind,
            "offset": at,
            "bytes": size,
            "lower": lower,
            "upper": upper,
            "ring": ring,
        }
        rows.append({**row, "memory": use.ram.name} if use.ram.name else row)
    return rows


def state_rows(plan: Plan) -> list[Placed]:
    """List a record for every state kept from one call to the next."""
    made = dict(zip(plan.buffers, plan.allocation.offsets, strict=True))
    rows: list[Placed] = []
    for before, _ in plan.graph.states:
        tensor, use = plan.graph.tensors[before], plan.memory_at(made[f"tensor {before}"])
        row: Placed = {
            "name": tensor.name,
            "offset": made[f"tensor {before}"] - use.start,
            "bytes": tensor.bytes,
        }
        rows.append({**row, "memory": use.ram.name} if use.ram.name else row)
    return rows


def memory_rows(plan: Plan, weights: Mapping[str, int], traffic: Traffic = ()) -> list[Memory]:
    """List a record for every memory used by the plan.

    `weights` are bytes copied there besides the plan, `traffic` bytes of activations read and written in an inference.
    """
    rows: list[Memory] = []
    for use, (read, written) in zip(plan.placed, traffic or [(0, 0)] * len(plan.placed), strict=True):
        taken = use.bytes + weights.get(use.ram.name, 0)
        row: Memory = {
            "name": use.ram.name,
            "capacity_bytes": use.ram.capacity or 0,
            "peak_bytes": taken,
            "read_bytes": read,
            "written_bytes": written,
        }
        rows.append(row if use.ram.address is None else {**row, "address": use.ram.address})
    return rows


def memory_table(plan: Plan, weights: Mapping[str, int], traffic: Traffic = ()) -> str:
    """Format a plan's memories, a line each; `weights` and `traffic` as in `memory_rows`."""
    lines = [f"{'bytes':>9} {'of':>9} {'read':>9} {'written':>9} {'cycles/byte':>11}  memory"]
    for use, row in zip(plan.placed, memory_rows(plan, weights, traffic), strict=True):
        taken = f"{row['peak_bytes']:>9} {row['capacity_bytes']:>9} {row['read_bytes']:>9} {row['written_bytes']:>9}"
        lines.append(f"{taken} {use.ram.cycles_per_byte:>11g}  {use.ram.name}")
    return "\n".join(lines)


def memory_map(plan: Plan, width: int = 48) -> str:
    """Format the arena, a line per block: address range, lifetime over the segments, name."""
    count = max(len(plan.segments), 1)
    lines = [f"{'offset':>9} {'bytes':>9}  {'life over ' + str(count) + ' segments':<{width}}  block"]
    order = [use.ram.name for use in plan.memories]
    for row in sorted(block_rows(plan), key=lambda r: (order.index(r.get("memory", order[0])), r["offset"], r["name"])):
        lower, upper = row["lower"], row["upper"]
        start, stop = lower * width // count, max(upper * width // count, lower * width // count + 1)
        bar = ("·" * start + ("▒" if row["ring"] else "█") * (stop - start)).ljust(width, "·")
        where = f"{row['memory']}: " if "memory" in row else ""
        lines.append(f"{row['offset']:>9} {row['bytes']:>9}  {bar}  {where}{row['name']}")
    return "\n".join(lines)


def live_bytes(rows: Sequence[Block], segment: int) -> int:
    """Count the arena bytes occupied by blocks while a segment runs; shared bytes count once."""
    return covered((r["offset"], r["offset"] + r["bytes"]) for r in rows if r["lower"] <= segment < r["upper"])


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """Count the addresses in at least one of the spans `[start, stop)`."""
    total, reached = 0, 0
    for start, stop in sorted(spans):
        total += max(stop - max(start, reached), 0)
        reached = max(reached, stop)
    return total


def peak_segment(plan: Plan) -> int:
    """Find the segment with the most live bytes, the first in a tie."""
    rows = block_rows(plan)
    return max(range(len(plan.segments)), key=lambda k: (live_bytes(rows, k), -k), default=0)


def work_factor(plan: Plan) -> float:
    """Return a plan's multiply-accumulates relative to the network's."""
    return plan.macs / plan.baseline_macs if plan.baseline_macs else 1.0


def smallest_of(plan: Plan, frontier: Iterable[tuple[int, float]]) -> int:
    """Return the bytes of the smallest plan with no more work than `plan`, on the frontier or itself."""
    return min([plan.peak, *(peak for peak, factor in frontier if factor <= work_factor(plan))])


def does_twice(plan: Plan) -> bool:
    """Test whether a plan computes anything twice: then no bound is proven, and bounds at 1.00x do not apply."""
    return plan.macs > plan.baseline_macs


def summary(plan: Plan, bounds: Bounds | None = None, frontier: Iterable[tuple[int, float]] = ()) -> str:
    """Format peak, baseline, bounds and work, a line each.

    For a plan larger than the smallest with no more work on its `frontier`, as a cap allows, only the smallest's gap is
    told.
    """
    gain = plan.baseline_peak / plan.peak if plan.peak else 1.0
    least = smallest_of(plan, frontier)
    what = "the arena" if least == plan.peak else f"the smallest plan found, {least} bytes,"
    twice, every = does_twice(plan), bound_of(plan)
    lines = [
        f"arena           {bytes_and_unit(plan.peak)}, everything counted",
        f"layer by layer  {bytes_and_unit(plan.baseline_peak)}, {gain:.2f}x the arena",
    ]
    if twice:
        lines.append("lower bound     none is proven where work is done twice")
    else:
        lines += [
            f"lower bound     {plan.bound} bytes for plans of this search: {what} is {above_text(least, plan.bound)}",
            f"                {every} bytes for any schedule: {what} is {above_text(least, every)}",
        ]
    if bounds is not None:
        by_name = {"rows": bounds.rows, "pixels": bounds.pixels}
        scattered = any(s.row_addresses for s in plan.storages)
        left_out = not twice and plan.peak < min(bounds.rows, bounds.pixels)
        gaps = ", ".join(f"{bound} bytes by {name}" for name, bound in by_name.items())
        if twice:
            note = "; this plan does work twice and may take less"
        elif scattered:
            note = "; this plan addresses rows by a table and may take less"
        elif left_out:
            note = "; plans may take less that leave out columns without a reader"
        else:
            note = ""
        lines.append(f"bounds at 1.00x {gaps}{note}")
    lines.append(f"work            {plan.macs} multiply-accumulates ({work_factor(plan):.2f}x)")
    if states := state_rows(plan):
        lines.append(f"states          {sum(s['bytes'] for s in states)} bytes of the arena are kept from call to call")
    return "\n".join(lines)
