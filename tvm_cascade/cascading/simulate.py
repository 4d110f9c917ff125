"""Demand-driven execution of operators, step by step, and the exact heights of their rolling buffers.

Every sink asks for its next row, each operator first asks its producers for the rows that its step reads: nothing is
made before it is needed, and no row twice. A tensor's ring is as high as the largest number of consecutive rows from
the oldest one still to be read to the newest one made; one row less would overwrite a row that is still wanted. (For
a chain of 3x3 convolutions that is 3, 3, 3, ..., where a static stage-by-stage schedule needs 8, 7, 6, ...)

A closed form where every tensor has one reader: max over steps k of `need[k] - keep[k]`. `tests/cascading` holds the
two against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm_cascade.cascading.flow import Flow


def demand_trace(flow: Flow, ops: Sequence[int]) -> tuple[int, ...]:
    """The operators of a segment in execution order, one entry a step; views do not occur.

    Rows that nothing in the segment reads are made at the end.
    """
    inside = [o for o in ops if not flow.graph.ops[o].view]
    feeds = _feeds(flow, inside)
    total = {o: flow.steps(o) for o in inside}
    done = dict.fromkeys(inside, 0)
    trace: list[int] = []
    for op, upto in _requests(flow, inside, total):
        _advance(op, upto, feeds, done, trace)
    return tuple(trace)


def _requests(flow: Flow, inside: Sequence[int], total: Mapping[int, int]) -> list[tuple[int, int]]:
    """Sinks in turn, each in proportion to its rows, then every operator to its end."""
    members = set(inside)
    read = {p for o in inside for r in flow.reads(o) if (p := _maker(flow, r.tensor)) in members}
    sinks = [o for o in inside if o not in read]
    rounds = max((total[o] for o in sinks), default=0)
    asked = [(o, -(-total[o] * (k + 1) // rounds)) for k in range(rounds) for o in sinks]
    return asked + [(o, total[o]) for o in reversed(inside)]


def _maker(flow: Flow, root: int) -> int | None:
    return flow.graph.producer[root]


def _feeds(flow: Flow, inside: Sequence[int]) -> dict[int, list[tuple[int, list[int]]]]:
    """For each operator its producers in the segment, with the steps of theirs that each step of it waits for."""
    members = set(inside)
    feeds: dict[int, list[tuple[int, list[int]]]] = {}
    for o in inside:
        table: list[tuple[int, list[int]]] = []
        for read in flow.reads(o):
            maker = _maker(flow, read.tensor)
            if maker is not None and maker in members:
                table.append((maker, [flow.steps_for(maker, rows) for rows in read.need]))
        feeds[o] = sorted(table, key=lambda f: -f[0])
    return feeds


def _advance(
    op: int, upto: int, feeds: Mapping[int, list[tuple[int, list[int]]]], done: dict[int, int], trace: list[int]
) -> None:
    pending = [(op, upto)]
    while pending:
        o, goal = pending[-1]
        k = done[o]
        if k >= goal:
            pending.pop()
            continue
        for maker, waits in feeds[o]:
            if done[maker] < waits[k]:
                pending.append((maker, waits[k]))
                break
        else:
            done[o] = k + 1
            trace.append(o)


def ring_heights(flow: Flow, ops: Sequence[int], trace: Sequence[int]) -> dict[int, int]:
    """Rows that each root made in the segment must hold so that readers in the segment find what they want.

    Readers outside of the segment are the caller's business: such a tensor is whole.
    """
    members = set(ops)
    made_by = {o: [t for t in flow.graph.ops[o].outputs] for o in ops if not flow.graph.ops[o].view}
    readers = {
        t: [(c, r) for c in flow.readers[t] if c in members for r in flow.reads(c) if r.tensor == t]
        for outputs in made_by.values()
        for t in outputs
    }
    done = dict.fromkeys(made_by, 0)
    height = dict.fromkeys(readers, 1)
    for o in trace:
        done[o] += 1
        for t in made_by[o]:
            newest = flow.made(o, t, done[o])
            for c, read in readers[t]:
                height[t] = max(height[t], newest - read.keep[done[c]])
    return {t: _usable(flow, t, h, [r for _, r in readers[t]]) for t, h in height.items()}


def _usable(flow: Flow, tensor: int, height: int, reads: Sequence) -> int:
    """The height rounded to what can be addressed: all rows where a reader cannot follow a ring."""
    rows = flow.graph.tensors[tensor].rows
    if any(not r.ringable for r in reads):
        return rows
    return min(rows, max(height, *(r.reach for r in reads), 1)) if reads else rows


def segment_heights(flow: Flow, ops: Sequence[int]) -> dict[int, int]:
    """`ring_heights` of the demand-driven trace."""
    return ring_heights(flow, ops, demand_trace(flow, ops))
