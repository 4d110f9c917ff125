"""Windowed exact search: some consecutive operators around the most demanding step are reordered exactly.

The operators before and after the window stay in place, so the window is an ordinary region (`ordering.dp`), and a
better order lowers the peak or removes a demanding step. Narrow windows come first, since their search is complete;
wider windows follow when no narrow window helps. The number of steps tried ends the search.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.ordering.dp import run
from tvm_cascade.ordering.model import Model
from tvm_cascade.ordering.region import Region
from tvm_cascade.search_monitor import monitor

_WIDTHS = (20, 40, 80)  # operators
_WINDOW_WORK = 500_000  # steps tried in one window


def improve_windows(m: Model, region: Region, order: Sequence[int], lowest: int, work: int) -> tuple[list[int], int]:
    """Search better windows in `order`; return an order with at most the same peak, and the steps tried, about `work`
    at most.

    The search ends at a peak of `lowest` bytes, and if no window around the first peak step can be improved.
    """
    best, spent = list(order), 0
    for width in _WIDTHS:
        improved = True
        while improved and spent < work:
            peak, at = _first_peak(m, region, best)
            monitor().report("order, windows", spent, work, peak, lowest)
            improved = False
            for start in dict.fromkeys(max(0, at - width * share // 4) for share in (2, 1, 3)):
                if peak <= lowest or spent >= work or monitor().over():
                    return best, spent
                found, steps = _window(m, region, best, (start, start + width), (lowest, peak), work - spent)
                spent += max(1, steps)
                if found is not None:
                    best, improved = found, True
                    break
    return best, spent


def _first_peak(m: Model, region: Region, order: Sequence[int]) -> tuple[int, int]:
    """Find the bytes at the most demanding step of an order, and the first such step."""
    done, live, peak, at = region.before, region.live, -1, 0
    for k, op in enumerate(order):
        need, change = m.step(done, op)
        if live + need > peak:
            peak, at = live + need, k
        live += change
        done |= 1 << op
    return peak, at


def _window(
    m: Model, region: Region, order: list[int], window: tuple[int, int], peaks: tuple[int, int], work: int
) -> tuple[list[int] | None, int]:
    """Search an order with the steps in `window` below the second of `peaks`; return it, or None, and the steps tried.

    Peaks up to the first count as equal.
    """
    first, last = window
    before = region.before | sum(1 << op for op in order[:first])
    after = before | sum(1 << op for op in order[first:last])
    result = run(m, Region(before, after, m.live(before)), peaks[1] - 1, peaks[0], min(work, _WINDOW_WORK))
    if result.order is None:
        return None, result.steps
    return [*order[:first], *result.order, *order[last:]], result.steps
