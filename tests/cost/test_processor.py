"""The kept description of a CPU: files, devices by number of threads, prices of threads that share caches and memory."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from tvm_cascade.cost import AnalyticCost, device_for, features, find_device
from tvm_cascade.cost.device import PARALLEL_WORK
from tvm_cascade.cost.packing import pack
from tvm_cascade.cost.processor import Processor, description_file, keep, kept, this_model
from tvm_cascade.errors import UsageError
from tvm_cascade.operators.table import efficiency

EIGHT = Processor(
    model="A CPU of eight cores",
    architecture="skylake",
    threads=8,
    vector_bits=256,
    thread_macs_per_s=50e9,
    macs_per_s=300e9,
    split=0.9,
    thread_bytes_per_s=10e9,
    bytes_per_s=30e9,
    cache_bytes=8 << 20,
    thread_cache_bytes_per_s=20e9,
    cache_bytes_per_s=120e9,
    launch_us=0.5,
    sync_us=3.0,
    measured="2026-01-31",
)


def conv(channels: int, size: int, kernel: int = 3):
    shape = (1, channels, size, size)
    macs = channels * channels * size * size * kernel * kernel
    return features("conv2d", [shape], [shape], macs=macs, weight_bytes=4 * channels * channels * kernel * kernel)


def test_a_description_is_kept_by_model_of_cpu():
    assert kept() is None and kept(EIGHT.model) is None
    path = keep(EIGHT)
    assert path == description_file(EIGHT.model) and kept(EIGHT.model) == EIGHT
    assert kept() is None  # of this machine there is still none
    keep(replace(EIGHT, launch_us=1.0))
    assert kept(EIGHT.model) == replace(EIGHT, launch_us=1.0)
    assert [one.name for one in path.parent.iterdir()] == ["a-cpu-of-eight-cores.json"]


@pytest.mark.parametrize(
    "change",
    [
        {"format": 0},
        {"threads": 0},
        {"split": 1.5},
        {"macs_per_s": 1e9},  # less than one thread's
        {"bytes_per_s": 1e12},  # more than eight times one thread's
        {"launch_us": -1.0},
        {"launch_us": float("inf")},
        {"threads": "8"},
        {"more": 1},
        {"model": "Another CPU"},
    ],
)
def test_a_file_with_wrong_figures_is_no_description(change):
    path = keep(EIGHT)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert kept(EIGHT.model) is None


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"format": 1}'])
def test_a_damaged_file_is_no_description(text):
    keep(EIGHT).write_text(text)
    assert kept(EIGHT.model) is None


def test_nowhere_to_keep_it(monkeypatch):
    monkeypatch.setattr("tvm_cascade.cost.processor.cache_folder", lambda: None)
    assert kept(EIGHT.model) is None
    with pytest.raises(UsageError, match="no folder to keep the description in: set TVM_CASCADE_CACHE_DIR"):
        keep(EIGHT)


def test_threads_between_one_and_all():
    one, four, eight = EIGHT.device(1), EIGHT.device(4), EIGHT.device()
    assert (one.units, one.macs_per_s, one.bytes_per_s, one.split) == (1, 50e9, 10e9, 1.0)
    assert (eight.units, eight.macs_per_s, eight.bytes_per_s, eight.split) == (8, 300e9, 30e9, 0.9)
    assert one.macs_per_s < four.macs_per_s < eight.macs_per_s and one.bytes_per_s < four.bytes_per_s < 30e9
    sixteen = EIGHT.device(16)
    assert (sixteen.macs_per_s, sixteen.bytes_per_s) == (600e9, 30e9)
    assert eight.name == "cpu:skylake:8" and eight.source == "measured 2026-01-31"


def test_only_this_machine_is_priced_by_its_description():
    generic = find_device("cpu")
    assert device_for(None, "llvm") == generic
    keep(replace(EIGHT, model=this_model()))
    assert device_for(None, "llvm").source == "measured 2026-01-31"
    assert device_for(None, "llvm", 2).units == 2
    assert device_for("cpu", "llvm") == generic
    assert device_for(None, "llvm -mcpu=cortex-a72") == generic
    assert device_for(None, "cuda").kind == "gpu"


def test_figures_in_words():
    text = EIGHT.to_text()
    assert "one thread 50 GMAC/s, together 300; a divided kernel reaches 90 % of it" in text
    assert "0.50 us a kernel, 3.00 us a fork and join" in text
    assert "no cache that traffic gains from" in replace(EIGHT, cache_bytes=0).to_text()


def test_a_small_kernel_alone_has_one_thread_and_no_region():
    device, model = EIGHT.device(), AnalyticCost(EIGHT.device())
    small, large = conv(16, 8), conv(128, 28)
    assert small.macs + 2 * small.bytes_in < PARALLEL_WORK <= large.macs
    alone = small.work / (50e9 * efficiency("conv2d")) * 1e3
    assert model.op_ms(small) == pytest.approx(0.5e-3 + max(alone, small.bytes / 20e9 * 1e3))
    divided = large.work / (300e9 * efficiency("conv2d") * 0.9) * 1e3
    assert model.op_ms(large) == pytest.approx(0.5e-3 + 3e-3 + divided)
    one = AnalyticCost(EIGHT.device(1))
    assert one.op_ms(large) == pytest.approx(0.5e-3 + large.work / (50e9 * efficiency("conv2d")) * 1e3)
    assert device.sync_us == 3.0


def test_a_stage_costs_the_longest_thread_or_what_threads_share():
    """Against the same figures summed up in another way, on random stages."""
    rng, device = Random(1), EIGHT.device()
    for _ in range(200):
        groups = []
        for _ in range(rng.randint(2, 12)):
            groups.append(
                [conv(rng.choice([8, 32, 64]), rng.choice([7, 28, 112]), 1) for _ in range(rng.randint(1, 3))]
            )
        price = AnalyticCost(device).stage_ms(groups)

        def times(op, cached):
            arithmetic = op.work / efficiency(op.kind)
            one, every = (20e9, 120e9) if cached and op.bytes <= device.cache_bytes else (10e9, 30e9)
            return max(arithmetic / 50e9, op.bytes / one), arithmetic / 300e9, op.bytes / every

        lanes = pack([sum(times(op, True)[0] for op in g) for g in groups], 8)
        biggest = [max(op.bytes for g in lane for op in groups[g]) for lane in lanes]
        cached = sum(biggest) <= device.cache_bytes
        figures = [[tuple(times(op, cached)) for op in g] for g in groups]
        thread = max(sum(t[0] for g in lane for t in figures[g]) for lane in lanes)
        shared = [sum(t[k] for g in figures for t in g) for k in (1, 2)]
        assert price == pytest.approx(max(thread, *shared) * 1e3 + 3e-3)


def test_no_stage_beats_its_bounds():
    for processor in (EIGHT, replace(EIGHT, threads=2, macs_per_s=60e9, bytes_per_s=11e9, cache_bytes_per_s=40e9)):
        for threads in (1, 2, 5, 8):
            model, rng = AnalyticCost(processor.device(threads)), Random(threads)
            for _ in range(200):
                groups = [
                    [conv(rng.choice([1, 3, 16, 64]), rng.choice([1, 7, 56])) for _ in range(rng.randint(1, 3))]
                    for _ in range(rng.randint(1, 6))
                ]
                cost = model.stage_ms(groups)
                bounds = [[model.bound(op, False) for op in g] for g in groups]
                flat = [b for g in bounds for b in g]
                fork = model.fork_ms if len(groups) > 1 else 0.0
                for resource in (0, 1):
                    assert cost >= (sum(b.works[resource] for b in flat) + fork) * (1 - 1e-9)
                assert cost >= (max(sum(b.span for b in g) for g in bounds) + fork) * (1 - 1e-9)
                for op in (op for g in groups for op in g):
                    bound = model.bound(op, True)
                    assert max(*bound.works, bound.span) <= model.op_ms(op) * (1 + 1e-9)


def test_small_branches_gain_from_threads_and_large_ones_do_not():
    """What IOS builds on, for two to sixteen threads: branches below the work of a divided kernel run at the same time."""
    small, large = conv(16, 8), conv(256, 56)
    for threads in (2, 4, 8, 16):
        model = AnalyticCost(EIGHT.device(threads))
        for branches in (2, 4):
            together, alone = model.stage_ms([[small] * 3] * branches), 3 * branches * model.op_ms(small)
            assert together < alone
            assert model.stage_ms([[large]] * branches) > 0.85 * branches * model.op_ms(large)
    assert AnalyticCost(EIGHT.device(16)).stage_ms([[large]] * 2) > 2 * AnalyticCost(EIGHT.device(16)).op_ms(large)
