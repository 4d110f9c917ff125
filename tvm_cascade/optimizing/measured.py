"""`optimize --cost measured` and `--cost learned`: substitutions by latencies from a bench, this machine or a farm.

Kernels of graphs met by the search are measured ('measured'), or predicted by trees trained on few measurements
('learned', as for schedules: cost/learned.py). A sum over kernels is still a model: kernels affect one another's
caches. So whole networks are measured in the end: the original, the analytic model's best graph and the measurements'
best graph run in turn, and the original is kept unless another graph is faster.
"""

# TVM's passes are untyped.
# pyright: reportArgumentType=false
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tvm

from tvm_cascade.cost.learned import LearnedCost, refine
from tvm_cascade.cost.measured import MeasuredCost, MeasureOptions, Stages
from tvm_cascade.cost.records import CONCURRENT, RecordStore
from tvm_cascade.measured.choose_module import Choice, fastest_on
from tvm_cascade.measured.measure_farm import on_farm
from tvm_cascade.measured.runners import analytic_of
from tvm_cascade.optimizing.node_latency import KernelLatency, NodeRunner
from tvm_cascade.passes.substitution_read import Read, read_function
from tvm_cascade.passes.substitution_write import write_function
from tvm_cascade.runtime.bench import Bench, LocalBench
from tvm_cascade.search_monitor import SearchMonitor
from tvm_cascade.substitution.costs import STAGES, Cost, Latency, Limited
from tvm_cascade.substitution.dag import Dag
from tvm_cascade.substitution.metaflow import SearchOptions, SearchResult
from tvm_cascade.substitution.pattern import Rule
from tvm_cascade.substitution.rules import ALL_RULES
from tvm_cascade.substitution.split import optimize

QUICK = MeasureOptions(first=5, most=20, precision=0.05)  # a search asks for hundreds of kernels
SHARE = 0.3  # measurements of a learned search, roughly as a share of those of a fully measured one
SECONDS = 50.0  # of the searches without a limit on time: measuring depends on the machine anyway
_CANDIDATES = ("original", "analytic", "measured")


@dataclass(frozen=True)
class Measured:
    """Result of `optimize_measured`: the chosen module, the search result, and the measurements."""

    mod: tvm.IRModule
    read: Read
    result: SearchResult  # of the chosen module; costs in milliseconds of the model that guided its search
    choice: Choice  # over `candidates`
    candidates: tuple[str, ...]
    measurements: int  # number of kernels measured
    refused: dict[str, str]  # kinds of operators that could not be measured, with the reason

    @property
    def chosen(self) -> str:
        return self.candidates[self.choice.best]


@dataclass(frozen=True)
class Effort:
    """Limits on the search and on the candidates' runs."""

    options: SearchOptions | None = None
    rules: Sequence[Rule] = ALL_RULES
    seconds: float = SECONDS  # for the searches, measuring included
    runs: int = 7  # of every candidate

    def search(self, dag: Dag, cost: Cost, seconds: float) -> SearchResult:
        """Search once, for at most `seconds`."""
        with SearchMonitor(seconds):
            return optimize(dag, cost, self.rules, self.options)


def optimize_measured(
    mod: tvm.IRModule,
    learned: bool = False,
    limit: int | None = None,
    effort: Effort | None = None,
    database: str | Path | None = None,
    bench: Bench | None = None,
) -> Measured:
    """Rewrite `main` for a bench (default: this machine's CPU), within `limit` bytes of activations; see the module's docstring.

    `database` keeps measurements between runs. Raises `GraphError` for an unreadable `main`, `InfeasibleError` if no
    graph meets the limit.
    """
    effort, bench = effort or Effort(), bench or LocalBench()
    read = read_function(mod["main"])
    runner = NodeRunner(read.calls, bench)
    measured = MeasuredCost(on_farm(runner, bench), RecordStore(database, runner.device), QUICK)
    analytic = analytic_of(bench)
    serial = Latency("latency", STAGES, model=analytic)

    def within(cost: Latency) -> Latency | Limited:
        return cost if limit is None else Limited(cost, limit)

    guess = effort.search(read.dag, within(serial), effort.seconds / 2)
    effort = replace(effort, seconds=effort.seconds - guess.seconds)
    cost = KernelLatency("latency", runner.engine, model=measured, runner=runner)
    for dag in (read.dag, guess.dag):
        cost.foresee(dag.nodes)
    if learned:
        model = LearnedCost(measured, analytic)
        cost = replace(cost, model=model)
        result = _refined(model, cost, within, (read.dag, guess.dag), effort)
    else:
        result = effort.search(read.dag, within(cost), effort.seconds)
    results = [SearchResult(read.dag, result.cost_before, result.cost_before, (), 1, 0.0, True), guess, result]
    modules = [mod, *(_written(mod, read, f.dag) for f in results[1:])]
    choice = fastest_on(bench, modules, effort.runs)
    best = results[choice.best]
    return Measured(modules[choice.best], read, best, choice, _CANDIDATES, measured.measurements, cost.refused)


def _stages(runner: NodeRunner, dag: Dag) -> Stages:
    """List every computing operator of a graph as a separate stage."""
    ops = dict.fromkeys(runner.know(n) for n in dag.nodes)
    return tuple((CONCURRENT, [[op]]) for op in ops if op.kind != "view")


def _written(mod: tvm.IRModule, read: Read, dag: Dag) -> tvm.IRModule:
    written = mod.clone()
    written.update_func(mod.get_global_var("main"), write_function(dag, read, mod["main"].attrs))
    return written


def _refined(
    model: LearnedCost,
    cost: KernelLatency,
    within: Callable[[Latency], Latency | Limited],
    known: Sequence[Dag],
    effort: Effort,
) -> SearchResult:
    """Search, measure operators of the graph found, and fit the model to the measurements, repeatedly."""
    end = time.monotonic() + effort.seconds

    def stages(dag: Dag) -> Stages:
        assert cost.runner is not None
        return _stages(cost.runner, dag)

    def search():
        left = max(0.0, end - time.monotonic())
        result = effort.search(known[0], within(replace(cost)), left)
        return result, stages(result.dag)

    first = dict.fromkeys(op[0][0] for dag in known for _, op in stages(dag))
    budget = len(first) + max(8, int(SHARE * len(first)))
    return refine(model, search, budget, [(CONCURRENT, [[op]]) for op in first])
