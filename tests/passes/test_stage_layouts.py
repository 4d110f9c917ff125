"""Packed tensors of staged programs for CPUs: which they are, and that results are those of the plain layout."""

from __future__ import annotations

import os
from collections.abc import Sequence
from zlib import crc32

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade.cost import AnalyticCost, find_device, winograd
from tvm_cascade.cost.interface import NO_BOUND, Groups, OpBound, OpFeatures
from tvm_cascade.errors import UsageError
from tvm_cascade.parallel import UNITS, VARIANTS, Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.relax_pipeline import cascade_pipeline
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.layouts import may_merge, packed_bytes, packed_tensors
from tvm_cascade.staging.program.program import plan_program
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.poison import Poison
from tvm_cascade.testing.quick_build import quick_run
from tvm_cascade.testing.random_images import random_images

CPU = AnalyticCost(find_device("cpu2"))


def staged(mod: tvm.IRModule, variant: str = "sequential", lower: LowerOptions = LowerOptions()):  # noqa: B008
    net = stage_graph(mod)
    found = schedule(net.graph, CPU, Options(variant=variant)).schedule
    return compile_stages(lower_stages(net, unit_graph(net.graph, "fused"), found, lower))


def given(mod: tvm.IRModule, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal([int(d) for d in p.ty.shape.values]).astype("float32") for p in mod["main"].params]


def packed_channels(mod: tvm.IRModule) -> list[int]:
    net = stage_graph(mod)
    return sorted(net.graph.tensors[t].shape[1] for t in packed_tensors(net))


class Whims:
    """A cost model by which every stage costs something else: searches find schedules that no sensible one would."""

    name, fork_ms = "whims", 0.0

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def _drawn(self, *key: object) -> float:
        return 0.3 + crc32(repr((self.seed, key)).encode()) / 2**32

    def op_ms(self, op: OpFeatures) -> float:
        return self._drawn(op)

    def stage_ms(self, groups: Groups) -> float:
        return sum(self._drawn(op) for group in groups for op in group) * self._drawn(tuple(map(tuple, groups)))

    def merged_ms(self, merged: OpFeatures, parts: Sequence[OpFeatures]) -> float:
        return sum(self._drawn(op) for op in parts) * self._drawn(merged)

    def bound(self, op: OpFeatures, mergeable: bool) -> OpBound:
        return NO_BOUND


WIDTHS = ((16, 32, 48, 64), (12, 13, 24, 28, 58), (16, 20, 24, 32, 40))  # of maps: whole vectors, others, both


SEEDS = (0, 2, 3, 7, 22, 27, 33, 57, 67)  # every unit; convolutions that have Winograd's form, some of them merged


def random_network(seed: int) -> tvm.IRModule:
    return random_images(seed, steps=4, batch=2 if seed % 8 == 7 else 1, channels=WIDTHS[seed % 3])


@pytest.mark.parametrize("seed", SEEDS)
def test_random_networks_compute_what_tvm_computes(seed, monkeypatch):
    monkeypatch.setattr(winograd, "_WORTH", float("inf"))  # its form wherever there is one: maps are small here
    mod = random_network(seed)
    data = given(mod)
    expected = quick_run(mod, *data)
    net = stage_graph(mod)
    variant, unit = VARIANTS[seed % len(VARIANTS)], UNITS[seed % len(UNITS)]
    found = schedule(net.graph, Whims(seed), Options(variant=variant, unit=unit, max_states=500)).schedule
    lower = LowerOptions(workers=1 + seed // 2 % 2)
    made = Session(compile_stages(lower_stages(net, unit_graph(net.graph, unit), found, lower))).run(*data)
    for a, b in zip(made, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5 * np.abs(b).max())


KINDS = ("adaptive 1", "adaptive 7", "mean", "multiplier", "separable")


def edges(kinds: Sequence[str], channels: int) -> tvm.IRModule:
    """A network of one branch a kind, whose packed tensor meets an operator that most do not have."""
    net = Net("float32", "NCHW", seed=5)
    x = net.input((1, 3, 10, 12), "x")
    return net.finish([edge(net, x, kind, channels) for kind in kinds])


def edge(net: Net, x: Value, kind: str, channels: int) -> Value:
    x = net.conv(x, channels, 3, padding=1, activation="relu")
    if kind.startswith("adaptive"):
        size = int(kind[-1])
        pooled = relax.op.nn.adaptive_avg_pool2d(x.expr, (size, size))
        x = Value(net._emit(pooled), (1, channels, size, size))
    elif kind == "mean":
        return Value(net._emit(relax.op.mean(x.expr, [2, 3], False)), (1, channels))
    elif kind == "multiplier":
        x = net.depthwise(x, 3, 1, "same", multiplier=2)
    else:
        x = net.conv(net.depthwise(net.relu(net.max_pool(x, 3, 1, 1)), 3, 1, "same"), channels, 1)
    return net.conv(x, 8, 1)


@pytest.mark.parametrize("channels, unit", [(32, "cell"), (24, "op")])
def test_every_unit_of_uncommon_operators(channels, unit):
    mod = edges(KINDS, channels)
    data = given(mod)
    net = stage_graph(mod)
    found = schedule(net.graph, CPU, Options(variant="sequential", unit=unit)).schedule
    made = Session(compile_stages(lower_stages(net, unit_graph(net.graph, unit), found, LowerOptions()))).run(*data)
    for a, b in zip(made, quick_run(mod, *data), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())


def test_most_random_networks_pack_something():
    assert sum(bool(packed_channels(random_network(seed))) for seed in SEEDS) >= 6


def test_whole_vectors_and_channels_that_fill_one_up():
    net = Net("float32", "NCHW", seed=1)
    x = net.conv(net.input((1, 3, 12, 12), "x"), 24, 3, padding=1, activation="relu")
    x = net.conv(net.max_pool(x, 2), 32, 1, activation="relu")
    mod = net.finish(net.conv(x, 16, 1))
    held = stage_graph(mod)
    packed = packed_tensors(held)
    shapes = {held.graph.tensors[t].shape: packed_bytes(held.graph, packed, t) for t in packed}
    assert shapes == {(1, 24, 12, 12): 32 * 144 * 4, (1, 24, 6, 6): 32 * 36 * 4, (1, 32, 6, 6): 32 * 36 * 4}


@pytest.mark.parametrize("case", ["output", "reshape", "root", "concat", "gate", "few", "batch"])
def test_what_stays_plain(case):
    net = Net("float32", "NCHW", seed=1)
    wide = {"few": 8, "root": 24, "concat": 24, "gate": 24}.get(case, 32)
    x = net.conv(net.input((2 if case == "batch" else 1, 3, 8, 8), "x"), wide, 1)
    if case == "reshape":
        x = net.reshape(x, (1, 32, 64))
    elif case == "root":
        x = net.conv(Value(net._emit(relax.op.sqrt(net.relu(x).expr)), x.shape), 8, 1)
    elif case == "concat":
        x = net.conv(net.concat([x, x]), 8, 1)
    elif case == "gate":
        x = net.conv(net.mul(x, net.global_pool(x)), 8, 1)
    elif case in ("few", "batch"):
        x = net.conv(x, 8, 1)
    mod = net.finish(x)
    held = stage_graph(mod)
    assert all(held.graph.tensors[t].shape[1] == 48 for t in packed_tensors(held))


@pytest.mark.parametrize("channels, taps", [(24, 1), (32, 1), (24, 3), (32, 3)])
def test_convolutions_of_vectors_of_channels_write_such(channels: int, taps: int) -> None:
    """Also where channels fill no vector: elements of what is read would have to be moved one by one."""
    net = Net("float32", "NCHW", seed=1)
    x = net.conv(net.input((1, 3, 9, 9), "x"), 16, 3, padding=1, activation="relu")
    x = net.depthwise(net.conv(x, channels, 1, activation="relu"), 3, 1, "same")
    x = net.conv(net.conv(x, 48, taps), 20, 1)
    held = stage_graph(net.finish(x))
    found = packed_tensors(held)
    made = [op for op in held.graph.ops if op.kind == "conv2d"]
    assert [c.outputs[0] in found for c in made][:2] == [True, True]


@pytest.mark.parametrize("channels, side, of_pixels", [(24, 8, 1), (232, 7, 0), (116, 14, 0), (100, 16, 1), (24, 3, 0)])
def test_pointwise_convolutions_of_planes_take_what_fills_fewer_vectors(
    channels: int, side: int, of_pixels: int
) -> None:
    """49 pixels are filled up to 64, and 232 channels to 234 or 240: vectors of channels are less work."""
    net = Net("float32", "NCHW", seed=1)
    held = stage_graph(net.finish(net.conv(net.input((1, 20, side, side), "x"), channels, 1)))
    found = schedule(held.graph, CPU, Options(variant="sequential")).schedule
    lowered = lower_stages(held, unit_graph(held.graph, "fused"), found, LowerOptions())
    assert sum("point_acc" in str(func) for func in lowered.functions.values()) == of_pixels


def test_parts_of_a_merge_have_one_layout():
    net = Net("float32", "NCHW", seed=1)
    x = net.input((1, 16, 8, 8), "x")
    parts = [net.conv(net.conv(x, c, 1, activation="relu"), 16, 3, padding=1) for c in (16, 24, 32)]
    held = stage_graph(net.finish(net.concat(parts)))
    packed = packed_tensors(held)
    ends = {t.shape[1]: t.index for t in held.graph.tensors if t.name.startswith("relu")}
    assert set(ends) == {16, 24, 32} and set(ends.values()) <= packed
    assert may_merge(held.graph, packed, [ends[16], ends[32]])
    assert not may_merge(held.graph, packed, [ends[16], ends[24]])
    assert not may_merge(held.graph, packed - {ends[16]}, [ends[16], ends[32]])
    assert may_merge(held.graph, set(), ends.values())


@pytest.mark.parametrize("seed", [2, 33])
def test_packed_tensors_share_no_bytes_with_others(seed):
    mod = random_network(seed)
    data = given(mod)
    expected = Session(staged(mod, "parallel")).run(*data)
    poison = Poison()
    made = Session(staged(mod, "parallel", LowerOptions(before_step=poison, serial_reversed=True))).run(*data)
    for a, b in zip(made, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_cuda_packs_nothing():
    net = stage_graph(random_network(2))
    units = unit_graph(net.graph, "fused")
    found = schedule(net.graph, CPU, Options(variant="sequential")).schedule
    assert packed_tensors(net) and not plan_program(net, units, found, captured=True).packed


def test_the_pipeline_builds_stages_where_latency_is_asked_for():
    mod = edges(["separable"], 32)
    data = given(mod)
    pipeline = cascade_pipeline(objective="latency")
    executable = tvm.compile(mod, "llvm", relax_pipeline=pipeline)
    (made,) = Session(executable).run(*data)
    (expected,) = quick_run(mod, *data)
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    with tvm.target.Target("llvm"):
        lowered = pipeline(mod)
    assert any(name.name_hint.startswith("kernel_") for name in lowered.functions)
    with pytest.raises(UsageError, match="objective='speed': give one of bytes, latency"):
        cascade_pipeline(objective="speed")
    with pytest.raises(UsageError, match="precision='fp8': give one of fp32, fp16"):
        cascade_pipeline(objective="latency", precision="fp8")
    with pytest.raises(UsageError, match="are of objective='latency'"):
        cascade_pipeline(precision="fp16")
    with pytest.raises(UsageError, match="h300"), tvm.target.Target("llvm"):
        cascade_pipeline(objective="latency", device="h300")(mod)
