"""Table of a plan's operators in execution order: kernel calls, tiles, live bytes, and the outputs' storage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tvm_cascade.cascading.plan import Plan, Segment, Storage
from tvm_cascade.cascading.regions import partition
from tvm_cascade.graph import Tensor
from tvm_cascade.report.text import block_rows, live_bytes
from tvm_cascade.schema.plan import Region, Ring, Step


def step_rows(plan: Plan) -> list[Step]:
    """List a record per operator, and per streamed input's source, in execution order.

    `live_bytes` is the space occupied by blocks while the operator's segment runs, shared bytes counted once; `steps`
    the step count; `by` a step's tile; `rings` the outputs that never exist whole.
    """
    return [row for _, row in operator_rows(plan)]


def operator_rows(plan: Plan) -> list[tuple[int | None, Step]]:
    """List the records of `step_rows`, each with the operator's index; None for sources."""
    blocks = block_rows(plan)
    region_of = partition(plan.graph).region_of
    rows: list[tuple[int | None, Step]] = []
    for k, segment in enumerate(plan.segments):
        live = live_bytes(blocks, k)
        steps = Counter(segment.trace)  # in the order of first steps
        ranks = {o: rank for rank, o in enumerate(steps)}
        working = (o for o in segment.ops if not plan.graph.ops[o].view)
        order = sorted(working, key=lambda o: (ranks.get(o, len(ranks)), o))
        for t in segment.streamed:
            name = f"rows of {plan.graph.tensors[t].name}"
            source: Step = {
                "segment": k,
                "region": None,
                "live_bytes": live,
                "operator": name,
                "kind": "source",
                "steps": steps[-1 - t],
                "by": "1 row",
                "output": _outputs(plan, (t,)),
                "rings": _rings(plan, (t,)),
            }
            rows.append((None, source))
        for o in order:
            op = plan.graph.ops[o]
            row: Step = {
                "segment": k,
                "region": region_of[o],
                "live_bytes": live,
                "operator": op.name,
                "kind": op.kind,
                "steps": steps[o] * max(len(segment.stripes), 1),
                "by": _makes(plan, segment, o, steps[o]),
                "output": _outputs(plan, op.outputs),
                "rings": _rings(plan, op.outputs),
            }
            rows.append((o, row))
    return rows


def step_table(plan: Plan) -> str:
    """Return `step_rows` as text."""
    rows = list(step_rows(plan))
    width = max(28, *(len(row["operator"]) + 1 for row in rows))
    lines = [f"{'segment':>7} {'live bytes':>10} {'steps':>7}  {'operator':<{width}} {'a step makes':<16} output"]
    last = -1
    for row in rows:
        fresh = row["segment"] != last
        last = int(row["segment"])
        segment, live = (str(last), str(row["live_bytes"])) if fresh else ("", "")
        lines.append(
            f"{segment:>7} {live:>10} {row['steps']:>7}  {row['operator']:<{width}} {row['by']:<16} {row['output']}".rstrip()
        )
    return "\n".join(lines)


def _makes(plan: Plan, segment: Segment, op: int, steps: int) -> str:
    if op in segment.accumulating:
        return "sums"
    out = plan.graph.tensors[plan.graph.ops[op].outputs[0]]
    if segment.stripes:
        return f"1 row of {len(segment.stripes)} stripes"
    if steps == 1:
        return "all"
    tile = segment.tile
    if tile.by_pixels and steps > out.rows:
        return f"{tile.columns} pixel{'s' if tile.columns > 1 else ''}"
    return "1 row" if tile.rows == 1 else f"{tile.rows} rows"


def _outputs(plan: Plan, outputs: Sequence[int]) -> str:
    """Format the storage of an operator's outputs."""
    return ", ".join(_storage_text(plan.graph.tensors[t], plan.storages[t]) for t in outputs)


def _rings(plan: Plan, outputs: Sequence[int]) -> list[Ring]:
    """List a record for each output in a ring."""
    tensors = [(plan.graph.tensors[t], plan.storages[t]) for t in outputs]
    return [_ring(t, s) for t, s in tensors if s.is_ring(t.rows)]


def _storage_text(tensor: Tensor, storage: Storage) -> str:
    if not storage.is_ring(tensor.rows):
        return f"{'view of ' if storage.root is not None else ''}{storage.size} bytes"
    if storage.pixels:
        return f"ring of {storage.pixels} of {tensor.rows * tensor.columns} pixels, {storage.size} bytes"
    if storage.row_addresses:
        return f"{storage.height} of {tensor.rows} rows, {storage.size} bytes"
    wide = f" x {storage.columns} columns" if storage.columns else ""
    return f"ring of {storage.height} of {tensor.rows} rows{wide}, {storage.size} bytes"


def _ring(tensor: Tensor, storage: Storage) -> Ring:
    return {
        "tensor": tensor.name,
        "bytes": storage.size,
        "whole_bytes": tensor.bytes,
        "rows": storage.height,
        "pixels": storage.pixels,
        "columns": storage.columns,
    }


def region_rows(plan: Plan) -> list[Region]:
    """List a record per region: operators, segments, and the largest live bytes."""
    blocks = block_rows(plan)
    rows: list[Region] = []
    for ops in partition(plan.graph).regions:
        inside = set(ops)
        segments = [k for k, s in enumerate(plan.segments) if any(o in inside for o in s.ops)]
        rows.append(
            {
                "operators": [plan.graph.ops[o].name for o in ops],
                "segments": segments,
                "live_bytes": max((live_bytes(blocks, k) for k in segments), default=0),
            }
        )
    return rows
