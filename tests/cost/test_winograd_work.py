"""A 3x3 convolution in Winograd's form is priced by that form's work, on CPUs; bounds hold for merged ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tvm_cascade.cost import AnalyticCost, features, find_device
from tvm_cascade.cost.interface import OpFeatures
from tvm_cascade.cost.winograd import least_share, share, winograd_size
from tvm_cascade.parallel.merging import merged_features
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.staging.kernels.cpu_compute import LANES
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.testing.builder import Net


def conv(i: int, o: int, size: int, window: int = 3, stride: int = 1, batch: int = 1) -> OpFeatures:
    """Channels first, as the features of a graph are."""
    key = (window, stride, 1, window // 2) * 2
    macs = batch * i * o * (size // stride) ** 2 * window**2
    shapes = [(batch, i, size, size)], [(batch, o, size // stride, size // stride)]
    return features("conv2d", *shapes, macs=macs, weight_bytes=4 * i * o * window**2, shape=key)


def test_the_price_follows_the_form():
    assert winograd_size((64, 64), (28, 28), 4) == 4 and 0.4 < share(conv(64, 64, 28)) < 0.45
    assert winograd_size((448, 384), (8, 8), 4) == 2 and 0.5 < share(conv(448, 384, 8)) < 0.75
    direct = [
        conv(64, 64, 1),
        conv(64, 64, 28, 1),
        conv(64, 64, 28, 3, 2),
        conv(64, 64, 28, 5),
        conv(3, 64, 28),
        conv(17, 64, 28),
    ]
    assert {
        share(op) for op in (*direct, conv(64, 64, 28, batch=2), replace(conv(64, 64, 28), kind="depthwise_conv2d"))
    } == {1.0}
    rows = replace(conv(64, 64, 28), shape=(1, 28, 28, 64, -1, 1, 28, 28, 64, -1, *(3, 1, 1, 1) * 2))  # channels last
    assert share(rows) == 1.0
    gpu, cpu = (AnalyticCost(find_device(name)) for name in ("v100", "cpu"))
    plain = replace(conv(64, 64, 28), shape=())  # of no known form
    assert gpu.op_ms(plain) == gpu.op_ms(conv(64, 64, 28)) and cpu.op_ms(plain) > 1.5 * cpu.op_ms(conv(64, 64, 28))


def test_features_of_a_network_say_the_form():
    net = Net("float32", "NCHW", seed=1)
    x = net.conv(net.input((1, 32, 20, 20), "x"), 48, 3)
    graph = stage_network(net.finish(net.conv(x, 32, 1)), "llvm").graph
    units = unit_graph(graph, "fused")
    shares = [share(k) for kernels in units.features for k in kernels if k.kind == "conv2d"]
    assert LANES == 16 and shares[0] < 0.6 and shares[1] == 1.0


@pytest.mark.parametrize("channels", [(16, 4, 8), (32, 16, 16), (64, 8, 200)])
@pytest.mark.parametrize("size", [1, 2, 4, 7, 14])
def test_no_merged_convolution_beats_its_bounds(channels, size):
    """Merged, parts may be worth a form that none is worth alone."""
    net = Net("float32", "NCHW", seed=1)
    x = net.input((1, channels[0], size, size), "x")
    for first, second in product((1, 3), repeat=2):
        parts = [net.conv(x, c, k) for c, k in zip(channels[1:], (first, second), strict=True)]
        graph = stage_network(net.finish(parts), "llvm").graph
        units, model = unit_graph(graph, "op"), AnalyticCost(find_device("cpu2"))
        merged = merged_features(units, (0, 1))
        bounds = [model.bound(units.features[k][0], True) for k in (0, 1)]
        cost = model.merged_ms(merged, [units.features[k][0] for k in (0, 1)])
        assert 0.25 <= least_share(merged) <= share(merged) <= 1
        assert cost >= max(b.span for b in bounds) * (1 - 1e-9)
        for resource in (0, 1):
            assert cost >= sum(b.works[resource] for b in bounds) * (1 - 1e-9)
        net = Net("float32", "NCHW", seed=1)
        x = net.input((1, channels[0], size, size), "x")
