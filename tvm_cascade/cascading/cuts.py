"""Cutting an execution order into segments: dynamic programming over cut positions.

With c(i, j) the bytes of the segment `[i, j)`, the smallest peak is P(n) with P(j) = min over i < j of max(P(i), c(i,
j)). Among the cuts with all segments within a cap, `cuts_within` takes the cuts with least weight, so operators that
fit without cascading are not cascaded.

Costs are expensive to compute and most are irrelevant, so both are shortest-path searches over cut positions (A*). They
compute a segment's cost only when the cheap lower bound, with the bound of the best way from the segment's end on, is
at the top of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tvm_cascade.search_monitor import monitor

_OUT_OF_REACH = 1 << 60  # bytes
_NEVER = (1 << 63) - 1

T = TypeVar("T")
Cost = Callable[[int, int, int], int]
Weight = Callable[[int, int], tuple[int, int] | None]


def smallest_peak(
    n: int, cost: Cost, lower_bound: NDArray[np.int64], best: int | None = None, most: int = _OUT_OF_REACH
) -> int:
    """Compute the smallest peak, in bytes, over all cuts of `n` operators into segments.

    `cost(i, j, peak)` are the bytes of segment [i, j), or any number up to `peak` if they are at most `peak`;
    `lower_bound[i, j]` is at most these bytes. `best` is the peak of some cuts, shown while the search runs. A peak above
    `most` is only bounded: the result is then a lower bound above `most`. Raises `SearchStopped` if a limit strikes first.
    """
    limit, rest = monitor(), _peaks_after(lower_bound)
    done = [False] * (n + 1)
    # bytes with the least for what follows, start, end, whether the cost is in them
    heap: list[tuple[int, int, int, bool]] = [(int(rest[0]), 0, 0, True)]
    ends: dict[int, Iterator[tuple[int, int]]] = {}  # by start: the ends still to come with these bytes, fewest first

    def follow(start: int) -> None:
        """Add the next end of segments from `start` to the queue."""
        found = next(((least, end) for least, end in ends[start] if not done[end]), None)
        if found is not None:
            heappush(heap, (found[0], -start, found[1], False))

    while heap:
        peak, start, end, known = heappop(heap)
        if peak > most:
            return peak
        if not known:
            follow(-start)
        if done[end]:
            continue
        if not known:
            limit.check()
            heappush(heap, (max(peak, cost(-start, end, peak)), start, end, True))
            continue
        if end == n:
            return peak
        done[end] = True
        limit.report("cuts", end, n, best, peak)
        needs = np.maximum(np.maximum(lower_bound[end, end + 1 :], rest[end + 1 :]), peak)
        needs[1:][needs[1:] >= _OUT_OF_REACH] = _NEVER
        ends[end] = _ascending(needs, np.arange(end + 1, n + 1))
        follow(end)
    raise ValueError("positions without an end")


def _ascending(needs: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the needs at `ends` (ascending), each with the end, in ascending order, without needs of `_NEVER`."""
    by_need = np.argsort(needs, kind="stable")
    by_need = by_need[: np.searchsorted(needs[by_need], _NEVER)]
    return zip(needs[by_need].tolist(), ends[by_need].tolist(), strict=True)


def _peaks_after(lower_bound: NDArray[np.int64]) -> NDArray[np.int64]:
    """Compute, for each position, the smallest peak from there to the end if every segment needs the lower bound."""
    n = len(lower_bound) - 1
    after = np.zeros(n + 1, np.int64)
    for i in range(n - 1, -1, -1):
        after[i] = np.maximum(after[i + 1 :], lower_bound[i, i + 1 :]).min()
    return after


def cuts_within(
    n: int, weight: Weight, least: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], price: int
) -> tuple[int, ...] | None:
    """Find the cut positions `(0, ..., n)` of least total weight; None if no cuts fit.

    Parameters
    ----------
    weight : Callable
        `weight(i, j)` is added to the total for segment [i, j); totals are compared by their first component, then by
        their second. None where the segment exceeds the cap. Ties go to the longest last segment.
    least : Sequence
        `least[i]` are all ends j of segments [i, j) that may stay within the cap, ascending, and for each a lower bound of
        the second component of `weight`; none of the first is negative.
    price : int
        Is added to the second component for every segment.

    Raises `SearchStopped` if a limit strikes first.
    """
    limit = monitor()
    rest = np.zeros(n + 1, np.int64)  # least total of the second component from there on
    for i in range(n - 1, -1, -1):
        rest[i] = (least[i][1] + rest[least[i][0]]).min(initial=_OUT_OF_REACH) + price
    after = rest.tolist()
    came: list[int | None] = [None] * (n + 1)
    heap: list[tuple[int, int, int, int, int, int, bool]] = [(0, after[0], 0, 0, 0, 0, True)]
    ends: dict[
        int, Iterator[tuple[int, int]]
    ] = {}  # by start: the ends still to come with the least total from there on

    def follow(start: int, first: int, second: int) -> None:
        """Add the next end of segments from `start`, reached with these totals, to the queue."""
        found = next(((more, end) for more, end in ends[start] if came[end] is None), None)
        if found is not None:
            heappush(heap, (first, second + found[0] + price, start, found[1], first, second, False))

    while heap:
        first, second, i, j, to_first, to_second, known = heappop(heap)
        if not known:
            follow(i, to_first, to_second)
        if came[j] is not None or second >= _OUT_OF_REACH:
            continue
        if not known:
            limit.check()
            more = weight(i, j)
            if more is not None:
                total = to_first + more[0], to_second + more[1] + price + after[j]
                heappush(heap, (*total, i, j, to_first, to_second, True))
            continue
        came[j] = i
        if j == n:
            break
        ends[j] = _ascending(least[j][1] + rest[least[j][0]], least[j][0])
        follow(j, first, second - after[j])
    if came[n] is None:
        return None
    cuts = [n]
    while cuts[-1]:
        cuts.append(came[cuts[-1]] or 0)
    return tuple(reversed(cuts))


def least_peak(lower_bound: NDArray[np.int64]) -> int:
    """Compute the smallest peak, in bytes, over all cuts if every segment needs just the lower bound."""
    peak = np.zeros(len(lower_bound), np.int64)
    for j in range(1, len(peak)):
        peak[j] = np.maximum(peak[:j], lower_bound[:j, j]).min()
    return int(peak[-1])


def within_reach(lower_bound: NDArray[np.int64], ceiling: int) -> NDArray[np.bool_]:
    """Test for each segment [i, j) by lower bounds alone whether cuts with a peak below `ceiling` may contain the
    segment.
    """
    n = len(lower_bound) - 1
    before, after = np.zeros(n + 1, np.int64), _peaks_after(lower_bound)
    for j in range(1, n + 1):
        before[j] = np.maximum(before[:j], lower_bound[:j, j]).min()
    return np.maximum(np.maximum(before[:, None], after[None, :]), lower_bound) < ceiling


def pareto_cuts(
    n: int, forms: Callable[[int, int], Iterable[tuple[int, int]]], useful: NDArray[np.bool_], most: int
) -> tuple[tuple[int, int], ...]:
    """Compute the Pareto front of (peak bytes, extra work) over all cuts, by ascending bytes and descending work.

    Exact: a segment's cost is independent of the cuts before, so a dominated trade never becomes useful again.

    Parameters
    ----------
    forms : Callable
        `forms(i, j)` are (bytes, extra work) of each way to run segment [i, j).
    useful : array
        Whether segment [i, j) is tried at all (`within_reach`).
    most : int
        Largest extra work of all segments together.

    Raises `SearchStopped` if a limit strikes first.
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
    """Return the Pareto front: trades no other beats in both figures, ascending in the first."""
    kept: list[T] = []
    for trade in sorted(trades, key=figures):
        if not kept or figures(trade)[1] < figures(kept[-1])[1]:
            kept.append(trade)
    return kept
