"""`optimize` under schedules' latencies and under measurements: what they choose, and that whole networks decide."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import pytest
import tvm
from jsonschema import Draft202012Validator
from tvm import relax

from tvm_cascade.cost import AnalyticCost, OpFeatures, find_device
from tvm_cascade.cost.interface import Groups, Runner
from tvm_cascade.errors import InfeasibleError, MissingToolError, UsageError
from tvm_cascade.optimizing.measured import Effort, optimize_measured
from tvm_cascade.optimizing.module import optimize_module
from tvm_cascade.passes.substitution_read import read_function
from tvm_cascade.runtime import Session
from tvm_cascade.runtime.bench import LocalBench, Program
from tvm_cascade.runtime.cuda import has_cuda
from tvm_cascade.schema import schema_of
from tvm_cascade.schema.searches import Substituted
from tvm_cascade.substitution.costs import CUDNN, Latency
from tvm_cascade.substitution.metaflow import SearchOptions
from tvm_cascade.substitution.report import format_report
from tvm_cascade.substitution.rules import ALL_RULES, rules
from tvm_cascade.substitution.schedule_cost import ScheduleLatency, optimize_schedule
from tvm_cascade.substitution.split import optimize
from tvm_cascade.testing.zoo.inception import inception_e
from tvm_cascade.testing.zoo.resnet import resnet_module
from tvm_cascade.testing.zoo.rnn import rnntc

V100 = AnalyticCost(find_device("v100"))


def outputs(mod: tvm.IRModule) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    data = [rng.standard_normal([int(d) for d in p.ty.shape.values]).astype("float32") for p in mod["main"].params]
    return Session(tvm.compile(mod, "llvm")).run(*data)


def test_a_schedules_latency_is_at_most_the_sequence():
    dag = read_function(inception_e(width=0.25)["main"]).dag
    serial, staged = Latency("latency", CUDNN, model=V100), ScheduleLatency(V100, CUDNN)
    assert staged.total(dag) < 0.9 * serial.total(dag)
    assert staged.total(dag) == replace(staged).total(dag)


def test_a_search_for_schedules_beats_the_schedule_of_the_best_sequence():
    dag = read_function(inception_e()["main"]).dag
    staged = ScheduleLatency(V100, CUDNN)
    apart = optimize(dag, Latency("latency", CUDNN, model=V100), ALL_RULES)
    together = optimize_schedule(dag, staged, ALL_RULES, SearchOptions(max_graphs=300, patience=100))
    assert together.cost_after <= staged.total(apart.dag) * (1 + 1e-9)
    assert together.cost_after < together.cost_before == staged.total(dag)
    assert together.cost_after == pytest.approx(staged.total(together.dag))
    assert together.steps


def test_the_schedule_is_a_cost_of_optimize():
    mod = resnet_module(8, 8)
    done = optimize_module(mod, "cuda", "ios", "v100", seconds=10)
    assert done.report["cost_unit"] == "ms" and done.report["cost_after"] < done.report["cost_before"]
    np.testing.assert_allclose(outputs(done.mod)[0], outputs(mod)[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="stands alone"):
        optimize_module(mod, "cuda", "ios+1e-9*traffic")
    with pytest.raises(InfeasibleError):
        optimize_module(mod, "cuda", "ios,peak<=64")


@pytest.mark.parametrize("cost", ["measured", "learned"])
def test_measured_costs_keep_the_fastest_network(cost, tmp_path):
    mod = rnntc(steps=3, hidden=32, classes=4)
    done = optimize_module(
        mod, "llvm", cost, seconds=4, options=SearchOptions(max_graphs=60), database=tmp_path / "kernels.db"
    )
    ran = done.report["measured"]
    assert isinstance(ran, dict)
    assert set(ran["milliseconds"]) == {"original", "analytic", "measured"} and ran["kept"] in ran["milliseconds"]
    assert ran["speedup"][ran["kept"]] == max(ran["speedup"].values()) or ran["kept"] == "original"
    assert ran["measurements"] > 0 and ran["not_measured"] == {}
    assert "kept: " + ran["kept"] in format_report(done.report)
    Draft202012Validator(schema_of("optimize", Substituted)).validate(json.loads(json.dumps(done.report)))
    np.testing.assert_allclose(outputs(done.mod)[0], outputs(mod)[0], rtol=1e-4, atol=1e-5)
    again = optimize_module(
        mod, "llvm", cost, seconds=1, options=SearchOptions(max_graphs=1), database=tmp_path / "kernels.db"
    )
    found = again.report["measured"]
    assert isinstance(found, dict) and found["measurements"] < ran["measurements"]


class Alone:
    """A runner whose times are the analytic model's; remembers which stages it ran."""

    def __init__(self, runner: Runner) -> None:
        self.workers, self.device = runner.workers, runner.device
        self.ran: list[Groups] = []

    def run(self, groups: Groups, repeats: int) -> list[float]:
        self.ran.append(groups)
        return [sum(V100.op_ms(op) for group in groups for op in group)] * repeats

    def run_merged(self, parts: Sequence[OpFeatures], repeats: int) -> list[float]:
        return [float("inf")] * repeats


class Together(Alone):
    """The same for several stages at a time; remembers those that it was given so, call by call."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self.batches: list[list[Groups]] = []

    def ahead(self, stages: Sequence[tuple[str, Groups]], repeats: int) -> Iterator[tuple[str, Groups]]:
        self.batches.append([groups for _, groups in stages])
        yield from stages


def test_operators_that_a_search_meets_are_measured_together(monkeypatch):
    """Not only those of the first graphs; what is found and what is measured are the same as one by one."""
    mod, module = inception_e(width=0.0625, size=5), sys.modules["tvm_cascade.optimizing.measured"]
    effort = Effort(options=SearchOptions(max_graphs=100, patience=40), seconds=600, runs=1)
    done, runners = [], []
    for kind in (Alone, Together):
        monkeypatch.setattr(
            module, "on_farm", lambda runner, _bench, kind=kind: runners.append(kind(runner)) or runners[-1]
        )
        done.append(optimize_measured(mod, effort=effort))
    alone, together = runners
    later = [groups for batch in together.batches[2:] for groups in batch]
    missed = [groups for groups in together.ran if not any(groups in batch for batch in together.batches)]
    assert len(later) > len(missed) and max(map(len, together.batches[2:])) > 1
    assert {str(g) for g in alone.ran} == {str(g) for g in together.ran}
    assert done[0].measurements == done[1].measurements


def test_the_original_stays_where_nothing_runs_faster():

    class Even(LocalBench):
        def in_turn(self, programs: Sequence[Program], rounds: int, repeats: int = 1) -> list[list[float]]:
            return [[1e3] * rounds for _ in programs]

    effort = Effort(rules=rules("fuse_activation"), seconds=2, runs=1)
    done = optimize_measured(resnet_module(8, 8), effort=effort, bench=Even())
    assert done.chosen == "original" and done.choice.ratios == (1.0, 1.0, 1.0)
    assert not done.result.steps and done.result.cost_after == done.result.cost_before


def test_operators_that_no_rule_knows_are_measured_too():
    x = relax.Var("x", relax.TensorType((1, 4, 6, 6), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(relax.op.nn.relu(bb.emit(relax.op.erf(x))))
            out = bb.emit_output(relax.op.nn.relu(bb.emit(relax.op.flip(y, axis=3))))
        bb.emit_func_output(out)
    done = optimize_measured(bb.get(), effort=Effort(seconds=3, runs=1))
    assert done.measurements >= 3 and done.refused == {}


def test_measuring_for_cuda_needs_a_gpu():
    if not has_cuda():
        with pytest.raises(MissingToolError, match="driver"):
            optimize_module(resnet_module(8, 8), "cuda", "measured")


def test_limits_of_measured_costs_have_known_names():
    with pytest.raises(UsageError, match="unknown limit"):
        optimize_module(resnet_module(8, 8), "llvm", "learned,ram<=5")
