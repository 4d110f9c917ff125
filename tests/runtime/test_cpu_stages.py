"""Measuring on this machine's CPU: structure and caching, not speed."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.cost.interface import features
from tvm_cascade.cost.measured import MeasuredCost, MeasureOptions
from tvm_cascade.cost.records import CONCURRENT, MERGE, RecordStore
from tvm_cascade.errors import MissingToolError, UsageError
from tvm_cascade.measured import finalists
from tvm_cascade.measured.measure import CpuRunner
from tvm_cascade.measured.runners import analytic_of
from tvm_cascade.measured.search import search_learned, search_measured, stages
from tvm_cascade.parallel import Options, Schedule, Stage, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.passes.join_networks import join_networks
from tvm_cascade.request import StagesRequest
from tvm_cascade.runtime import has_cuda, threads
from tvm_cascade.runtime.bench import LocalBench
from tvm_cascade.schema import schema_of
from tvm_cascade.schema.searches import Schedule as ScheduleJson
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.testing.builder import Net


def two_branches():
    net = Net("float32", "NCHW")
    x = net.input((1, 8, 7, 7), "x")
    return net.finish(net.concat([net.conv(x, 8, 1, activation="relu"), net.conv(x, 8, 3, activation="relu")]))


@pytest.fixture(scope="module")
def runner():
    net = stage_graph(two_branches())
    return CpuRunner(net, unit_graph(net.graph, "fused"), workers=2)


def test_runs_stages_groups_and_merges(runner):
    units = unit_graph(runner.net.graph, "fused")
    small, large, concat = (f[0] for f in units.features)
    for groups in ([[small]], [[small], [large]], [[small, concat], [large]]):
        times = runner.run(groups, 3)
        assert len(times) == 3 and all(t > 0 for t in times)
    assert len(runner.run_merged([small, large], 3)) == 3
    assert runner.workers == 2 and runner.device.startswith("cpu:")


def test_an_unknown_operator_is_refused(runner):
    with pytest.raises(UsageError, match="does not know this conv2d"):
        runner.run([[features("conv2d", [(1, 1, 1, 1)], [(1, 1, 1, 1)])]], 1)


def test_searches_with_measured_and_learned_costs(runner):
    net, units = runner.net, unit_graph(runner.net.graph, "fused")
    quick = MeasureOptions(first=2, most=2, rounds=1)
    model = MeasuredCost(runner, RecordStore(None, runner.device), quick)
    found = search_measured(net, model, Options())
    assert found.schedule.cost_ms > 0 and found.schedule.optimal
    assert {r.strategy for r in model.store} == {CONCURRENT, MERGE}
    before = model.measurements
    again, _ = search_learned(net, units, model, analytic_of(runner.bench), Options())
    assert model.measurements == before  # everything is in the store
    assert again.schedule.stages == found.schedule.stages


def test_the_command_with_measured_costs_keeps_a_database(tmp_path):
    database = tmp_path / "records.db"
    data, text = stages(two_branches(), StagesRequest(target="llvm", cost="measured", database=database))
    assert data["cost_model"].startswith("measured:cpu") and "ms" in text
    assert database.stat().st_size > 0


@pytest.mark.parametrize("cost", ["measured", "learned"])
def test_a_merge_that_measures_fastest_is_told_drawn_and_loaded(cost, tmp_path, monkeypatch):
    """A merged operator is none of the network's: what it takes is known of its parts together."""
    monkeypatch.setattr(CpuRunner, "run_merged", lambda self, parts, repeats: [1e-5] * repeats)
    saved, drawn = tmp_path / "schedule.json", tmp_path / "timeline.png"
    request = StagesRequest("llvm", cost=cost, variant="merge", output=saved, picture=drawn)
    data, text = stages(two_branches(), request)
    assert [s["strategy"] for s in data["stages"]].count("merge") == 1 and "merge " in text and drawn.stat().st_size
    again, _ = stages(two_branches(), StagesRequest("llvm", cost=cost, load=saved))
    assert [s["strategy"] for s in again["stages"]].count("merge") == 1


def test_wrong_costs_are_refused():
    with pytest.raises(UsageError, match="--cost 'guessed'"):
        stages(two_branches(), StagesRequest(cost="guessed"))
    if not has_cuda():
        with pytest.raises(MissingToolError, match=r"driver.*--cost analytic"):
            stages(two_branches(), StagesRequest(target="cuda", cost="measured"))
    with pytest.raises(UsageError, match="--input-shape"):
        stages(two_branches(), StagesRequest(target="llvm", cost="measured", batch=4))


def test_threads_follow_the_environment(monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    assert threads() == 3


def test_a_measured_schedule_is_run_beside_the_baselines():
    data, text = stages(two_branches(), StagesRequest("llvm", cost="measured", r=1))
    run = data["measured"]
    assert run["kept"] in run["milliseconds"] and "searched" in run["milliseconds"]
    assert all(ms > 0 for ms in run["milliseconds"].values()) and run["speedup"]["searched"] == 1
    assert f"kept: {run['kept']}" in text
    Draft202012Validator(schema_of("stages", ScheduleJson)).validate(data)


class Turns(LocalBench):
    """A bench whose programs take what is said of every round, in seconds."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.asked = seconds, []

    def in_turn(self, programs, rounds, repeats=1):
        self.asked.append(rounds)
        return [
            list(column) for column in zip(*([t * 1e3 for t in self.seconds(k)] for k in range(rounds)), strict=True)
        ]


def test_the_fastest_program_is_kept(monkeypatch):
    """Whatever the stages' costs say; what wins by less than the margin does not count."""
    net = stage_graph(two_branches())
    model = AnalyticCost(find_device("cpu2"))
    base = schedule(net.graph, model, Options(variant="sequential"))
    small, *rest = (u.ops for u in base.units.units)
    group = Stage(CONCURRENT, (tuple(i for ops in rest for i in ops),))
    found = replace(base, schedule=Schedule((Stage(CONCURRENT, (small,)), group), 0.0))
    monkeypatch.setattr(finalists, "programs_of", lambda net, units, schedules, *a: list(schedules))
    for seconds, kept in (
        ((1.0, 1.2, 0.9), "greedy"),
        ((1.0, 0.8, 0.9), "sequential"),
        ((1.0, 0.995, 1.0), "searched"),
    ):
        bench = Turns(lambda _k, s=seconds: s)
        made, run = finalists.keep_fastest(net, found, model, Options(variant="parallel"), bench)
        assert run.names == ("searched", "sequential", "greedy") and run.chosen == kept
        assert (made.schedule.stages == base.schedule.stages) == (kept == "sequential")
    alone = finalists.keep_fastest(net, found, model, Options(variant="merge"), Turns(lambda _k: (1.0,)))
    assert alone[1].names == ("searched",)


def test_networks_apart_are_run_too(monkeypatch):
    """Of several networks the stage whose groups they are is a candidate, unless it is what was found; a variant without
    concurrent stages has none."""
    net = stage_graph(join_networks({"a": two_branches(), "b": two_branches()}))
    model = AnalyticCost(find_device("cpu2"))
    monkeypatch.setattr(finalists, "programs_of", lambda net, units, schedules, *a: list(schedules))
    found = schedule(net.graph, model, Options(variant="sequential"))
    parallel = Options(variant="parallel")
    made, run = finalists.keep_fastest(net, found, model, parallel, Turns(lambda _k: (1.0, 1.0, 0.5)))
    assert run.names == ("searched", "greedy", "apart") and run.chosen == "apart"
    assert [len(stage.groups) for stage in made.schedule.stages] == [2] and made.schedule.cost_ms > 0
    again = finalists.keep_fastest(net, made, model, parallel, Turns(lambda _k: (1.0, 1.0, 1.0)))
    assert again[1].names == ("searched", "sequential", "greedy")
    merges = finalists.keep_fastest(net, found, model, Options(variant="merge"), Turns(lambda _k: (1.0,)))
    assert merges[1].names == ("searched",)


def test_noise_takes_no_schedule_away():
    """Runs whose ratios scatter around 1 are repeated, and the first stays; a small gain that is always there wins."""
    for gains, best, batches in (
        ((1.3, 0.7, 1.3, 0.7, 1.3), 0, 3),
        ((1.02, 1.03, 1.025), 1, 1),
        ((0.9, 0.7), 0, 1),
    ):
        bench = Turns(lambda k, gains=gains: (1.0, 1.0 / gains[k % len(gains)]))
        assert finalists.judge(bench, [None, None]).best == best and bench.asked == [finalists.RUNS] * batches
