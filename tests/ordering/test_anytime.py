"""Orders under a limit that strikes after every number of looks at the clock: valid, and never worse with more time."""

from __future__ import annotations

import pytest

from tvm_cascade.ordering import Ordering, OrderOptions, order, solve
from tvm_cascade.ordering.validate import validate
from tvm_cascade.testing.looks import with_more_and_more_time
from tvm_cascade.testing.random_graphs import mixed_graph, wired_graph


@pytest.mark.parametrize(
    "graph", [wired_graph(2, 60), wired_graph(4, 60), mixed_graph(3, 40)], ids=["wired2", "wired4", "mixed"]
)
def test_more_time_never_gives_a_higher_peak(graph) -> None:
    def solved() -> Ordering:
        solve._solve.cache_clear()  # every run does all of its work
        return order(graph, OrderOptions(work=200_000, moves=40_000))

    whole = solved()
    found = list(with_more_and_more_time(solved))
    for solution in found:
        validate(graph, solution.order, solution.peak, solution.bound, solution.optimal)
        assert solution.peak <= solution.file_order_peak
    peaks = [s.peak for s in found]
    assert peaks == sorted(peaks, reverse=True)
    assert len(found) > 3 and peaks[0] > peaks[-1]
    assert (found[-1].order, found[-1].bound) == (whole.order, whole.bound)
