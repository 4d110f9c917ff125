"""Work of the search for stages in large networks: counts, which grow no faster than the operators to the power 1.3."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.blocks import block_of, split
from tvm_cascade.parallel.lattice import states
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.testing.builder import Net

CPU = AnalyticCost(find_device("cpu2"))


def cells(count: int) -> tvm.IRModule:
    net = Net("float32", "NCHW")
    x = net.input((1, 8, 16, 16), "x")
    for _ in range(count // 4):
        x = net.add(x, net.concat([net.conv(x, 4, 1), net.conv(x, 4, 3)]))
    return net.finish(x)


def wired(count: int) -> tvm.IRModule:
    """Write convolutions, each of the sum of two of the last nine."""
    net, random = Net("float32", "NCHW"), np.random.default_rng(0)
    values = [net.conv(net.input((1, 8, 16, 16), "x"), 8, 1)]
    while len(values) < count // 2:
        a, b = (int(v) for v in random.integers(max(0, len(values) - 9), len(values), 2))
        values.append(net.conv(net.add(values[a], values[b]), 8, 1))
    return net.finish(values[-1])


@pytest.mark.parametrize("family", [cells, wired])
def test_work_grows_with_the_operators(family):
    counts = []
    for size in (400, 2_000):
        best = schedule(stage_graph(family(size)).graph, CPU, Options()).schedule
        counts.append(best.transitions + best.priced)
    assert counts[1] <= counts[0] * 5**1.3


def test_large_networks_are_cut_finer():
    """Of 2,000 units no part that was cut has more than 2,500 states; of 500 units 6,000, the limit of a block."""
    for size, most in ((500, 6_000), (2_000, 2_500)):
        random = np.random.default_rng(0)
        reads = [sorted({int(u) for u in random.integers(max(0, v - 9), v, 2)}) for v in range(1, size)]
        parts, exact = split([[], *reads], Options())
        assert not exact
        counts = [len(states(block_of([[], *reads], part))) for part in parts if len(part) > 1]
        assert most / 2 < max(counts) <= most
