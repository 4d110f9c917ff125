"""Measuring and learning against a make-believe device, whose costs the models cannot know beforehand."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.cost.interface import OpFeatures, features
from tvm_cascade.cost.learned import LearnedCost, refine, stage_vector
from tvm_cascade.cost.measured import MeasuredCost, MeasureOptions, confirm
from tvm_cascade.cost.records import CONCURRENT, RecordStore, median_interval, stage_key
from tvm_cascade.errors import LoadError
from tvm_cascade.graph import IDENTITY, Graph, Op, Tensor, Window
from tvm_cascade.operators.record import Family
from tvm_cascade.operators.table import OPERATORS
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.scheduler import priced_stages


class MakeBelieve:
    """Another device than the analytic model thinks, every stage off by a fixed factor, every run noisy."""

    device = "make-believe"
    workers = 8

    def __init__(self, noise: float) -> None:
        base = find_device("v100")
        self.truth = AnalyticCost(
            replace(base, macs_per_s=base.macs_per_s * 0.6, launch_us=4.0, contention=0.2, sync_us=3.0)
        )
        self.noise = Random(1)
        self.amount = noise
        self.runs = 0

    def exact(self, groups) -> float:
        factor = Random(stage_key(CONCURRENT, groups)).uniform(0.96, 1.04)
        return self.truth.stage_ms(groups) * factor

    def run(self, groups, repeats):
        self.runs += repeats
        return [
            self.exact(groups) * (1 + self.noise.expovariate(1 / self.amount) if self.amount else 1.0)
            for _ in range(repeats)
        ]

    def run_merged(self, parts, repeats):
        return self.run([parts], repeats)


def blocks(count: int, seed: int) -> Graph:
    """A chain of blocks: five branches of one to three convolutions between two joins."""
    rng = Random(seed)
    tensors = [Tensor(0, "x", (1, 192, 17, 17), "float32", 2, 3)]
    ops: list[Op] = []

    def op(kind: str, inputs: list[int], channels: int, macs: int = 0, kernel: int = 1) -> int:
        t = len(tensors)
        tensors.append(Tensor(t, f"t{t}", (1, channels, 17, 17), "float32", 2, 3))
        window = Window(kernel, padding=kernel // 2) if kernel > 1 else IDENTITY
        n = len(inputs)
        ops.append(Op(len(ops), f"{kind}{len(ops)}", kind, tuple(inputs), (t,), (window,) * n, (window,) * n, macs=macs,
                      weight_bytes=4 * macs // 289, attrs={"groups": 2}))  # fmt: skip
        return t

    x = 0
    for _ in range(count):
        ends = []
        for _ in range(5):
            y = x
            for _ in range(rng.randint(1, 3)):
                kernel, channels = rng.choice([1, 3, 5]), rng.choice([64, 128, 192])
                y = op("conv2d", [y], channels, 289 * kernel * kernel * tensors[y].shape[1] * channels, kernel)
            ends.append(y)
        x = op("concat", ends, sum(tensors[e].shape[1] for e in ends))
        x = op("conv2d", [x], 192, 289 * tensors[x].shape[1] * 192)
    return Graph(tuple(tensors), tuple(ops), (0,), (x,))


def test_the_features_of_a_stage_tell_the_families_of_its_operators():
    model = AnalyticCost(find_device("v100"))
    for kind, operator in OPERATORS.items():
        groups = [[OpFeatures(kind, output_elements=1), OpFeatures("of no table", output_elements=1)]]
        shares = dict(zip(Family, stage_vector(CONCURRENT, groups, model)[-len(Family) :], strict=True))
        assert sum(shares.values()) == 1 and shares[Family.OPAQUE] == (1 if operator.kind == "opaque" else 0.5)
        assert shares[operator.family] >= 0.5


def test_learned_is_as_good_as_fully_measured_for_a_fraction_of_the_measurements():
    pytest.importorskip("xgboost")
    graph = blocks(2, seed=2)
    options = Options(r=3, s=8)
    device = MakeBelieve(noise=0.0)
    full = MeasuredCost(device, RecordStore(None, device.device), MeasureOptions(first=1, most=1))
    best = schedule(graph, full, options)

    measured = MeasuredCost(device, RecordStore(None, device.device), MeasureOptions(first=1, most=1))
    model = LearnedCost(measured, AnalyticCost(find_device("v100")))
    found = None

    def search():
        nonlocal found
        found = schedule(graph, model, options)
        return found, priced_stages(found)

    alone = [(CONCURRENT, [[k]]) for kernels in best.units.features for k in kernels]
    result = refine(model, search, budget=int(0.3 * full.measurements), first=alone)
    true_ms = sum(device.exact(groups) for _, groups in priced_stages(result))
    assert measured.measurements <= 0.3 * full.measurements
    assert true_ms <= 1.02 * best.schedule.cost_ms


def test_learned_learns():
    pytest.importorskip("xgboost")
    device = MakeBelieve(noise=0.0)
    measured = MeasuredCost(device, RecordStore(None, device.device), MeasureOptions(first=1, most=1))
    model = LearnedCost(measured, AnalyticCost(find_device("v100")))
    rng = Random(5)
    ops = [features("conv2d", [(1, c, 17, 17)], [(1, c, 17, 17)], macs=289 * c * c * k, weight_bytes=4 * c * c * k)
           for c in (32, 64, 96, 128, 192, 256) for k in (1, 3, 9)]  # fmt: skip
    stages = [
        [[rng.choice(ops) for _ in range(rng.randint(1, 2))] for _ in range(rng.randint(1, 4))] for _ in range(200)
    ]
    for groups in stages[:150]:
        measured.record(CONCURRENT, groups)

    def error() -> float:
        wrong = [
            abs(model.stage_ms(g) / device.exact(g) - 1)
            for g in stages[150:]
            if measured.store.get(stage_key(CONCURRENT, g)) is None
        ]
        return sum(wrong) / len(wrong)

    before = error()
    model.train()
    assert error() < 0.5 * before and error() < 0.1


def test_measurements_are_cached_by_structure_and_kept_in_a_file(tmp_path):
    device = MakeBelieve(noise=0.02)
    path = tmp_path / "records.db"
    model = MeasuredCost(device, RecordStore(path, device.device))
    op = features("conv2d", [(1, 8, 9, 9)], [(1, 8, 9, 9)], macs=81 * 64)
    other = replace(op, macs=999)
    first = model.stage_ms([[op], [other]])
    runs = device.runs
    assert model.stage_ms([[other], [op]]) == first and device.runs == runs
    assert model.stage_ms([[op, other]]) != first

    again = MeasuredCost(device, RecordStore(path, device.device))
    runs = device.runs
    assert again.stage_ms([[op], [other]]) == first and device.runs == runs
    assert len(RecordStore(path, "another device")) == 0


def test_noise_is_averaged_until_the_interval_is_narrow():
    model = MeasuredCost(MakeBelieve(0.3), RecordStore(None, "d"), MeasureOptions(first=5, most=60))
    op = features("conv2d", [(1, 8, 9, 9)], [(1, 8, 9, 9)], macs=81 * 64)
    record = model.record(CONCURRENT, [[op]])
    assert len(record.samples) > 5
    low, high = record.interval
    assert low <= record.median <= high
    assert median_interval([1.0]) == (1.0, 1.0)
    assert median_interval(list(range(100))) == (40, 59)


def test_winners_are_measured_again():
    graph = blocks(1, seed=3)
    device = MakeBelieve(noise=0.3)
    model = MeasuredCost(device, RecordStore(None, device.device), MeasureOptions(first=3, most=3))

    def search():
        found = schedule(graph, model, Options(r=2, s=3))
        return found, priced_stages(found)

    lucky = search()[0]
    confirmed = confirm(model, search)
    for strategy, groups in priced_stages(confirmed):
        assert len(model.record(strategy, groups).samples) >= 6

    def honest(found):
        return sum(device.exact(g) for _, g in priced_stages(found))

    assert honest(confirmed) <= 1.05 * honest(lucky)


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "x.db"
    path.write_text("not a database at all, and long enough to be read as a header of one" * 20)
    with pytest.raises(LoadError, match="no database of measurements"):
        RecordStore(path, "d")
