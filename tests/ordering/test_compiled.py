"""The compiled dynamic program against the Python that it follows: the same orders, proofs, states and steps."""

from __future__ import annotations

import pytest

from tvm_cascade.ordering.cuts import regions
from tvm_cascade.ordering.dp import run
from tvm_cascade.ordering.model import model
from tvm_cascade.ordering.order_tables import Tables
from tvm_cascade.ordering.region import Region
from tvm_cascade.search_monitor import SearchMonitor
from tvm_cascade.testing.looks import after_looks
from tvm_cascade.testing.random_graphs import mixed_graph, wired_graph
from tvm_cascade.testing.searches.order_sets import run_in_python


@pytest.mark.parametrize("seed", range(60))
def test_the_same_states(seed: int) -> None:
    m = model(mixed_graph(seed, 3 + seed % 30) if seed % 3 else wired_graph(seed, 20 + 2 * seed, 12), seed % 2 == 0)
    for region in (Region(0, m.full, m.live(0)), *regions(m)[:2]):
        inside = region.after & ~region.before
        order = [op for op in range(inside.bit_length()) if inside >> op & 1]
        peak = m.peak(order, region.before)
        for budget in (peak, peak * 7 // 8, peak // 2):
            for floor in (0, budget):
                asked = (m, region, budget, floor, 3_000, seed % 5 != 0)
                assert run(*asked) == run_in_python(*asked)


def test_it_stops_at_the_same_look_at_the_time() -> None:
    m = model(wired_graph(1, 60))
    region = Region(0, m.full, m.live(0))
    for looks in (1, 2, 9, 40):
        ours = after_looks(looks, lambda: run(m, region, 1 << 40, 0, 40_000))
        theirs = after_looks(looks, lambda: run_in_python(m, region, 1 << 40, 0, 40_000))
        assert ours == theirs and ours[1] and ours[0].order is None


def test_what_interrupts_it_is_raised() -> None:
    class Interrupted(SearchMonitor):
        def over(self) -> bool:
            raise KeyboardInterrupt

    m = model(wired_graph(1, 30))
    with Interrupted(), pytest.raises(KeyboardInterrupt):
        run(m, Region(0, m.full, m.live(0)), 1 << 40, 0, 40_000)


def test_regions_are_read_as_the_model_does() -> None:
    """Each step of the file order, as a region of its own, needs and leaves what `Model.step` says."""
    for seed in range(40):
        m = model(mixed_graph(seed, 12), seed % 2 == 0)
        for op in range(len(m.demand)):
            done = (1 << op) - 1
            region = Region(done, done | 1 << op, m.live(done))
            assert Tables(m, region).ops == [op]
            need = m.step(done, op)[0]
            found = run(m, region, 1 << 40, 0, 10)
            assert (
                found.order == (op,)
                and run(m, region, region.live + need - 1, 0, 10, False).exceeded == region.live + need
            )
