"""Bounds by minimum cuts against all sets of operators, and what they prove."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_cascade.ordering import OrderOptions, order, validate
from tvm_cascade.ordering.bounds import ancestors, descendants, step_bounds
from tvm_cascade.ordering.cut_bounds import _LARGEST, _Network, cut_bound
from tvm_cascade.ordering.model import Model, model
from tvm_cascade.ordering.region import Region
from tvm_cascade.testing.brute_force import least_peak_by_sets
from tvm_cascade.testing.random_graphs import mixed_graph, wired_graph


def sets(m: Model) -> list[int]:
    """All sets of operators that hold what each of them waits for."""
    return [s for s in range(m.full + 1) if not any(s >> op & 1 and p & ~s for op, p in enumerate(m.predecessors))]


@pytest.mark.parametrize("seed", range(40))
def test_the_least_live_bytes_of_all_sets(seed: int) -> None:
    m = model(mixed_graph(seed, 3 + seed % 7), seed % 2 == 0)
    above = ancestors(m)
    below = descendants(m, above)
    for v in range(len(m.demand)):
        done, later, own = above[v], below[v] | 1 << v, m.part[v][0]
        rest = replace(m, storages=tuple(replace(s, size=0 if k == own else s.size) for k, s in enumerate(m.storages)))
        least = min(rest.live(s) for s in sets(m) if not done & ~s and not s & later)
        assert _Network(m).least_live(done, later, own) == least


@pytest.mark.parametrize("seed", range(30))
def test_between_the_steps_alone_and_the_optimum(seed: int) -> None:
    graph = mixed_graph(seed, 9)
    m, best = model(graph), least_peak_by_sets(graph)
    low = max(step_bounds(m))
    assert low <= cut_bound(m, Region(0, m.full, m.live(0)), range(9), low) <= best


def test_sizes_beyond_32_bits_are_rounded_down() -> None:
    m = model(mixed_graph(5, 9))
    large = replace(
        m,
        storages=tuple(replace(s, size=(s.size << 40) + k) for k, s in enumerate(m.storages)),
        demand=tuple(d << 40 for d in m.demand),
        outliving_bytes=tuple(b << 40 for b in m.outliving_bytes),
    )
    network = _Network(large)
    assert 0 < sum(network.sizes) < _LARGEST
    last = len(m.demand) - 1
    done = m.full & ~(1 << last)
    assert large.live(done) - (network.unit << 4) <= network.least_live(done, 1 << last, -1) <= large.live(done)


def test_a_large_network_is_proven() -> None:
    graph = wired_graph(5, 300)
    found = order(graph, OrderOptions(work=40_000, moves=300_000))
    validate(graph, found.order, found.peak, found.bound, found.optimal)
    assert found.optimal and found.bound == 324_608 > max(step_bounds(model(graph)))
