"""Assignment of concurrent groups to CPU workers: longest processing time first."""

from __future__ import annotations

from collections.abc import Sequence


def pack(durations: Sequence[float], workers: int) -> tuple[tuple[int, ...], ...]:
    """Divide groups (by index) among workers, in execution order; idle workers are left out; ties by index.

    Longest processing time first: at most 4/3 - 1/(3 workers) times the best makespan (Graham 1969).
    """
    lanes: list[list[int]] = [[] for _ in range(max(1, workers))]
    loads = [0.0] * len(lanes)
    for g in sorted(range(len(durations)), key=lambda i: (-durations[i], i)):
        lane = min(range(len(lanes)), key=lambda w: (loads[w], w))
        lanes[lane].append(g)
        loads[lane] += durations[g]
    return tuple(tuple(lane) for lane in lanes if lane)
