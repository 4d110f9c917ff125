"""Where to cut an execution order into segments: dynamic programming over cut positions.

With c(i, j) the bytes of the segment `[i, j)`, the smallest peak is P(n) with P(j) = min over i < j of
max(P(i), c(i, j)). Among the cuts whose segments all stay within a cap, `cuts_within` takes those of least weight,
so that what fits as it is runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable

Cost = Callable[[int, int], int]
Weight = Callable[[int, int], int | None]


def smallest_peak(n: int, cost: Cost) -> int:
    """Bytes of the best cuts of `n` operators."""
    peak = [0] * (n + 1)
    for j in range(1, n + 1):
        peak[j] = min(max(peak[i], cost(i, j)) for i in range(j))
    return peak[n]


def cuts_within(n: int, weight: Weight) -> tuple[int, ...] | None:
    """Cut positions `(0, ..., n)` of least total weight; None where every way has a segment without weight.

    `weight(i, j)` is None where the segment exceeds the cap. Ties go to the longest last segment.
    """
    best: list[tuple[int, int] | None] = [(0, 0)] + [None] * n
    for j in range(1, n + 1):
        for i in range(j):
            before = best[i]
            if before is None or (more := weight(i, j)) is None:
                continue
            held = best[j]
            if held is None or (before[0] + more, i) < held:
                best[j] = (before[0] + more, i)
    if best[n] is None:
        return None
    cuts = [n]
    while cuts[-1]:
        step = best[cuts[-1]]
        assert step is not None
        cuts.append(step[1])
    return tuple(reversed(cuts))
