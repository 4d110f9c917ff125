"""The analytic model: its bounds hold, and it shows what IOS builds on."""

from __future__ import annotations

from random import Random

import pytest

from tvm_cascade.cost import DEVICES, AnalyticCost, features, find_device
from tvm_cascade.cost.packing import pack
from tvm_cascade.errors import UsageError


def conv(channels: int, size: int, kernel: int = 3, batch: int = 1):
    macs = batch * channels * channels * size * size * kernel * kernel
    shape = (batch, channels, size, size)
    return features("conv2d", [shape], [shape], macs=macs, weight_bytes=4 * channels * channels * kernel * kernel)


def random_stage(rng: Random):
    def op():
        kind = rng.choice(["conv2d", "max_pool2d", "concat", "dense"])
        c, n = rng.choice([16, 64, 256]), rng.choice([1, 7, 28])
        made = conv(c, n, rng.choice([1, 3]))
        return made if kind == "conv2d" else features(kind, [(1, c, n, n)], [(1, c, n, n)])

    return [[op() for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(1, 6))]


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_no_stage_beats_its_bounds(name):
    rng = Random(name)
    model = AnalyticCost(find_device(name))
    for _ in range(300):
        groups = random_stage(rng)
        cost = model.stage_ms(groups)
        bounds = [[model.bound(op, False) for op in g] for g in groups]
        flat = [b for g in bounds for b in g]
        fork = model.fork_ms if len(groups) > 1 else 0.0
        for resource in (0, 1):
            assert cost >= (sum(b.works[resource] for b in flat) + fork) * (1 - 1e-9)
        assert cost >= (max(sum(b.span for b in g) for g in bounds) + fork) * (1 - 1e-9)
        if len(groups) == 1:
            assert cost == pytest.approx(sum(b.alone for b in flat))


def test_small_operators_gain_from_company_and_large_ones_do_not():
    model = AnalyticCost(find_device("v100"))
    small, large = conv(128, 8), conv(512, 56, batch=4)
    assert model.stage_ms([[small], [small]]) < 0.75 * 2 * model.op_ms(small)
    assert model.stage_ms([[large], [large]]) > 0.99 * 2 * model.op_ms(large)


def test_a_batch_takes_the_room_that_concurrency_used():
    model = AnalyticCost(find_device("v100"))
    gains = []
    for batch in (1, 8, 32):
        op = conv(128, 17, batch=batch)
        gains.append(2 * model.op_ms(op) / model.stage_ms([[op], [op]]))
    assert gains[0] > 1.5 and max(gains[1:]) < 1.05


def test_a_cpu_runs_one_group_per_core():
    model = AnalyticCost(find_device("cpu2"))
    op = conv(64, 17)
    two, four = model.stage_ms([[op]] * 2), model.stage_ms([[op]] * 4)
    assert four - model.fork_ms == pytest.approx(2 * (two - model.fork_ms))


def test_views_are_free():
    model = AnalyticCost(find_device("v100"))
    view = features("reshape", [(1, 64)], [(64,)])
    assert model.op_ms(view) == 0.0
    assert model.stage_ms([[view], [conv(64, 7)]]) == pytest.approx(model.op_ms(conv(64, 7)))


def test_deterministic_between_models():
    stage = random_stage(Random(3))
    assert AnalyticCost(find_device("h200")).stage_ms(stage) == AnalyticCost(find_device("h200")).stage_ms(stage)


def test_packing():
    assert pack([3.0, 2.0, 2.0, 1.0], 2) == ((0, 3), (1, 2))
    assert pack([1.0], 4) == ((0,),)
    rng = Random(0)
    for _ in range(50):
        times = [rng.random() for _ in range(rng.randint(1, 9))]
        lanes = pack(times, 3)
        assert sorted(g for lane in lanes for g in lane) == list(range(len(times)))
        longest = max(sum(times[g] for g in lane) for lane in lanes)
        assert longest <= 4 / 3 * max(max(times), sum(times) / 3) + max(times) / 3


def test_devices_are_found_by_name_or_target():
    assert find_device(None, "cuda").kind == "gpu" and find_device(None, "llvm").kind == "cpu"
    assert find_device("cpu", cores=8).units == 8
    with pytest.raises(UsageError, match="unknown device tpu: choose one of"):
        find_device("tpu")
