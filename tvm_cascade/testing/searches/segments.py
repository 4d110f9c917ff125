"""The simulation of segments, of `native/simulate.c`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_cascade.cascading.simulate import Cascade

Feeds = Sequence[Sequence[tuple[int, Sequence[int]]]]  # by member: its producers, and its steps' `AccessTables.waits`


def trace_in_python(cascade: Cascade) -> list[int]:
    """Return the places of a segment's members in execution order, one entry a step."""
    place = {o: k for k, o in enumerate(cascade.members)}
    total = [cascade.steps(o).count for o in cascade.members]
    feeds = [
        [(place[m], waits.tolist()) for m, waits in sorted(cascade.waits(o).items(), key=lambda feed: -feed[0])]
        for o in cascade.members
    ]
    sinks = [place[o] for o in cascade.sinks]
    rounds = max((total[o] for o in sinks), default=0)
    asked = [(o, -(-total[o] * (k + 1) // rounds)) for k in range(rounds) for o in sinks]
    asked.extend((o, total[o]) for o in reversed(range(len(total))))
    done = [0] * len(total)
    trace: list[int] = []
    for op, upto in asked:
        _advance(op, upto, feeds, done, trace)
    return trace


def _advance(op: int, upto: int, feeds: Feeds, done: list[int], trace: list[int]) -> None:
    """Run `op` until `upto` steps are done, its producers first as far as needed; append every step to `trace`."""
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


def most_held_in_python(cascade: Cascade) -> list[int]:
    """Compute the most units live at once of every output of every member of a segment, at least 1."""
    trace = np.asarray(trace_in_python(cascade), np.int64)
    at = {o: np.flatnonzero(trace == k) for k, o in enumerate(cascade.members)}
    found: list[int] = []
    for o in cascade.members:
        for t, made in zip(cascade.tables.written(o), cascade.steps(o).made, strict=True):
            live = [made[1 : len(at[o]) + 1] - r.keep[np.searchsorted(at[c], at[o])] for c, r in cascade.readers(t)]
            found.append(max((int(units.max(initial=1)) for units in live), default=1))
    return found
