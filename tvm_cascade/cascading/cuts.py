"""Where to cut an execution order into segments: dynamic programming over cut positions.

With c(i, j) the bytes of the segment `[i, j)`, the smallest peak is P(n) with P(j) = min over i < j of
max(P(i), c(i, j)). Among the cuts whose segments all stay within a cap, `cuts_within` takes those of least weight,
so that operators that fit without cascading are not cascaded.

Costs are expensive to compute and most are irrelevant, so both are shortest-path searches over cut positions (A*) that
compute a segment's cost only when its cheap lower bound, with that of the best way from its end on, is at the top of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.search_monitor import monitor

_OUT_OF_REACH = 1 << 60  # bytes

T = TypeVar("T")
Cost = Callable[[int, int, int], int]
Weight = Callable[[int, int], tuple[int, int] | None]


def smallest_peak(n: int, cost: Cost, lower_bound: NDArray[np.int64]) -> int:
    """The smallest peak, in bytes, over all cuts of `n` operators into segments.

    `cost(i, j, peak)` are the bytes of segment [i, j), or any number up to `peak` where they are no more than that, and
    `lower_bound[i, j]` is no more than these bytes. Raises `SearchStopped` where a limit strikes first.
    """
    limit, rest = monitor(), _peaks_after(lower_bound)
    done = [False] * (n + 1)
    # bytes with the least for what follows, start, end, whether the cost is in them
    heap: list[tuple[int, int, int, bool]] = [(int(rest[0]), 0, 0, True)]
    while heap:
        peak, start, end, known = heappop(heap)
        if done[end]:
            continue
        if not known:
            limit.check()
            heappush(heap, (max(peak, cost(-start, end, peak)), start, end, True))
            continue
        if end == n:
            return peak
        done[end] = True
        needs = np.maximum(lower_bound[end, end + 1 :], rest[end + 1 :])
        for k in [0, *np.flatnonzero(needs[1:] < _OUT_OF_REACH) + 1]:
            j = end + 1 + int(k)
            if not done[j]:
                heappush(heap, (max(int(needs[k]), peak), -end, j, False))
    raise ValueError("positions without an end")


def _peaks_after(lower_bound: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each position the smallest peak of cuts from there to the end, of segments that need their lower bounds."""
    n = len(lower_bound) - 1
    after = np.zeros(n + 1, np.int64)
    for i in range(n - 1, -1, -1):
        after[i] = np.maximum(after[i + 1 :], lower_bound[i, i + 1 :]).min()
    return after


def cuts_within(
    n: int, weight: Weight, least: Sequence[Sequence[tuple[int, int]]], price: int
) -> tuple[int, ...] | None:
    """Cut positions `(0, ..., n)` of least total weight; None where no cuts fit.

    Parameters
    ----------
    weight : Callable
        `weight(i, j)` is added to the total for segment [i, j); totals are compared by their first component, then by
        their second. None where the segment exceeds the cap. Ties go to the longest last segment.
    least : Sequence
        `least[i]` are all ends j of segments [i, j) that may stay within the cap, each with a lower bound of the second
        component of `weight`; none of the first is negative.
    price : int
        Is added to the second component for every segment.

    Raises `SearchStopped` where a limit strikes first.
    """
    limit = monitor()
    rest = [0] * (n + 1)  # least total of the second component from there on
    for i in range(n - 1, -1, -1):
        rest[i] = min((more + rest[j] for j, more in least[i]), default=_OUT_OF_REACH) + price
    came: list[int | None] = [None] * (n + 1)
    heap: list[tuple[int, int, int, int, int, int, bool]] = [(0, rest[0], 0, 0, 0, 0, True)]
    while heap:
        first, second, i, j, before, after, known = heappop(heap)
        if came[j] is not None or second >= _OUT_OF_REACH:
            continue
        if not known:
            limit.check()
            more = weight(i, j)
            if more is not None:
                heappush(heap, (before + more[0], after + more[1] + price + rest[j], i, j, before, after, True))
            continue
        came[j] = i
        if j == n:
            break
        here = second - rest[j]
        for k, calls in least[j]:
            if came[k] is None:
                heappush(heap, (first, here + calls + price + rest[k], j, k, first, here, False))
    if came[n] is None:
        return None
    cuts = [n]
    while cuts[-1]:
        cuts.append(came[cuts[-1]] or 0)
    return tuple(reversed(cuts))


def least_peak(lower_bound: NDArray[np.int64]) -> int:
    """The smallest peak, in bytes, over all cuts of segments that need no more than their lower bounds."""
    peak = np.zeros(len(lower_bound), np.int64)
    for j in range(1, len(peak)):
        peak[j] = np.maximum(peak[:j], lower_bound[:j, j]).min()
    return int(peak[-1])


def within_reach(lower_bound: NDArray[np.int64], ceiling: int) -> NDArray[np.bool_]:
    """For each segment [i, j) whether it may be part of cuts with a peak below `ceiling`, by the lower bounds alone."""
    n = len(lower_bound) - 1
    before, after = np.zeros(n + 1, np.int64), _peaks_after(lower_bound)
    for j in range(1, n + 1):
        before[j] = np.maximum(before[:j], lower_bound[:j, j]).min()
    return np.maximum(np.maximum(before[:, None], after[None, :]), lower_bound) < ceiling


def pareto_cuts(
    n: int, forms: Callable[[int, int], Iterable[tuple[int, int]]], useful: NDArray[np.bool_], most: int
) -> tuple[tuple[int, int], ...]:
    """The Pareto front of (peak bytes, extra work) over all cuts, by ascending bytes and descending work.

    Exact: a segment's cost does not depend on how those before it were cut, so a dominated trade never becomes useful again.

    Parameters
    ----------
    forms : Callable
        `forms(i, j)` are (bytes, extra work) of each way to run segment [i, j).
    useful : array
        Whether segment [i, j) is tried at all (`within_reach`).
    most : int
        Largest extra work of all segments together.

    Raises `SearchStopped` where a limit strikes first.
    """
    limit = monitor()
    best: list[list[tuple[int, int]]] = [[(0, 0)]]
    for j in range(1, n + 1):
        trades: set[tuple[int, int]] = set()
        for i in range(j):
            if not useful[i, j] or not best[i]:
                continue
            limit.check()
            trades.update(
                (max(b, peak), extra + work)
                for b, extra in undominated(forms(i, j))
                for peak, work in best[i]
                if extra + work <= most
            )
        best.append(undominated(trades))
    return tuple(best[n])


def undominated(trades: Iterable[T], figures: Callable[[Any], tuple[int, ...]] = tuple) -> list[T]:
    """The Pareto front: trades that no other beats in both of its two figures, ascending in the first."""
    kept: list[T] = []
    for trade in sorted(trades, key=figures):
        if not kept or figures(trade)[1] < figures(kept[-1])[1]:
            kept.append(trade)
    return kept
