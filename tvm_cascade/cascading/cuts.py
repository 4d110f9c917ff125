"""Where to cut an execution order into segments: dynamic programming over cut positions.

With c(i, j) the bytes of the segment `[i, j)`, the smallest peak is P(n) with P(j) = min over i < j of
max(P(i), c(i, j)). Among the cuts whose segments all stay within a cap, `cuts_within` takes those of least weight,
so that what fits as it is runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Cost = Callable[[int, int], int]
Weight = Callable[[int, int], tuple[int, int] | None]


def smallest_peak(n: int, cost: Cost) -> int:
    """Bytes of the best cuts of `n` operators."""
    peak = [0] * (n + 1)
    for j in range(1, n + 1):
        peak[j] = min(max(peak[i], cost(i, j)) for i in range(j))
    return peak[n]


def cuts_within(n: int, weight: Weight) -> tuple[int, ...] | None:
    """Cut positions `(0, ..., n)` of least total weight; None where every way has a segment without weight.

    `weight(i, j)` is None where the segment exceeds the cap, else what to minimise, first things first. Ties go to the
    longest last segment.
    """
    best: list[tuple[int, int, int] | None] = [(0, 0, 0)] + [None] * n
    for j in range(1, n + 1):
        for i in range(j):
            before = best[i]
            if before is None or (more := weight(i, j)) is None:
                continue
            held, found = best[j], (before[0] + more[0], before[1] + more[1], i)
            if held is None or found < held:
                best[j] = found
    if best[n] is None:
        return None
    cuts = [n]
    while cuts[-1]:
        step = best[cuts[-1]]
        assert step is not None
        cuts.append(step[2])
    return tuple(reversed(cuts))


def pareto_cuts(n: int, ways: Callable[[int, int], Iterable[tuple[int, int]]]) -> tuple[tuple[int, int], ...]:
    """Every trade of peak bytes against extra work that no other cuts beat: ascending bytes, descending work.

    `ways(i, j)` gives bytes and extra work of the segment in each of its forms. Exact: a segment's cost does not depend
    on how those before it were cut, so dominated trades never come back.
    """
    best: list[list[tuple[int, int]]] = [[(0, 0)]]
    for j in range(1, n + 1):
        found: set[tuple[int, int]] = set()
        for i in range(j):
            forms = _undominated(ways(i, j))
            found.update((max(b, peak), extra + work) for b, extra in forms for peak, work in best[i])
        best.append(_undominated(found))
    return tuple(best[n])


def _undominated(trades: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    for trade in sorted(trades):
        if not kept or trade[1] < kept[-1][1]:
            kept.append(trade)
    return kept
