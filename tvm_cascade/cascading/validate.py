"""Replays a plan on simulated memory, from the plan's data and the graph's windows alone; shares no code with the
planner.

Every byte of the arena carries a tag that says which byte of which tensor was written there last. A step reads the
rows of its windows and must find their tags, then writes its own row, and must not have clobbered what it was
reading. Inputs are there at the start, outputs must be there at the end. Row counters and scratch are written too, so
that they cannot overlap with anything that is still wanted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.cascading.plan import Plan, Segment, Storage
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Op, Tensor

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Replay:
    """What the replay counted."""

    peak: int  # bytes: the highest byte written, plus one
    macs: int  # multiply-accumulates executed


@dataclass
class _Memory:
    plan: Plan
    tags: Indices = field(init=False)
    offset: dict[str, int] = field(init=False)
    high: int = 0

    def __post_init__(self) -> None:
        self.tags = np.full(self.plan.allocation.peak, -1, np.int64)
        self.offset = dict(zip(self.plan.buffers, self.plan.allocation.offsets, strict=True))
        sizes = [t.bytes for t in self.plan.graph.tensors]
        self.base = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def write(self, addresses: Indices, tags: Indices | int, what: str) -> None:
        if addresses.size and (addresses.min() < 0 or addresses.max() >= len(self.tags)):
            raise ValidationError(f"{what} is written outside of the arena of {len(self.tags)} bytes")
        self.high = max(self.high, int(addresses.max()) + 1) if addresses.size else self.high
        self.tags[addresses] = tags

    def check(self, addresses: Indices, tags: Indices | int, what: str) -> None:
        if addresses.size and (addresses.max() >= len(self.tags) or np.any(self.tags[addresses] != tags)):
            raise ValidationError(f"{what} is not in memory any more, or not yet")


def validate(plan: Plan) -> Replay:
    """Raise `ValidationError` unless `plan` computes its graph within its arena; return what was counted.

    Checked: order and completeness of the traces, that every window finds its rows, lifetimes against segments, the
    peak and the multiply-accumulates.
    """
    _check_blocks(plan)
    memory = _Memory(plan)
    for t in plan.graph.inputs:
        memory.write(*_rows_of(memory, t, range(plan.graph.tensors[t].rows)), plan.graph.tensors[t].name)
    macs = 0
    for s, segment in enumerate(plan.segments):
        macs += _run(memory, s, segment)
    for t in plan.graph.outputs:
        memory.check(*_rows_of(memory, t, range(plan.graph.tensors[t].rows)), f"output {plan.graph.tensors[t].name}")
    if memory.high > plan.peak:
        raise ValidationError(f"{memory.high} bytes are written, the plan says {plan.peak}")
    if macs != plan.macs:
        raise ValidationError(f"{macs} multiply-accumulates are executed, the plan says {plan.macs}")
    ran = [o for segment in plan.segments for o in segment.ops]
    if not plan.graph.is_order(ran):
        raise ValidationError("the segments do not run every operator once in a topological order")
    if plan.bound > plan.peak:
        raise ValidationError(f"the bound of {plan.bound} bytes exceeds the peak of {plan.peak}")
    return Replay(memory.high, macs)


def _check_blocks(plan: Plan) -> None:
    names = set(plan.buffers)
    for storage in plan.storages:
        tensor = plan.graph.tensors[storage.tensor]
        if storage.root is None and tensor.bytes and f"tensor {tensor.index}" not in names:
            raise ValidationError(f"tensor {tensor.name} has no place in the arena")
        if storage.root is None and storage.size != min(storage.height, tensor.rows) * tensor.row_bytes:
            raise ValidationError(f"{storage.height} rows of tensor {tensor.name} are not {storage.size} bytes")


def _elements(tensor: Tensor, rows: range) -> Indices:
    """Byte indices, within the tensor, of `rows`, one row after the other."""
    grid = np.arange(tensor.bytes, dtype=np.int64)
    if tensor.row_axis is None:
        return grid if rows else grid[:0]
    outer = 1
    for d in tensor.shape[: tensor.row_axis]:
        outer *= d
    cube = grid.reshape(outer, tensor.rows, -1)
    return cube[:, rows.start : rows.stop].transpose(1, 0, 2).reshape(-1)


def _rows_of(memory: _Memory, t: int, rows: range) -> tuple[Indices, Indices]:
    """Addresses of `rows` of tensor `t` and the tags that belong there."""
    plan = memory.plan
    tensor, storage = plan.graph.tensors[t], plan.storages[t]
    root = t if storage.root is None else storage.root
    elements = _elements(tensor, rows)
    tags = memory.base[root] + storage.byte_offset + elements
    place = memory.offset.get(f"tensor {root}", 0) + storage.byte_offset
    if storage.height >= tensor.rows:
        return place + elements, tags
    within = np.arange(tensor.row_bytes, dtype=np.int64)
    slots = np.array([r % storage.height for r in rows], np.int64) * tensor.row_bytes
    return place + (slots[:, None] + within).reshape(-1), tags


def _run(memory: _Memory, s: int, segment: Segment) -> int:
    plan = memory.plan
    counts = Counter(segment.trace)
    whole: dict[int, int] = {}
    for o in segment.ops:
        op = plan.graph.ops[o]
        steps = 0 if op.view else (_row_count(plan, op) or 1)
        if counts[o] != steps:
            raise ValidationError(f"operator {op.name} runs {counts[o]} times, {steps} needed")
        whole[o] = steps
        _check_lives(plan, s, op)
    state = _block(memory, f"state {s}", segment.state_bytes)
    memory.write(state, -2, f"state {s}")
    done: Counter[int] = Counter()
    for o in segment.trace:
        if o not in whole:
            raise ValidationError(f"operator {o} runs in segment {s} and is not part of it")
        memory.check(state, -2, f"state {s}")
        _step(memory, s, segment, plan.graph.ops[o], done[o])
        done[o] += 1
    memory.check(state, -2, f"state {s}")
    return sum(plan.graph.ops[o].macs for o in segment.ops)


def _block(memory: _Memory, name: str, size: int) -> Indices:
    return np.arange(size, dtype=np.int64) + (memory.offset[name] if size else 0)


def _row_count(plan: Plan, op: Op) -> int | None:
    """Output rows of an operator that makes them one by one, None where it makes all at once."""
    rows = {plan.graph.tensors[t].rows for t in op.outputs}
    if op.opaque is not None or len(rows) != 1 or all(w is None for w in op.windows):
        return None
    return rows.pop()


def _check_lives(plan: Plan, s: int, op: Op) -> None:
    for t in (*op.inputs, *op.outputs):
        storage: Storage = plan.storages[t]
        if not op.view and not storage.lower <= s < storage.upper:
            raise ValidationError(f"tensor {plan.graph.tensors[t].name} is used in segment {s}, where it is not live")


def _step(memory: _Memory, s: int, segment: Segment, op: Op, k: int) -> None:
    plan = memory.plan
    by_row = _row_count(plan, op) is not None
    reads = [_rows_of(memory, t, rows) for t, rows in _wanted(plan, op, k, by_row)]
    for (addresses, tags), (t, _) in zip(reads, _wanted(plan, op, k, by_row), strict=True):
        memory.check(addresses, tags, f"step {k} of {op.name}: an input row of {plan.graph.tensors[t].name}")
    if op.scratch_bytes > segment.scratch_bytes:
        raise ValidationError(f"operator {op.name} needs {op.scratch_bytes} bytes of scratch")
    memory.write(_block(memory, f"scratch {s}", op.scratch_bytes), -3, f"scratch of {op.name}")
    written = np.zeros(len(memory.tags), bool)
    for t in op.outputs:
        rows = range(k, k + 1) if by_row else range(plan.graph.tensors[t].rows)
        addresses, tags = _rows_of(memory, t, rows)
        memory.write(addresses, tags, plan.graph.tensors[t].name)
        if written[addresses].any():
            raise ValidationError(f"outputs of {op.name} overlap")
        written[addresses] = True
    for addresses, _ in reads:
        if written[addresses].any():
            raise ValidationError(f"step {k} of {op.name} writes over a row that it reads")


def _wanted(plan: Plan, op: Op, k: int, by_row: bool) -> list[tuple[int, range]]:
    """The rows of each input that step `k` reads, tap by tap."""
    wanted: list[tuple[int, range]] = []
    for i, t in enumerate(op.inputs):
        rows = plan.graph.tensors[t].rows
        window = op.windows[i] if i < len(op.windows) else None
        if window is None or not by_row:
            wanted.append((t, range(rows)))
            continue
        taps = [window.first(k) + n * window.dilation for n in range(window.extent)]
        wanted.extend((t, range(r, r + 1)) for r in taps if 0 <= r < rows)
    return wanted
